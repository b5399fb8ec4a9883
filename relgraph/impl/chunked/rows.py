"""One block, some query rows and heads against the keys they may see: scores, weights and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.impl.call import Outputs, Problem
from relgraph.impl.chunked.moves import BlockMoves, UnitMoves
from relgraph.impl.chunked.parts import Unit

PER_LN2 = 1 / math.log(2.0)
"""exp(x) is computed as 2^(x · PER_LN2), the cheapest exponential. Scores stay to base e: scaling would round them."""


class UnitWork:
    """One unit of a problem: its keys and values, buffers for one block at a time, and its labels."""

    def __init__(self, problem: Problem, unit: Unit, number: int, buffers: list[Tensor], moves: UnitMoves) -> None:
        self.problem, self.unit, self.number, self.buffers, self.moves = problem, unit, number, buffers, moves
        self.sums: Tensor | None = None  # dP - δ, if δ can be folded into dP
        self.key, self.value = (self._keys(x, problem.dtype) for x in (problem.key, problem.value))
        self.factor = factor_dtype(problem)
        self.key_factor, self.value_factor = (self._keys(x, self.factor) for x in (problem.key, problem.value))

    def of_unit(self, x: Tensor, positions: range) -> Tensor:
        """The unit's share of a ``[B, heads, N, X]`` tensor."""
        batch = self.unit.batch
        return x[batch.start : batch.stop, :, positions.start : positions.stop]

    def _keys(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The unit's keys or values, ``[batch · H_kv, keys, D]``."""
        return self.of_unit(x, self.unit.keys).to(dtype).flatten(0, 1)


def factor_dtype(problem: Problem) -> torch.dtype:
    """The dtype of weights and their gradients as factors of products with rows, keys or values.

    bfloat16 if the inputs are bfloat16 and the processor multiplies it (several times as fast, summed in float32);
    otherwise the accumulation dtype. Scores, softmax and sums by label are never rounded.
    """
    fast = problem.query.device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return torch.bfloat16 if fast and problem.query.dtype == torch.bfloat16 else problem.dtype


def fold_row_term(problem: Problem, table: Tensor | None, term: Tensor) -> Tensor | None:
    """Subtract a per-row scalar ``[B, H, N_q]`` from the table ``[B, H, N_q, columns]``, so that the gather applies it.

    None without a table, or if the first part has listed pairs: these may take several entries, and each would
    subtract.
    """
    part = problem.plan.parts[0]
    if table is None or part.csr is not None:
        return None
    folded = table.clone(memory_format=torch.contiguous_format)
    folded[..., : part.num_labels + 1].sub_(term[..., None])
    return folded


class Shares(NamedTuple):
    """A block's rows of the incoming gradients, each times 1 / total of its row.

    Normalising these costs D products per row; normalising the weights would cost one per pair. Fields: output (flat),
    sums (minus δ with ``folded_delta``), mass, and δ as a column.
    """

    output: Tensor | None
    sums: Tensor | None
    mass: Tensor | None
    delta: Tensor
    folded_delta: bool


class RowBlock:
    """Some query rows and heads of a unit against the keys they may see."""

    def __init__(self, work: UnitWork, moves: BlockMoves, kv_heads: range) -> None:
        self.work, self.moves = work, moves
        self.kv_heads, rows = kv_heads, moves.rows
        group = work.problem.query.shape[1] // work.problem.key.shape[1]
        batch, first = work.unit.batch, work.unit.queries.start
        self.heads = slice(kv_heads.start * group, kv_heads.stop * group)
        self.at = (slice(batch.start, batch.stop), self.heads, slice(first + rows.start, first + rows.stop))
        self.shape = (len(batch), len(kv_heads) * group, len(rows), moves.width)
        # a block of several batch rows always has all heads, so its lanes [batch · H_kv] are one slice
        self.lanes = slice(kv_heads.start, kv_heads.stop) if len(batch) == 1 else slice(None)
        self.keep: Tensor | None = None

    def buffer(self, index: int) -> Tensor:
        """A buffer as ``[batch, heads, rows, width]``, contiguous."""
        return self.work.buffers[index][: math.prod(self.shape)].view(self.shape)

    def flat(self, pairs: Tensor) -> Tensor:
        """``[batch, heads, rows, X]`` as ``[batch · kv heads, group · rows, X]``: one matrix per key head."""
        lanes = self.shape[0] * len(self.kv_heads)
        return pairs.reshape(lanes, self.shape[0] * self.shape[1] * self.shape[2] // lanes, pairs.shape[-1])

    def rows_of(self, x: Tensor) -> Tensor:
        """This block's rows of a ``[B, H, N_q, X]`` tensor, flat and in the accumulation dtype."""
        return self.flat(x[self.at].to(self.work.problem.dtype))

    def keys_of(self, x: Tensor) -> Tensor:
        """This block's keys of the unit's keys or values, ``[batch · kv heads, width, D]``."""
        return x[self.lanes, self.moves.start : self.moves.stop]

    def factor(self, pairs: Tensor) -> Tensor:
        """Pairs as the factor of a product, flat."""
        return self.flat(pairs).to(self.work.factor)

    def times(self, factor: Tensor, keys: Tensor) -> Tensor:
        """Pairs times keys (or values), ``[batch, heads, rows, D]``, in the accumulation dtype."""
        product = factor @ self.keys_of(keys)
        return product.view(*self.shape[:3], keys.shape[-1]).to(self.work.problem.dtype)

    def unnormalised(self) -> tuple[Tensor, Tensor, Tensor]:
        """Unnormalised softmax weights ``[batch, H, rows, width]`` in the first buffer, their totals, the log-sum-exp.

        Totals are ``[batch, H, rows, 1]``, 1 for a row that sees nothing, whose weights are 0; the log-sum-exp is
        ``[batch, H, rows]``.
        """
        scores = self._scores()
        top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
        total = scores.sub_(top).mul_(PER_LN2).exp2_().sum(-1, keepdim=True)
        lse = top.add_(total.log())
        # the largest weight of a row is 1 here, so only a row that sees nothing has a total below 1
        return scores, total.clamp_(min=1.0), lse.squeeze(-1)

    def _scores(self) -> Tensor:
        """Scores, in the first buffer."""
        problem, moves = self.work.problem, self.moves
        by_query = None if problem.by_query is None else problem.by_query[self.at]
        scores = self.buffer(0)
        beta = 0.0
        if by_query is not None or problem.by_key is not None:
            by_key = None
            if problem.by_key is not None:
                by_key = self.work.of_unit(problem.by_key, self.work.unit.keys)[:, self.heads]
            moves.gather(scores, by_query, by_key)  # B[i, l_ij] + C[j, l_ij]
            beta = 1.0
        keys = self.keys_of(self.work.key).transpose(1, 2)
        flat = self.flat(scores)
        torch.baddbmm(flat, self.rows_of(problem.query), keys, beta=beta, alpha=problem.scale, out=flat)
        if problem.mask is not None:
            self._mask(scores, problem.mask)
        moves.hide(scores)
        return scores

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

    def shares(self, incoming: Outputs, delta: Tensor, factor: Tensor) -> Shares:
        """The block's rows of the gradients times ``factor`` ``[batch, H, rows, 1]``."""

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[self.at].to(factor.dtype) * factor

        output = of(incoming.output)
        folded_delta = self.work.sums is not None
        sums = of(self.work.sums) if folded_delta else of(incoming.sums)
        column = delta[self.at][..., None] * factor
        return Shares(None if output is None else self.flat(output), sums, of(incoming.mass), column, folded_delta)

    def score_grad(self, unnormalised: Tensor, mine: Shares) -> Tensor:
        """The scores' gradient α (dα - δ) in the second buffer, from unnormalised weights."""
        grad = self.buffer(1)
        folded = self.keep is None and (mine.sums is None or mine.folded_delta)
        if mine.sums is None:
            grad.copy_((-mine.delta if folded else torch.zeros_like(mine.delta)).expand(grad.shape))
        else:
            self.moves.gather(grad, mine.sums, None)
        if mine.output is not None:
            flat = self.flat(grad)
            torch.baddbmm(flat, mine.output, self.keys_of(self.work.value).transpose(1, 2), out=flat)
        if self.keep is not None:
            grad.mul_(self.keep)
            if mine.mass is not None:
                spread = self.buffer(2)
                self.moves.gather(spread, mine.mass, None)
                grad.add_(spread)
        if not folded:
            grad.sub_(mine.delta)
        return grad.mul_(unnormalised)
