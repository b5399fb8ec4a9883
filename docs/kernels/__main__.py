"""Compile the kernels for every architecture, print the results, and fail if a rule is broken."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path

from docs.kernels.ahead import compile_kernel
from docs.kernels.configuration import ARCHITECTURES, Configuration, load
from docs.kernels.report import MIXED, UNIFORM, Row, compare, complaints, report, row, summary, write_between_markers

Task = tuple[str, int, int]
"""Module, index of the configuration, and architecture: kernels themselves cannot be sent between processes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it finds a problem."""
    options = _options(argv)
    tasks = _tasks(load(options.configurations), options)
    rows = []
    for one in measured(tasks, options.jobs):
        rows.append(one)
        print(f"[{len(rows)}/{len(tasks)}] {_line(one)}", flush=True)
    compare(rows)
    print(f"\n{summary(rows)}")
    if options.json:
        options.json.write_text(report(rows), encoding="utf-8")
    if options.docs:
        write_between_markers(options.docs, f"{_versions()}\n\n{summary([one for one in rows if _shown(one)])}")
    wrong = complaints(rows)
    kept = f"no spills; uniform tiles within {UNIFORM} and mixed ones within {MIXED} times their baselines"
    print("\n".join(wrong) or kept)
    return 1 if wrong else 0


def _tasks(configurations: Sequence[Configuration], options: argparse.Namespace) -> list[Task]:
    """Module, position and architecture of each selected configuration, and of those to compare with."""
    wanted = [
        config
        for config in configurations
        if (options.all or config.held if options.only is None else options.only in config.name)
    ]
    names = {config.name for config in wanted} | {config.baseline for config in wanted}
    found = [
        (options.configurations, index, arch)
        for index, config in enumerate(configurations)
        for arch in config.archs
        if config.name in names and arch in options.arch
    ]
    if not found:
        raise ValueError(f"--only and --arch must leave a configuration, got {options.only!r} and {options.arch}")
    return found


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


def _line(found: Row) -> str:
    made = found.compiled
    loops = ", ".join(f"{name} {loop.cost}" for name, loop in found.loops.items()) or "no loops"
    return f"{found.config.name} sm_{made.arch}: {made.registers} registers, {made.spill_bytes} bytes spilled, {loops}"


def _shown(found: Row) -> bool:
    """Whether the page has the row: the rows of other types and architectures say much the same."""
    return found.config.held and "*bf16" in found.config.signature.values() and found.compiled.arch in (80, 90)


def _versions() -> str:
    import triton

    return f"Compiled with Triton {triton.__version__}, Python {platform.python_version()}, without a GPU."


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m docs.kernels", description=__doc__)
    parser.add_argument("--configurations", default="docs.kernels.configurations", help="module with configurations()")
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument(
        "--all",
        action="store_true",
        help="include configurations that are only reported: an hour instead of ten minutes",
    )
    parser.add_argument("--only", help="only names that contain this, and the kernels to compare with")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="number of compiling processes")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--docs", type=Path, help="write the table of bfloat16 to this file, between the markers")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
