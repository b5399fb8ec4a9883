"""Forward and backward of the primitive over blocks of query rows: what the chunked implementation runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.groups import Group, groups
from relgraph.impl.moves import BlockMoves, PartInUnit, Unit, offset_in, units
from relgraph.impl.problem import Incoming, Outputs, Problem

BLOCK_SCORES = 1 << 19
"""How many scores (batch rows · heads · queries · keys) a block holds: 2 MiB in float32, so that it stays in cache."""

BLOCK_ROWS = 256
"""Most query rows of a block."""

FEWEST_ROWS = 16
"""Fewest query rows of a block, however many keys there are: below that the products lose their speed."""


def forward(problem: Problem, *, need_sums: bool, need_mass: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, lse, and the sums by label after and before dropout (empty where not needed)."""
    query, dtype = problem.query, problem.dtype
    rows = query.shape[:3]
    output = query.new_zeros(*rows, problem.value.shape[-1], dtype=dtype)
    lse = query.new_full(rows, float("-inf"), dtype=dtype)
    sums, mass = (
        query.new_zeros(*rows, problem.columns, dtype=dtype) if needed else query.new_empty(0, dtype=dtype)
        for needed in (need_sums, need_mass)
    )
    together = groups(problem)
    for group in together:
        mine = forward(group.problem, need_sums=need_sums, need_mass=need_mass)
        for whole, part in zip((output, lse, sums, mass), mine, strict=True):
            if part.numel():
                group.queries.put(whole, part)
    for unit in _UnitWork.all(problem, together):
        for block in unit.blocks():
            weights, lse[block.at] = block.weights()
            if need_mass:
                block.moves.collect(weights, mass[block.at], None)
            weights = block.drop(weights)
            output[block.at] = block.times(weights, unit.value)
            if need_sums:
                block.moves.collect(weights, sums[block.at], None)
    return output, lse, sums, mass


def backward(
    problem: Problem, outputs: Outputs, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of query, key, value, by_query and by_key; the attention weights are computed anew."""
    dq, dk, dv, d_by_query, d_by_key = _gradients(problem, incoming, incoming.delta(outputs, problem.dtype))
    assert dq is not None and dk is not None and dv is not None
    source = problem.query.dtype
    return dq.to(source), dk.to(source), dv.to(source), d_by_query, d_by_key


def _gradients(problem: Problem, incoming: Incoming, delta: Tensor) -> tuple[Tensor | None, ...]:
    """What :func:`backward` gives, in the accumulation dtype."""
    grads = tuple(
        None if x is None else torch.zeros_like(x, dtype=problem.dtype, memory_format=torch.contiguous_format)
        for x in (problem.query, problem.key, problem.value, problem.by_query, problem.by_key)
    )
    together = groups(problem)
    for group in together:
        its_delta = group.queries.take_own(delta[..., None])
        assert its_delta is not None
        mine = _gradients(group.problem, group.incoming(incoming), its_delta[..., 0])
        sides = (group.queries, group.keys, group.keys, group.queries, group.keys)
        for whole, part, side in zip(grads, mine, sides, strict=True):
            if whole is not None and part is not None:
                side.put(whole, part)
    for unit in _UnitWork.all(problem, together, backward=True):
        unit.backward(incoming, delta, grads)
    return grads


@dataclass(frozen=True)
class _Sizes:
    """How a problem is cut: batch rows of a unit, key heads and query rows of a block, and the scores it then holds."""

    batch: int
    kv_heads: int
    rows: int
    scores: int

    @classmethod
    def of(cls, problem: Problem) -> _Sizes:
        """Blocks of at most BLOCK_SCORES, unless a few rows of one head have more; several heads only well below it."""
        plan, (batch, heads), kv_heads = problem.plan, problem.query.shape[:2], problem.key.shape[1]
        queries, keys = (
            max([1, length] if ptr is None else [1, *ptr.diff().tolist()])
            for length, ptr in ((plan.q_len, plan.q_ptr), (plan.k_len, plan.k_ptr))
        )
        group = heads // max(kv_heads, 1)
        a_row = max(group * keys, 1)
        rows = min(queries, max(min(BLOCK_ROWS, BLOCK_SCORES // a_row), FEWEST_ROWS))
        lanes = max(BLOCK_SCORES // 2 // (a_row * rows), 1)
        some_heads = max(min(lanes, kv_heads), 1)
        some_batch = max(min(lanes // max(kv_heads, 1), batch), 1)
        return cls(some_batch, some_heads, rows, some_batch * some_heads * rows * a_row)


class _UnitWork:
    """One unit of a problem: its keys and values at hand, its buffers, and its blocks of query rows and heads."""

    def __init__(self, problem: Problem, unit: Unit, number: int, buffers: list[Tensor], sizes: _Sizes) -> None:
        self.problem, self.unit, self.number, self.buffers, self.sizes = problem, unit, number, buffers, sizes
        self.key, self.value = (self._keys(x) for x in (problem.key, problem.value))
        self.parts = [
            PartInUnit(problem.plan, part, unit, start, problem.query.device)
            for part, start in zip(problem.plan.parts, problem.starts(), strict=True)
        ]
        self.causal = None if problem.causal is None else offset_in(problem.causal, unit)

    @classmethod
    def all(cls, problem: Problem, together: list[Group], *, backward: bool = False) -> Iterator[_UnitWork]:
        """The problem's units but for graphs in groups; buffers are shared, as only one block is at work at a time."""
        grouped = {graph for group in together for graph in group.graphs}
        if problem.plan.q_ptr is not None and len(grouped) == problem.plan.q_ptr.shape[0] - 1:
            return
        sizes = _Sizes.of(problem)
        count = 1 + backward + (problem.dropout_p > 0.0)
        device = problem.query.device
        buffers = [torch.empty(sizes.scores, dtype=problem.dtype, device=device) for _ in range(count)]
        for number, unit in enumerate(units(problem.plan, problem.query.shape[0], sizes.batch)):
            if unit.graph not in grouped and len(unit.queries) and len(unit.keys) and len(unit.batch):
                yield cls(problem, unit, number, buffers, sizes)

    def of_unit(self, x: Tensor, positions: range) -> Tensor:
        """The unit's share of a ``[B, heads, N, X]`` tensor."""
        batch = self.unit.batch
        return x[batch.start : batch.stop, :, positions.start : positions.stop]

    def _keys(self, x: Tensor) -> Tensor:
        """The unit's keys or values, ``[batch · H_kv, keys, D]``."""
        mine = self.of_unit(x, self.unit.keys).to(self.problem.dtype)
        return mine.flatten(0, 1)

    def blocks(self) -> Iterator[_Block]:
        """The blocks in which some pair may attend."""
        total, step = len(self.unit.queries), self.sizes.rows
        rows = [range(first, min(first + step, total)) for first in range(0, total, step)]
        kv_heads, step = self.problem.key.shape[1], self.sizes.kv_heads
        heads = [range(first, min(first + step, kv_heads)) for first in range(0, kv_heads, step)]
        if all(part.light for part in self.parts) and (self.causal is None or self.causal.fixed):
            # what the blocks carry is small: keep it, and stay with one head, whose keys are then in cache
            moves = [BlockMoves(self.parts, r, self.causal) for r in rows]
            return (_Block(self, m, h) for h in heads for m in moves if m.width)
        each = (BlockMoves(self.parts, r, self.causal) for r in rows)
        return (_Block(self, m, h) for m in each if m.width for h in heads)

    def backward(self, incoming: Incoming, delta: Tensor, grads: tuple[Tensor | None, ...]) -> None:
        """Adds this unit's share to the gradients."""
        dq, dk, dv, d_by_query, d_by_key = grads
        assert dq is not None and dk is not None and dv is not None
        # accumulated as [D, keys]: (D × rows)·(rows × keys) is the faster of the two orders
        key_grad, value_grad = (x.new_zeros(x.shape[0], x.shape[2], x.shape[1]) for x in (self.key, self.value))
        by_key = None if d_by_key is None else self.of_unit(d_by_key, self.unit.keys)
        scale = self.problem.scale
        for block in self.blocks():
            keys = slice(block.moves.start, block.moves.stop)
            lanes = block.lanes
            weights, _ = block.weights()
            grown = block.drop(weights, into=-1)
            if incoming.output is not None:
                grad = block.rows_of(incoming.output)
                value_grad[lanes, :, keys].baddbmm_(grad.transpose(1, 2), block.flat(grown))
            score_grad = block.score_grad(weights, incoming, delta)
            flat = block.flat(score_grad)
            dq[block.at] = block.times(score_grad, self.key).mul_(scale)
            key_grad[lanes, :, keys].baddbmm_(block.rows_of(self.problem.query).transpose(1, 2), flat, alpha=scale)
            if d_by_query is not None or by_key is not None:
                rows = None if d_by_query is None else d_by_query[block.at]
                block.moves.collect(score_grad, rows, None if by_key is None else by_key[:, block.heads])
        for whole, mine in ((dk, key_grad), (dv, value_grad)):
            at = self.of_unit(whole, self.unit.keys)
            at.copy_(mine.transpose(1, 2).unflatten(0, at.shape[:2]))


class _Block:
    """Some query rows of a unit, under some of its heads, against the keys they may see."""

    def __init__(self, work: _UnitWork, moves: BlockMoves, kv_heads: range) -> None:
        self.work, self.moves = work, moves
        self.kv_heads, rows = kv_heads, moves.rows
        group = work.problem.query.shape[1] // work.problem.key.shape[1]
        batch, first = work.unit.batch, work.unit.queries.start
        self.heads = slice(kv_heads.start * group, kv_heads.stop * group)
        self.at = (slice(batch.start, batch.stop), self.heads, slice(first + rows.start, first + rows.stop))
        self.shape = (len(batch), len(kv_heads) * group, len(rows), moves.width)
        # several batch rows come with all heads: either way the lanes [batch · H_kv] are a slice
        self.lanes = slice(kv_heads.start, kv_heads.stop) if len(batch) == 1 else slice(None)
        self.keep: Tensor | None = None

    def buffer(self, index: int) -> Tensor:
        """A buffer as ``[batch, heads, rows, width]``, contiguous."""
        return self.work.buffers[index][: math.prod(self.shape)].view(self.shape)

    def flat(self, pairs: Tensor) -> Tensor:
        """``[batch, heads, rows, X]`` as ``[batch · kv heads, group · rows, X]``: heads sharing keys side by side."""
        lanes = self.shape[0] * len(self.kv_heads)
        return pairs.reshape(lanes, self.shape[0] * self.shape[1] * self.shape[2] // lanes, pairs.shape[-1])

    def rows_of(self, x: Tensor) -> Tensor:
        """This block's rows of a ``[B, H, N_q, X]`` tensor, flat and in the accumulation dtype."""
        return self.flat(x[self.at].to(self.work.problem.dtype))

    def keys_of(self, x: Tensor) -> Tensor:
        """This block's keys of the unit's keys or values, ``[batch · kv heads, width, D]``."""
        return x[self.lanes, self.moves.start : self.moves.stop]

    def times(self, pairs: Tensor, keys: Tensor) -> Tensor:
        """Pairs times keys (or values), ``[batch, heads, rows, D]``."""
        return (self.flat(pairs) @ self.keys_of(keys)).view(*self.shape[:3], keys.shape[-1])

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention weights ``[batch, H, rows, width]`` in the first buffer, and the log-sum-exp of each row."""
        problem, moves = self.work.problem, self.moves
        scores = self.buffer(0)
        beta = 0
        if problem.by_query is not None or problem.by_key is not None:
            by_query = None if problem.by_query is None else problem.by_query[self.at]
            by_key = None
            if problem.by_key is not None:
                by_key = self.work.of_unit(problem.by_key, self.work.unit.keys)[:, self.heads]
            moves.spread(scores, by_query, by_key)
            beta = 1
        keys = self.keys_of(self.work.key).transpose(1, 2)
        flat = self.flat(scores)
        torch.baddbmm(flat, self.rows_of(problem.query), keys, beta=beta, alpha=problem.scale, out=flat)
        masked = moves.masked
        if problem.mask is not None:
            masked = True
            self._mask(scores, problem.mask)
        moves.hide(scores)
        top = scores.amax(-1, keepdim=True)
        torch.softmax(scores, -1, out=scores)
        unseeing = top == float("-inf")
        if not masked and top.device.type == "cpu" and not unseeing.any():  # looking costs nothing here
            return scores, (top - scores.amax(-1, keepdim=True).log()).squeeze(-1)
        scores.masked_fill_(unseeing, 0.0)
        lse = top - scores.amax(-1, keepdim=True).log()
        return scores, lse.masked_fill_(unseeing, float("-inf")).squeeze(-1)

    def _window(self, pairs: Tensor) -> Tensor:
        """This block's pairs of a tensor that broadcasts to ``[B, H, N_q, N_k]``."""
        keys = self.work.unit.keys.start
        wanted = (*self.at, slice(keys + self.moves.start, keys + self.moves.stop))
        return pairs[tuple(slice(None) if n == 1 else at for n, at in zip(pairs.shape, wanted, strict=True))]

    def _mask(self, scores: Tensor, mask: Tensor) -> None:
        window = self._window(mask)
        if mask.dtype == torch.bool:
            scores.masked_fill_(~window, float("-inf"))
        else:
            scores.add_(window)

    def drop(self, weights: Tensor, into: int | None = None) -> Tensor:
        """The weights after dropout, in place or in another buffer."""
        problem = self.work.problem
        if problem.dropout_p == 0.0:
            return weights
        if problem.keep is not None:
            keep = self._window(problem.keep)
        else:
            number = ((self.work.number * problem.key.shape[1] + self.kv_heads.start) << 32) + self.moves.rows.start
            keep = problem.draw_keep(tuple(weights.shape), number)
        self.keep = keep / (1.0 - problem.dropout_p)
        return torch.mul(weights, self.keep, out=weights if into is None else self.buffer(into))

    def score_grad(self, weights: Tensor, incoming: Incoming, delta: Tensor) -> Tensor:
        """Ds = α (dα - δ) in the second buffer."""
        grad = self.buffer(1)
        rest = delta[self.at][..., None]
        # δ rides along with what is spread, where every pair takes just one entry of the first part
        folded = self.keep is None and self.work.parts[0].part.csr is None
        if incoming.sums is None:
            grad.copy_((-rest if folded else torch.zeros_like(rest)).expand(grad.shape))
        else:
            sums = incoming.sums[self.at]
            self.moves.spread(grad, self._less_delta(sums, rest) if folded else sums, None)
        if incoming.output is not None:
            flat = self.flat(grad)
            values = self.keys_of(self.work.value).transpose(1, 2)
            torch.baddbmm(flat, self.rows_of(incoming.output), values, out=flat)
        if self.keep is not None:
            grad.mul_(self.keep)
            if incoming.mass is not None:
                spread = self.buffer(2)
                self.moves.spread(spread, incoming.mass[self.at], None)
                grad.add_(spread)
        if not folded:
            grad.sub_(rest)
        return grad.mul_(weights)

    def _less_delta(self, sums: Tensor, delta: Tensor) -> Tensor:
        """DP with δ taken off the first part's columns, so that spreading takes it off every pair once."""
        columns = self.work.parts[0].zero_column + 1
        return torch.cat([sums[..., :columns] - delta, sums[..., columns:]], -1)
