"""Forward and backward of the primitive over blocks of query rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relgraph.impl import draw
from relgraph.impl.chunked.groups import Group, groups
from relgraph.impl.chunked.ids import UnitIds
from relgraph.impl.chunked.rows import RowBlock, UnitWork, fold_row_term
from relgraph.impl.problem import Outputs, Problem, row_delta
from relgraph.impl.units import borders, lengths, units

BLOCK_SCORES = 1 << 19
"""Scores (batch rows · heads · queries · keys) per block: 2 MiB in float32, which stays in cache."""

BLOCK_ROWS = 256
"""Most query rows per block."""

FEWEST_ROWS = 16
"""Fewest query rows per block, for any number of keys: products of fewer rows are slow."""


def forward(problem: Problem) -> Outputs:
    """Output, log-sum-exp, and the sums by label after and before dropout (empty if not needed)."""
    problem = _with_hashes(problem)
    query, dtype = problem.query, problem.dtype
    rows = query.shape[:3]
    output = query.new_zeros(*rows, problem.value.shape[-1], dtype=dtype)
    lse = query.new_full(rows, float("-inf"), dtype=dtype)
    sums, mass = (
        query.new_zeros(*rows, problem.columns, dtype=dtype) if needed else query.new_empty(0, dtype=dtype)
        for needed in (problem.need_sums, problem.need_mass)
    )
    together = groups(problem)
    for group in together:
        mine = forward(group.problem)
        for whole, part in zip((output, lse, sums, mass), mine[:4], strict=True):
            if part.numel():
                group.labels.queries.put(whole, part)
    buffers = _buffers(problem, backward=False)
    sizes = _Sizes.of(problem)
    for unit in _units(problem, together, sizes, buffers):
        for block in (block for heads in _passes(unit, sizes) for block in _blocks(unit, heads)):
            unnormalised, total = block.unnormalised(lse)  # [batch, H, rows, keys], [batch, H, rows, 1]
            share = total.reciprocal_()
            if problem.need_mass:
                block.ids.scatter(unnormalised, mass[block.at], None)
                mass[block.at].mul_(share)
            unnormalised = block.drop(unnormalised)
            torch.mul(block.times(block.operand(unnormalised), unit.value_operand), share, out=output[block.at])
            if problem.need_sums:
                block.ids.scatter(unnormalised, sums[block.at], None)
                sums[block.at].mul_(share)
    return Outputs(output, lse, sums, mass)


def backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value, by_query, by_key and a mask that needs one; weights are computed again."""
    delta = row_delta(outputs, incoming, problem.dtype)
    grads = _gradients(_with_hashes(problem), incoming, delta)
    dtypes = [*[problem.query.dtype] * 3, *[problem.dtype] * 2, None if problem.mask is None else problem.mask.dtype]
    return [None if x is None else x.to(dtype) for x, dtype in zip(grads, dtypes, strict=True)]


def _with_hashes(problem: Problem) -> Problem:
    """The problem with the hashes from which dropout draws; a group of graphs takes them from the whole batch."""
    if problem.dropout_p == 0.0 or problem.keep is not None or problem.drawn is not None:
        return problem
    assert problem.seed is not None
    seed, *origin = problem.seed.reshape(-1).unbind()
    query, keys = problem.query, problem.key.shape[2]
    drawn = draw.hashes(seed, origin or (0, 0, 0, 0), query.shape[:3], keys, query.device)
    return replace(problem, drawn=drawn)


def _gradients(problem: Problem, incoming: Outputs, delta: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of :func:`backward`, in the accumulation dtype."""
    mask = problem.mask if problem.mask_gradient else None
    grads = tuple(
        None if x is None else torch.zeros_like(x, dtype=problem.dtype, memory_format=torch.contiguous_format)
        for x in (problem.query, problem.key, problem.value, problem.by_query, problem.by_key, mask)
    )
    together = groups(problem)
    for group in together:
        queries, keys = group.labels.queries, group.labels.keys
        its_delta = queries.take_own(delta[..., None])
        assert its_delta is not None
        mine = _gradients(group.problem, group.incoming(incoming), its_delta[..., 0])
        sides = (queries, keys, keys, queries, keys)
        for whole, part, side in zip(grads[:5], mine[:5], sides, strict=True):
            if whole is not None and part is not None:
                side.put(whole, part)
    buffers = _buffers(problem, backward=True)
    sizes = _Sizes.of(problem)
    sums = fold_row_term(problem, incoming.sums, delta) if problem.dropout_p == 0.0 else None
    for unit in _units(problem, together, sizes, buffers):
        unit.folded_sums = sums
        _add_gradients(unit, sizes, incoming, delta, grads)
    return grads


@dataclass(frozen=True)
class _Sizes:
    """How a problem is cut: batch rows per unit, key heads and query rows per block, and the scores of such a block."""

    batch: int
    kv_heads: int
    rows: int
    scores: int

    @classmethod
    def of(cls, problem: Problem) -> _Sizes:
        """A block of at most BLOCK_SCORES, but FEWEST_ROWS for any number of keys; small ones take several heads."""
        (batch, heads), kv_heads = problem.query.shape[:2], max(problem.key.shape[1], 1)
        queries, keys = (max([1, *lengths(ptr)]) for ptr in borders(problem.plan, problem.memo))
        a_row = max(heads // kv_heads * keys, 1)
        rows = min(queries, max(min(BLOCK_ROWS, BLOCK_SCORES // a_row), FEWEST_ROWS))
        lanes = max(BLOCK_SCORES // 2 // (a_row * rows), 1)
        some_heads = min(lanes, kv_heads)
        # listed pairs are found row by row of the batch
        alone = any(part.csr is not None for part in problem.plan.parts)
        some_batch = 1 if alone else max(min(lanes // kv_heads, batch), 1)
        return cls(some_batch, some_heads, rows, some_batch * some_heads * rows * a_row)


def _buffers(problem: Problem, *, backward: bool) -> int:
    """How many buffers with a number per pair a block needs."""
    return (2 if backward else 1) + 2 * (problem.dropout_p > 0.0) + (problem.score is not None and backward)


def _units(problem: Problem, together: list[Group], sizes: _Sizes, buffers: int) -> Iterator[UnitWork]:
    """The units of the problem, without graphs in groups. They share buffers: one block is computed at a time."""
    grouped = {graph for group in together for graph in group.labels.graphs}
    if problem.plan.q_ptr is not None and len(grouped) == problem.plan.q_ptr.shape[0] - 1:
        return
    room = torch.empty(buffers, sizes.scores, dtype=problem.dtype, device=problem.query.device)
    shared, ids = UnitIds.shared(problem), None
    for unit in units(problem.plan, problem.memo, problem.query.shape[0], sizes.batch):
        if unit.graph not in grouped and len(unit.queries) and len(unit.keys) and len(unit.batch):
            if ids is None or not shared:
                ids = UnitIds(problem, unit, sizes.rows)
            yield UnitWork(problem, unit, list(room), ids)


def _passes(unit: UnitWork, sizes: _Sizes) -> list[list[range]]:
    """The key heads of the blocks in each pass over the unit's rows: those of one block, or all if ids are not kept."""
    kv_heads, step = unit.problem.key.shape[1], sizes.kv_heads
    heads = [range(first, min(first + step, kv_heads)) for first in range(0, kv_heads, step)]
    if unit.ids.small:  # all blocks of one head in a row: its keys stay in cache
        return [[some] for some in heads]
    return [heads] if heads else []


def _blocks(unit: UnitWork, heads: list[range]) -> Iterator[RowBlock]:
    """The unit's blocks of these key heads in which some pair may attend."""
    return (RowBlock(unit, ids, some) for ids in unit.ids.blocks() for some in heads)


def _add_gradients(
    unit: UnitWork, sizes: _Sizes, incoming: Outputs, delta: Tensor, grads: tuple[Tensor | None, ...]
) -> None:
    """Add the unit's share to the gradients."""
    dq, dk, dv, d_by_query, d_by_key, d_mask = grads
    assert dq is not None and dk is not None and dv is not None
    by_key = None if d_by_key is None else unit.of_unit(d_by_key, unit.unit.keys)
    scale = unit.problem.scale
    for heads in _passes(unit, sizes):
        first, stop = heads[0].start, heads[-1].stop
        # accumulated as [D, keys]: the product (D × rows)·(rows × keys) is faster than the transposed one
        lanes = len(unit.unit.batch) * (stop - first)
        key_grad, value_grad = (x.new_zeros(lanes, x.shape[2], x.shape[1]) for x in (unit.key, unit.value))
        for block in _blocks(unit, heads):
            own = slice(None)
            if len(unit.unit.batch) == 1:
                own = slice(block.kv_heads.start - first, block.kv_heads.stop - first)
            keys = (own, slice(None), slice(block.ids.start, block.ids.stop))
            # computed again, maxima included: the log-sum-exp of large scores is too coarse to give weights
            unnormalised, total = block.unnormalised(need_slope=True)
            mine = block.incoming(incoming, delta, total.reciprocal_())
            dropped = block.drop(unnormalised, into=3)
            if mine.output is not None:
                _add_product(value_grad[keys], mine.output, block.operand(dropped))
            score_grad = block.score_grad(unnormalised, mine)  # [batch, H, rows, keys]
            if d_mask is not None:
                at = block.window(d_mask)
                at.add_(score_grad.sum_to_size(at.shape))
            if block.slope is not None:
                score_grad.mul_(block.slope)
            operand = block.operand(score_grad)  # [batch · H_kv, group · rows, keys]
            dq[block.at] = block.times(operand, unit.key_operand).mul_(scale)
            _add_product(key_grad[keys], block.rows_of(unit.problem.query), operand, alpha=scale)
            if d_by_query is not None or by_key is not None:
                rows = None if d_by_query is None else d_by_query[block.at]
                block.ids.scatter(score_grad, rows, None if by_key is None else by_key[:, block.heads])
        for whole, mine in ((dk, key_grad), (dv, value_grad)):
            at = unit.of_unit(whole, unit.unit.keys)[:, first:stop]
            at.copy_(mine.transpose(1, 2).unflatten(0, at.shape[:2]))


def _add_product(into: Tensor, rows: Tensor, pairs: Tensor, *, alpha: float = 1.0) -> None:
    """``into += alpha · rowsᵀ · pairs``, multiplied in the dtype of ``pairs``."""
    rows = rows.to(pairs.dtype).transpose(1, 2)
    if pairs.dtype == into.dtype:
        into.baddbmm_(rows, pairs, alpha=alpha)
    else:
        into.add_(rows @ pairs, alpha=alpha)
