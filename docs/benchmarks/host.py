"""Measure the host time of one call of the GPU kernels, without a GPU: all work of the processor for a call.

    python -m docs.benchmarks.host              # a table; --json FILE keeps the figures
    python -m docs.benchmarks.host --binding    # what Triton adds to each launch before it calls the driver
    python -m docs.benchmarks.host --quick      # a smoke run: its figures mean nothing

Stubs replace the kernels and do nothing when launched. Tensors are tiny and on the CPU, where one of torch's own small
operators costs about as much as its launch on a GPU. Labels and their tile maps are made before the clock starts. What
remains is the time of Python, torch's dispatcher and autograd, which is the lower bound for a small problem on a GPU.
Triton's own launcher does not count, because the stubs replace it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from docs.benchmarks.about import about, line, publish
from docs.benchmarks.measure import Rows, quartiles

LENGTH, HEADS, SIZE, LABELS = 32, 2, 16, 17
IN_A_ROW, WARM_UP = 20, 5
TABLES = {
    "key and value tables": ("key_table", "value_table"),
    "all four tables": ("key_table", "value_table", "query_table", "bias_table"),
}
WITHOUT_LAUNCH = frozenset(
    f"aten::{name}"
    for name in (
        "alias", "as_strided", "contiguous", "detach", "empty", "empty_like", "empty_strided", "expand", "expand_as",
        "flatten", "mT", "narrow", "numpy_T", "new_empty", "permute", "reshape", "resolve_conj", "resolve_neg",
        "select", "slice", "squeeze", "t", "to", "transpose", "unflatten", "unsqueeze", "_unsafe_view", "view",
        "view_as",
    )
)  # fmt: skip
"""Operators that start no GPU kernel themselves."""


class Way(NamedTuple):
    """Something to time: a call without arguments, and the leaves that need gradients; no leaves means no backward."""

    name: str
    call: Callable[[], Tensor]
    leaves: list[Tensor]


class Stub:
    """A stub for a kernel, which only counts its launches."""

    launches = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, _: Any) -> Stub:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        Stub.launches += 1


@contextlib.contextmanager
def stubbed() -> Iterator[None]:
    """Replace all kernels of ``impl="triton"`` by stubs."""
    from triton.runtime import KernelInterface

    from relgraph.impl.triton import attention_kernels, edge_kernels

    kept = []
    for module in (attention_kernels, edge_kernels):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, KernelInterface):
                kept.append((module, name, kernel))
                setattr(module, name, Stub(name))
    try:
        yield
    finally:
        for module, name, kernel in kept:
            setattr(module, name, kernel)


def labels_of(length: int) -> dict[str, rg.Labels]:
    """The kinds of labels to time."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(LABELS, (length, length), generator=generator)
    edges = torch.randint(length, (2, 4 * length), generator=generator)
    edge_ids = torch.randint(LABELS, (4 * length,), generator=generator)
    return {
        "by distance": rg.ClippedDistance(LABELS // 2)(length),
        "written out": rg.DenseLabels(ids, LABELS),
        "edges only": rg.EdgeLabels(edges, edge_ids, LABELS, q_len=length, default=None),
    }


def inputs_of(dtype: torch.dtype, length: int = LENGTH) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Query, key, value and all tables; all require gradients."""
    qkv = [torch.randn(1, HEADS, length, SIZE).to(dtype).requires_grad_() for _ in range(3)]
    shapes = {
        "key_table": (LABELS, SIZE),
        "value_table": (LABELS, SIZE),
        "query_table": (LABELS, SIZE),
        "bias_table": (HEADS, LABELS),
    }
    return qkv, {name: torch.randn(shape).to(dtype).requires_grad_() for name, shape in shapes.items()}


def ours(dtype: torch.dtype) -> list[Way]:
    """Calls of ``impl="triton"`` by kind of labels and tables."""
    found = []
    for kind, labels in labels_of(LENGTH).items():
        for which, names in TABLES.items():
            qkv, tables = inputs_of(dtype)
            given = {name: tables[name] for name in names}
            found.append(_way(f"relgraph, {kind}, {which}", qkv, labels, given))
    return found


def _way(name: str, qkv: list[Tensor], labels: rg.Labels, tables: dict[str, Tensor]) -> Way:
    def call() -> Tensor:
        return rg.relation_attention(*qkv, labels, **tables, impl="triton")

    return Way(name, call, [*qkv, *tables.values()])


def theirs(dtype: torch.dtype) -> list[Way]:
    """torch's own attention at the same size. Its kernels do run: a CPU computes them instead of launching them."""
    (query, key, value), _ = inputs_of(dtype)
    found = [
        Way("torch, SDPA", lambda: scaled_dot_product_attention(query, key, value), [query, key, value]),
    ]
    with contextlib.suppress(Exception):  # no compiler here
        found.append(_flex(dtype))
    return found


def _flex(dtype: torch.dtype) -> Way:
    """FlexAttention with the key term, compiled; it has no backward on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    (query, key, value), tables = inputs_of(dtype)
    query, key, value, table = (x.detach() for x in (query, key, value, tables["key_table"]))
    reach = LABELS // 2
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def call() -> Tensor:
        term = query @ table.T * SIZE**-0.5

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + term[b, h, i, (j - i).clamp(-reach, reach) + reach]

        return compiled(query, key, value, score_mod=score_mod)  # pyright: ignore[reportReturnType]

    call()
    return Way("torch, FlexAttention, key term, compiled", call, [])


def measure(ways: Sequence[Way], rounds: int) -> Rows:
    """A row per way: processor microseconds and operators of a call. Ways run in turn, several calls at a time."""
    times: dict[str, tuple[list[float], list[float]]] = {way.name: ([], []) for way in ways}
    grads = {way.name: torch.ones_like(way.call()) for way in ways}
    for turn in range(rounds + 1):
        for way in ways:
            for number in range(IN_A_ROW + WARM_UP):
                forward, backward = _timed(way, grads[way.name])
                if turn and number >= WARM_UP:
                    times[way.name][0].append(forward)
                    times[way.name][1].append(backward)
    rows: Rows = []
    for way in ways:
        row: dict[str, object] = {"way": way.name}
        counts = operators(way, grads[way.name])
        for what, taken, count in zip(("forward", "backward"), times[way.name], counts, strict=True):
            there = what == "forward" or bool(way.leaves)
            row[f"{what} µs"] = _spread(taken) if there else "–"
            row[f"{what}: operators, launching, kernels"] = ", ".join(map(str, count)) if there else "–"
        rows.append(row)
    return rows


def _timed(way: Way, grad: Tensor) -> tuple[float, float]:
    """Processor microseconds of one forward and one backward, without time spent waiting."""
    begin = time.thread_time_ns()
    output = way.call()
    middle = time.thread_time_ns()
    if way.leaves:
        torch.autograd.grad(output, way.leaves, grad)
    end = time.thread_time_ns()
    return (middle - begin) / 1e3, (end - middle) / 1e3


def _spread(taken: list[float]) -> str:
    """Median, quartiles, and minimum, which other work on the machine disturbs least."""
    low, median, high = quartiles(taken)
    return f"{median:.0f} ({low:.0f}–{high:.0f}, least {min(taken):.0f})"


class Count(NamedTuple):
    """Counts of torch operators in a pass, of those that launch on a GPU, and of launches of our kernels."""

    operators: int
    launched: int
    kernels: int


def operators(way: Way, grad: Tensor) -> tuple[Count, Count]:
    """The counts of forward and backward of one call, which do not depend on the machine."""
    output, forward = _counted(way.call)
    if not way.leaves:
        return forward, Count(0, 0, 0)
    return forward, _counted(lambda: torch.autograd.grad(output, way.leaves, grad))[1]


def _counted(call: Callable[[], Any]) -> tuple[Any, Count]:
    before = Stub.launches
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = call()
    found = [event for event in profile.events() or [] if event.name.startswith("aten::")]
    outer = sum(1 for event in found if not _inside(event))
    launched = sum(1 for event in found if _launches(event) and not any(map(_launches, event.cpu_children)))
    return result, Count(outer, launched, Stub.launches - before)


def _inside(event: Any) -> bool:
    """Whether another operator called this one."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False


def _launches(event: Any) -> bool:
    """Whether an operator or one that it calls starts a GPU kernel."""
    itself = event.name.startswith("aten::") and event.name not in WITHOUT_LAUNCH
    return itself or any(map(_launches, event.cpu_children))


def binding() -> dict[str, float]:
    """Microseconds that Triton takes per launch to bind and classify the arguments of each kernel."""
    from relgraph.impl.triton import attention_kernels

    attention = attention_kernels.forward, attention_kernels.backward_rows, attention_kernels.backward_keys
    return {kernel.fn.__name__: _bound(kernel.fn) for kernel in attention}


def _bound(kernel: Any) -> float:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    bind = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))
    tensor = torch.zeros(64, dtype=torch.bfloat16)
    constants = {param.name: 16 for param in kernel.params if param.is_constexpr}
    names = [param.name for param in kernel.params if not param.is_constexpr]
    numbers: list[Any] = [tensor if name.endswith("_ptr") else 64 for name in names]
    calls = lambda: bind(*numbers, **constants, num_warps=8, num_stages=2)  # noqa: E731
    return min(timeit.repeat(calls, number=1000, repeat=20)) * 1e3


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        "docs.benchmarks.host", description="Measure the host time of one call of the GPU kernels."
    )
    parser.add_argument("--rounds", type=int, default=50, help=f"counted rounds of {IN_A_ROW} calls; 50 by default")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="a few rounds only; the figures mean nothing")
    parser.add_argument("--binding", action="store_true", help="time how Triton's launcher handles arguments instead")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args(given)
    if arguments.binding:
        os.environ["TRITON_INTERPRET"] = "0"
        found = ", ".join(f"{name} {taken:.0f} µs" for name, taken in binding().items())
        print(f"{line(about('cpu'))} Triton binds the arguments of a launch: {found}.")
        return
    os.environ["TRITON_INTERPRET"] = "1"  # set before triton loads: CPU tensors replace GPU tensors
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    load = os.getloadavg()[0]
    with stubbed():
        rows = measure([*ours(dtype), *theirs(dtype)], 1 if arguments.quick else arguments.rounds)
    loads = f"load before {load:.2f}, after {os.getloadavg()[0]:.2f}, of {os.cpu_count()} processors"
    print(f"{arguments.dtype}, {loads}.")
    publish(rows, path=arguments.json)


if __name__ == "__main__":
    main()
