"""Long tables by distance: blocks of query rows, each with the rows of the table that it reads.

B has a number for every query and every row of the table. With labels by distance, b queries and N keys read only
N + b - 1 neighbouring rows. So if B is large, each block of query rows is a problem of its own, in forward and in
backward, whose tables are slices: B never holds more than ``NUMBERS`` numbers, or those of ``LEAST`` query rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.impl import budget
from relgraph.impl.problem import Outputs, Problem, with_origin
from relgraph.impl.triton.tables import Terms, padded
from relgraph.impl.triton.virtual import virtual_of
from relgraph.labels.memory import Memory
from relgraph.plan import NOT_ATTENDING, DistanceIds, LabelPlan, Part

LONG_TABLE = 96
"""Bands of fewer distances are not cut: then B has fewer numbers than a few vectors of each head."""

LEAST = 128
"""A block has at least so many query rows, and a multiple of them: whole tiles of every size."""

NUMBERS = budget.DEVICE_BYTES // 8
"""The most numbers in B of a block: in backward B and its gradient, in float32, fill the budget."""

KEPT = 4096
"""Blocks whose tile maps are kept. Without causal order all blocks inside the band share one."""


class Block(NamedTuple):
    """Some query rows as a problem of their own.

    Attributes:
        rows: the query rows.
        columns: its columns in the whole table.
        problem: the problem.
        terms: the terms of its tables.
    """

    rows: slice
    columns: slice
    problem: Problem
    terms: Terms


def rows_of_block(problem: Problem) -> int | None:
    """How many query rows a block has; None if all rows are computed at once.

    They are if there is more than B: sums by label and C have a number for every label in any case. They also are if
    batch rows or packed sequences have distances of their own, because their offsets are on the device.
    """
    batch, heads, q_len = problem.query.shape[:3]
    if problem.columns - 2 < LONG_TABLE or batch * heads * q_len * problem.columns <= NUMBERS:
        return None
    plan, others = problem.plan, (problem.by_query, problem.by_key, problem.label_queries, problem.label_values)
    if problem.need_sums or problem.need_mass or any(x is not None for x in others):
        return None
    if (problem.label_keys is None and problem.label_biases is None) or virtual_of(plan) is None:
        return None
    if plan.q_ptr is not None or isinstance(plan.parts[0].offset, Tensor):
        return None
    room = NUMBERS // (batch * heads)
    fit = (isqrt(plan.k_len**2 + 4 * room) - plan.k_len) // 2  # b rows have b (N + b) numbers
    rows = max(max(fit, room // problem.columns) // LEAST, 1) * LEAST
    return rows if rows < q_len else None


def blocks(problem: Problem, size: int, dead: Tensor | None) -> Iterator[Block]:
    """The blocks of ``size`` query rows; ``dead`` says which columns are of pairs that do not attend."""
    labels, offset = virtual_of(problem.plan), problem.plan.parts[0].offset
    assert labels is not None and isinstance(offset, int)
    keys, biases = (None if x is None else x.float() for x in _tables(problem))
    q_len, k_len = problem.query.shape[2], problem.plan.k_len
    kept = problem.memo.once("row blocks", partial(Memory, KEPT))
    for begin in range(0, q_len, size):
        rows = slice(begin, min(begin + size, q_len))
        causal = None if problem.causal is None else problem.causal + begin
        # distances from the block's first row to the keys: where the band begins, and which part of it has pairs
        count, zero = rows.stop - begin, labels.low + offset + begin
        stop = min(k_len, causal + 1) if isinstance(causal, int) else k_len
        low = min(max(zero, 1 - count), stop)
        width = max(min(zero + labels.width, stop) - low, 0)
        first = min(max(low - zero, 0), labels.width)
        columns = slice(first, first + width + 2)
        gone = () if dead is None else tuple(x == NOT_ATTENDING for x in labels.columns[columns])
        key = count, low, width, gone
        plan, memo = kept.once(key, partial(_plan, k_len, *key))
        part = replace(
            problem,
            query=problem.query[:, :, rows],
            label_keys=None if keys is None else keys[..., columns, :],
            label_biases=None if biases is None else biases[..., columns],
            mask=_of(rows, problem.mask),
            keep=_of(rows, problem.keep),
            seed=_seed(problem.seed, begin),
            causal=causal,
            plan=plan,
            plan_key=memo,
            columns=width + 2,
        )
        yield Block(rows, columns, part, Terms(part, None if dead is None else dead[columns]))


def forward(problem: Problem, size: int, dead: Tensor | None) -> Outputs:
    """Output and log-sum-exp, block by block."""
    from relgraph.impl.triton import launch

    rows = problem.query.shape[:3]
    output = problem.query.new_empty(*rows, problem.value.shape[3], dtype=torch.float32)
    lse = output.new_empty(rows)
    for block in blocks(problem, size, dead):
        found = launch.forward(block.problem, block.terms)
        _of(block.rows, output).copy_(found.output)
        _of(block.rows, lse).copy_(found.lse)
    return Outputs(output, lse, None, None)


def backward(
    problem: Problem, size: int, dead: Tensor | None, outputs: Outputs, incoming: Outputs
) -> list[Tensor | None]:
    """The gradients in the order that :func:`relgraph.impl.op.plug` requires; sums over blocks are in float32."""
    from relgraph.impl.triton import launch

    learned = [problem.key, problem.value, problem.label_keys, problem.label_biases, problem.mask]
    if not problem.mask_gradient:
        learned[-1] = None
    dq = problem.query.new_empty(problem.query.shape)
    totals = [
        None if x is None else torch.zeros_like(x, dtype=torch.float32)
        for x in (*learned[:2], *_tables(problem), learned[-1])
    ]
    dk, dv, of_keys, of_biases, of_mask = totals
    for rows, columns, part, terms in blocks(problem, size, dead):
        own = [Outputs(*(_of(rows, x) for x in given)) for given in (outputs, incoming)]
        found: list[Any] = launch.backward(part, terms, *own, single=True)
        _of(rows, dq).copy_(found[0])
        for total, at in (
            (dk, 1),
            (dv, 2),
            (None if of_keys is None else of_keys[..., columns, :], 5),
            (None if of_biases is None else of_biases[..., columns], 8),
            (_of(rows, of_mask), 9),
        ):
            if total is not None:
                total.add_(found[at])
    # a table may lack the row of the last column
    dk, dv, of_keys, of_biases, of_mask = (
        None if total is None or x is None else total[tuple(map(slice, x.shape))].to(x.dtype)
        for total, x in zip(totals, learned, strict=True)
    )
    return [dq, dk, dv, None, None, of_keys, None, None, of_biases, of_mask]


def _plan(k_len: int, count: int, low: int, width: int, gone: tuple[bool, ...]) -> tuple[LabelPlan, Memory]:
    """A plan of a label for each distance of the band, and a memory for its tile maps."""
    ids = tuple(NOT_ATTENDING if gone and gone[at] else at for at in range(width + 2))
    part = Part(width + 2, 0, DistanceIds(low - 1, ids))
    return LabelPlan(count, k_len, 1, (part,)), Memory()


def _tables(problem: Problem) -> list[Tensor | None]:
    """The tables of keys and of biases with a row for every column."""
    tables = (problem.label_keys, -2), (problem.label_biases, -1)
    return [None if table is None else padded(table, problem.columns, dim) for table, dim in tables]


def _of(rows: slice, x: Any) -> Any:
    """These rows of ``[B, H, N_q, ...]``; all of a mask that is the same for all rows."""
    return x if x is None or x.shape[2] == 1 else x[:, :, rows]


def _seed(seed: Tensor | None, begin: int) -> Tensor | None:
    """The seed of a block, which draws what the whole problem draws there."""
    if seed is None or seed.numel() == 1:
        return None if seed is None else with_origin(seed, (0, 0, begin, 0))
    moved = seed.clone()
    moved[3] += begin
    return moved
