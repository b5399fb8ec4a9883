"""Compiles listed configurations one after the other, or two at a time in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context

from docs.kernels.ahead import compile_kernel
from docs.kernels.configuration import load
from docs.kernels.report import Row, row

Task = tuple[str, int, int]
"""Module, index of the configuration, and architecture: kernels themselves cannot be sent between processes."""


def measure(module: str, index: int, arch: int) -> Row:
    """Compile one configuration and record its resources."""
    config = load(module)[index]
    try:
        compiled = compile_kernel(
            config.fn, config.signature, config.constexprs, arch, config.num_warps, config.num_stages
        )
    except Exception as error:
        error.add_note(f"while {config.name} was compiled for sm_{arch}")
        raise
    return row(config, compiled)


def measured(tasks: Sequence[Task], jobs: int) -> Iterator[Row]:
    """Yield a row for each task in order, as soon as it is ready."""
    if jobs == 1:
        yield from starmap(measure, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure, *zip(*tasks, strict=True))
