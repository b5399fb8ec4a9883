"""Problems whose ids a function computes: kernels run on some rows and heads at a time, with their ids written out.

Rows of the output do not depend on each other; gradients of keys, values and tables are sums over blocks. Backward
computes the ids again. Kernels see problems with ids written out, as any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from relgraph.impl.problem import Outputs, Problem, with_origin
from relgraph.impl.units import borders
from relgraph.labels.memory import Memory
from relgraph.plan import LabelPlan, cut, cut_graphs, offset_of_graphs, offset_of_rows

BLOCK_IDS = 1 << 22
"""The number of ids that are written out at a time, for at least FEWEST_ROWS rows: 4 MiB for up to 128 labels."""

FEWEST_ROWS = 64
"""The fewest query rows of a block, if there are as many: kernels lay out all keys again for each block."""

BLOCK_BYTES = 1 << 22
"""The size of the keys and values of a block, for at least one head: kernels hold several copies of them."""

_AXES = {
    "query": ("B", "H", "N_q", ""), "key": ("B", "H_kv", "N_k", ""), "value": ("B", "H_kv", "N_k", ""),
    "by_query": ("B", "H", "N_q", ""), "by_key": ("B", "H", "N_k", ""), "label_keys": ("H", "", ""),
    "label_values": ("H", "", ""), "label_queries": ("H", "", ""), "label_biases": ("H", ""),
    "value_maps": ("H", "", "", ""), "score_maps": ("H", "", "", ""), "score_weights": ("H", ""),
    "mask": ("B", "H", "N_q", "N_k"), "keep": ("B", "H", "N_q", "N_k"),
}  # fmt: skip
"""The axes of the tensors of a problem; a table for all heads has no axis H, and an axis of one number serves all."""

_LEARNED = [name for name in _AXES if name not in ("mask", "keep")]

_OF_OUTPUTS = (("B", "H", "N_q", ""), ("B", "H", "N_q"), *[("B", "H", "N_q", "")] * 3)
"""The axes of each output."""

_Taken = dict[str, range]


def forward(kernels: Callable[[Problem], Outputs], problem: Problem) -> Outputs:
    """The outputs of a problem, by kernels block by block."""
    rows, dtype = problem.query.shape[:3], problem.dtype
    output = problem.query.new_zeros(*rows, problem.value.shape[-1], dtype=dtype)
    lse = output.new_full(rows, float("-inf"))
    sums, mass = (
        output.new_zeros(*rows, problem.columns) if needed else output.new_empty(0)
        for needed in (problem.need_sums, problem.need_mass)
    )
    whole = Outputs(output, lse, sums, mass)
    for taken, block in _blocks(problem):
        _put(whole, kernels(block), taken)
        del block  # before the ids of the next one are written out
    return whole


def _put(whole: Outputs, found: Outputs, taken: _Taken) -> None:
    """Put the outputs of a block in their places."""
    for into, piece, axes in zip(whole[:4], found[:4], _OF_OUTPUTS, strict=False):
        if into.numel():
            _cut(into, axes, taken).copy_(piece)


def backward(
    kernels: Callable[[Problem, Outputs, Outputs], Sequence[Tensor | None]],
    problem: Problem,
    outputs: Outputs,
    incoming: Outputs,
) -> list[Tensor]:
    """The gradients of a problem that are not None, by kernels block by block."""
    names = [name for name in _LEARNED if getattr(problem, name) is not None] + ["mask"] * problem.mask_gradient
    given = [getattr(problem, name) for name in names]
    sums = [torch.zeros_like(x, dtype=problem.dtype, memory_format=torch.contiguous_format) for x in given]
    for taken, block in _blocks(problem):
        mine, coming = (Outputs(*map(_cut, of, _OF_OUTPUTS, [taken] * 5)) for of in (outputs, incoming))
        _add(names, sums, kernels(block, mine, coming), taken)
        del block, mine, coming
    return [total.to(x.dtype) for total, x in zip(sums, given, strict=True)]


def _add(names: Sequence[str], sums: Sequence[Tensor], found: Sequence[Tensor | None], taken: _Taken) -> None:
    """Add the gradients of a block to the sums of these names."""
    pieces = [piece for piece in found if piece is not None]
    for name, total, piece in zip(names, sums, pieces, strict=True):
        _cut(total, _AXES[name], taken).add_(piece)


def _cut(x: Any, axes: Sequence[str], taken: _Taken) -> Any:
    """What a block takes of a tensor, as a view; axes that are missing and axes of one number stay."""
    if x is None:
        return x
    for dim, axis in zip(range(-1, -1 - x.dim(), -1), reversed(axes), strict=False):
        if axis and x.shape[dim] > 1:
            x = x.narrow(dim, taken[axis].start, len(taken[axis]))
    return x


def _blocks(problem: Problem) -> Iterator[tuple[_Taken, Problem]]:
    """The blocks of a problem, each with what it takes of every axis."""
    query, key, value = problem.query, problem.key, problem.value
    heads, kv_heads = query.shape[1], key.shape[1]
    for batch, rows, keys, plan, causal in _plans(problem):
        memo = Memory()  # all heads share what kernels make of the ids
        per_head = len(batch) * len(keys) * (key.shape[-1] + value.shape[-1]) * problem.dtype.itemsize
        step = max(BLOCK_BYTES // max(per_head, 1), 1)
        for first in range(0, kv_heads, step):
            some = range(first, min(first + step, kv_heads))
            each = heads // kv_heads
            taken = {
                "B": batch,
                "H": range(some.start * each, some.stop * each),
                "H_kv": some,
                "N_q": rows,
                "N_k": keys,
            }
            seed = problem.seed
            if seed is not None:
                begins = (taken[axis].start for axis in ("B", "H", "N_q", "N_k"))
                origin = tuple(a + b for a, b in zip(problem.origin, begins, strict=True))
                seed = with_origin(seed.reshape(-1)[0], origin)
            own = {name: _cut(getattr(problem, name), axes, taken) for name, axes in _AXES.items()}
            yield taken, replace(problem, **own, seed=seed, plan=plan, causal=causal, plan_key=memo)
        del plan, memo  # before the ids of the next rows are written out


_Piece = tuple[range, range, range, LabelPlan, int | Tensor | None]


def _plans(problem: Problem) -> Iterator[_Piece]:
    """Batch rows, query rows and keys of each block, its labels and its causal offset."""
    plan = problem.plan
    if plan.q_ptr is not None:
        yield from _packed(problem)
        return
    batch, queries = problem.query.shape[0], range(plan.q_len)
    together = batch
    if plan.batch > 1:  # listed pairs are cut for one batch row at a time
        listed = any(part.csr is not None for part in plan.parts)
        together = 1 if listed else max(BLOCK_IDS // max(plan.q_len * plan.k_len, 1), 1)
    for first in range(0, batch, max(together, 1)):
        yield from _rows(problem, range(first, min(first + together, batch)), queries, range(plan.k_len), None)


def _packed(problem: Problem) -> Iterator[_Piece]:
    """The blocks of packed graphs: several graphs at a time, or some rows of one with many pairs."""
    plan = problem.plan
    q_ptr, k_ptr = borders(plan, problem.memo)
    pairs = [(b - a) * (d - c) for (a, b), (c, d) in zip(pairwise(q_ptr), pairwise(k_ptr), strict=True)]
    first = 0
    while first < len(pairs):
        stop, many = first + 1, pairs[first]
        while stop < len(pairs) and many + pairs[stop] <= BLOCK_IDS:
            many += pairs[stop]
            stop += 1
        rows, keys = (range(ptr[first], ptr[stop]) for ptr in (q_ptr, k_ptr))
        if stop == first + 1:
            yield from _rows(problem, range(1), rows, keys, first)
        else:
            graphs = range(first, stop)
            causal = None if problem.causal is None else offset_of_graphs(problem.causal, graphs)
            yield range(1), rows, keys, cut_graphs(plan, graphs, rows, keys), causal
        first = stop


def _rows(problem: Problem, batch: range, queries: range, keys: range, graph: int | None) -> Iterator[_Piece]:
    """The blocks of some batch rows or of one graph."""
    plan = problem.plan
    a_row = len(keys) * (len(batch) if plan.batch > 1 else 1)
    step = max(BLOCK_IDS // max(a_row, 1), FEWEST_ROWS)
    for first in range(queries.start, queries.stop, step):
        rows, skipped = range(first, min(first + step, queries.stop)), first - queries.start
        causal = None if problem.causal is None else offset_of_rows(problem.causal, batch, graph, skipped)
        yield batch, rows, keys, cut(plan, batch, rows, keys, graph, skipped), causal
