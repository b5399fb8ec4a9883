"""Forward and backward of the primitive over blocks of query rows: what the chunked implementation runs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from relgraph.impl import listed
from relgraph.impl.moves import BlockMoves, PartInUnit, Unit, offset_in, units
from relgraph.impl.problem import Incoming, Outputs, Problem

BLOCK_SCORES = 1 << 20
"""How many scores (batch rows · heads · queries · keys) a block holds: 4 MiB in float32, so that it stays in cache."""

BLOCK_ROWS = 64
"""Query rows of a block where the bound above allows."""


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
    if problem.edges_alone:
        listed.forward(problem, output, lse, sums if need_sums else None, mass if need_mass else None)
        return output, lse, sums, mass
    for unit in _UnitWork.all(problem):
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
    dtype = problem.dtype
    delta = incoming.delta(outputs, dtype)
    grads = tuple(
        None if x is None else torch.zeros_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        for x in (problem.query, problem.key, problem.value, problem.by_query, problem.by_key)
    )
    if problem.edges_alone:
        listed.backward(problem, incoming, delta, grads)
    else:
        for unit in _UnitWork.all(problem, backward=True):
            unit.backward(incoming, delta, grads)
    dq, dk, dv, d_by_query, d_by_key = grads
    assert dq is not None and dk is not None and dv is not None
    source = problem.query.dtype
    return dq.to(source), dk.to(source), dv.to(source), d_by_query, d_by_key


class _UnitWork:
    """One unit of a problem: its keys and values at hand, its buffers, and its blocks of query rows."""

    def __init__(self, problem: Problem, unit: Unit, number: int, buffers: list[Tensor], rows: int) -> None:
        self.problem, self.unit, self.number, self.buffers, self.block_rows = problem, unit, number, buffers, rows
        self.key, self.value = (self._keys(x) for x in (problem.key, problem.value))
        self.by_key = None if problem.by_key is None else self._slice(problem.by_key, unit.keys)
        self.parts = [
            PartInUnit(problem.plan, part, unit, start, problem.query.device)
            for part, start in zip(problem.plan.parts, problem.starts(), strict=True)
        ]
        self.causal = None if problem.causal is None else offset_in(problem.causal, unit)

    @classmethod
    def all(cls, problem: Problem, *, backward: bool = False) -> Iterator[_UnitWork]:
        """The problem's units; buffers are shared, as only one block is at work at a time."""
        plan, (batch, heads) = problem.plan, problem.query.shape[:2]
        keys = max(plan.k_len, 1) if plan.k_ptr is None else max([1, *plan.k_ptr.diff().tolist()])
        queries = max(plan.q_len, 1) if plan.q_ptr is None else max([1, *plan.q_ptr.diff().tolist()])
        rows = min(queries, BLOCK_ROWS)
        together = max(BLOCK_SCORES // max(heads * rows * keys, 1), 1)
        size = min(together, batch) * heads * rows * keys
        count = 1 + backward + (problem.dropout_p > 0.0)
        buffers = [torch.empty(size, dtype=problem.dtype, device=problem.query.device) for _ in range(count)]
        for number, unit in enumerate(units(plan, batch, together)):
            if len(unit.queries) and len(unit.keys) and len(unit.batch):
                yield cls(problem, unit, number, buffers, rows)

    def _slice(self, x: Tensor, positions: range) -> Tensor:
        batch = self.unit.batch
        return x[batch.start : batch.stop, :, positions.start : positions.stop]

    def _keys(self, x: Tensor) -> Tensor:
        """The unit's keys or values, ``[batch · H_kv, keys, D]``."""
        mine = self._slice(x, self.unit.keys).to(self.problem.dtype)
        return mine.reshape(-1, *mine.shape[2:])

    def blocks(self) -> Iterator[_Block]:
        """The blocks in which some pair may attend."""
        total = len(self.unit.queries)
        for first in range(0, total, self.block_rows):
            rows = range(first, min(first + self.block_rows, total))
            block = _Block(self, rows)
            if block.moves.width:
                yield block

    def backward(self, incoming: Incoming, delta: Tensor, grads: tuple[Tensor | None, ...]) -> None:
        """Adds this unit's share to the gradients."""
        dq, dk, dv, d_by_query, d_by_key = grads
        assert dq is not None and dk is not None and dv is not None
        key_grad, value_grad = torch.zeros_like(self.key), torch.zeros_like(self.value)
        key_table_grad = None if d_by_key is None else self._slice(d_by_key, self.unit.keys)
        scale = self.problem.scale
        for block in self.blocks():
            keys = slice(block.moves.start, block.moves.stop)
            weights, _ = block.weights()
            grown = block.drop(weights, into=-1)
            if incoming.output is not None:
                grad = block.rows_of(incoming.output)
                value_grad[:, keys].baddbmm_(block.flat(grown).transpose(1, 2), grad)
            score_grad = block.score_grad(weights, incoming, delta)
            flat = block.flat(score_grad)
            dq[block.at] = (flat @ self.key[:, keys]).mul_(scale).view(dq[block.at].shape)
            key_grad[:, keys].baddbmm_(flat.transpose(1, 2), block.rows_of(self.problem.query), alpha=scale)
            if d_by_query is not None or key_table_grad is not None:
                block.moves.collect(score_grad, None if d_by_query is None else d_by_query[block.at], key_table_grad)
        for whole, mine in ((dk, key_grad), (dv, value_grad)):
            at = self._slice(whole, self.unit.keys)
            at.copy_(mine.view(at.shape))


class _Block:
    """Some query rows of a unit against the keys they may see."""

    def __init__(self, work: _UnitWork, rows: range) -> None:
        self.work, self.rows = work, rows
        self.moves = BlockMoves(work.parts, rows, work.causal)
        batch, first = work.unit.batch, work.unit.queries.start
        self.at = (slice(batch.start, batch.stop), slice(None), slice(first + rows.start, first + rows.stop))
        self.heads, self.kv_heads = work.problem.query.shape[1], work.problem.key.shape[1]
        self.keep: Tensor | None = None

    def buffer(self, index: int) -> Tensor:
        """A buffer as ``[batch, H, rows, width]``, contiguous."""
        shape = (len(self.work.unit.batch), self.heads, len(self.rows), self.moves.width)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        return self.work.buffers[index][:size].view(shape)

    def flat(self, pairs: Tensor) -> Tensor:
        """``[batch, H, rows, X]`` as ``[batch · H_kv, group · rows, X]``: heads that share keys side by side."""
        return pairs.reshape(len(self.work.unit.batch) * self.kv_heads, -1, pairs.shape[-1])

    def rows_of(self, x: Tensor) -> Tensor:
        """This block's rows of a ``[B, H, N_q, X]`` tensor, flat and in the accumulation dtype."""
        return self.flat(x[self.at].to(self.work.problem.dtype))

    def times(self, pairs: Tensor, keys: Tensor) -> Tensor:
        """Pairs times keys (or values), ``[batch, H, rows, D]``."""
        product = self.flat(pairs) @ keys[:, self.moves.start : self.moves.stop]
        return product.view(*pairs.shape[:3], -1)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention weights ``[batch, H, rows, width]`` in the first buffer, and the log-sum-exp of each row."""
        problem, moves = self.work.problem, self.moves
        scores = self.buffer(0)
        beta = 0
        if problem.by_query is not None or problem.by_key is not None:
            by_query = None if problem.by_query is None else problem.by_query[self.at]
            moves.spread(scores, by_query, self.work.by_key)
            beta = 1
        keys = self.work.key[:, moves.start : moves.stop].transpose(1, 2)
        flat = self.flat(scores)
        torch.baddbmm(flat, self.rows_of(problem.query), keys, beta=beta, alpha=problem.scale, out=flat)
        masked = moves.masked
        if problem.mask is not None:
            masked = True
            self._mask(scores, problem.mask)
        moves.hide(scores)
        top = scores.amax(-1, keepdim=True)
        torch.softmax(scores, -1, out=scores)
        if not masked:
            return scores, (top - scores.amax(-1, keepdim=True).log()).squeeze(-1)
        unseeing = top == float("-inf")
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
            number = self.work.number * (1 << 20) + self.rows.start
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
            values = self.work.value[:, self.moves.start : self.moves.stop].transpose(1, 2)
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
