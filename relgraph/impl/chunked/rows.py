"""One block, some query rows and heads against the keys they may see: scores, weights and their gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relgraph.impl import draw
from relgraph.impl.chunked.ids import BlockIds, UnitIds
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.units import Unit
from relgraph.score import Activation

PER_LN2 = 1 / math.log(2.0)
"""exp(x) is computed as 2^(x · PER_LN2), the cheapest exponential on a CPU.

Scores stay to base e: scaling would round them.
"""


class UnitWork:
    """One unit of a problem: its keys and values, buffers for one block at a time, and its ids."""

    def __init__(self, problem: Problem, unit: Unit, buffers: list[Tensor], ids: UnitIds) -> None:
        self.problem, self.unit, self.buffers, self.ids = problem, unit, buffers, ids
        self.folded_sums: Tensor | None = None  # dP - δ, if δ can be folded into dP
        self.key, self.value = (self._keys(x, problem.dtype) for x in (problem.key, problem.value))
        self.operand_dtype = operand_dtype(problem)
        self.key_operand, self.value_operand = (self._keys(x, self.operand_dtype) for x in (problem.key, problem.value))

    def of_unit(self, x: Tensor, positions: range) -> Tensor:
        """The unit's share of a ``[B, heads, N, X]`` tensor."""
        batch = self.unit.batch
        return x[batch.start : batch.stop, :, positions.start : positions.stop]

    def _keys(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The unit's keys or values, ``[batch · H_kv, keys, D]``."""
        return self.of_unit(x, self.unit.keys).to(dtype).flatten(0, 1)


def operand_dtype(problem: Problem) -> torch.dtype:
    """The dtype of weights and their gradients in products with rows, keys or values.

    bfloat16 if the inputs are bfloat16 and the processor multiplies it (several times as fast, summed in float32);
    otherwise the accumulation dtype. Scores, softmax and sums by label are never rounded.
    """
    fast = problem.query.device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return torch.bfloat16 if fast and problem.query.dtype == torch.bfloat16 else problem.dtype


def fold_row_term(problem: Problem, table: Tensor | None, term: Tensor) -> Tensor | None:
    """Subtract a per-row scalar ``[B, H, N_q]`` from the table ``[B, H, N_q, columns]``, so that the gather applies it.

    None without a table, or if the first part has listed pairs, because a listed pair may read several entries, and
    each would subtract.
    """
    part = problem.plan.parts[0]
    if table is None or part.csr is not None:
        return None
    folded = table.clone(memory_format=torch.contiguous_format)
    folded[..., : part.num_labels + 1].sub_(term[..., None])
    return folded


class RowBlock:
    """Some query rows and heads of a unit against the keys they may see."""

    def __init__(self, work: UnitWork, ids: BlockIds, kv_heads: range) -> None:
        self.work, self.ids = work, ids
        self.kv_heads, rows = kv_heads, ids.rows
        group = work.problem.query.shape[1] // work.problem.key.shape[1]
        batch, first = work.unit.batch, work.unit.queries.start
        self.heads = slice(kv_heads.start * group, kv_heads.stop * group)
        self.at = (slice(batch.start, batch.stop), self.heads, slice(first + rows.start, first + rows.stop))
        self.shape = (len(batch), len(kv_heads) * group, len(rows), ids.width)
        # a block of several batch rows always has all heads, so its lanes [batch · H_kv] are contiguous
        self.lanes = slice(kv_heads.start, kv_heads.stop) if len(batch) == 1 else slice(None)
        self.keep: Tensor | None = None
        self.slope: Tensor | None = None  # derivative of the named score, if asked for

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
        return x[self.lanes, self.ids.start : self.ids.stop]

    def operand(self, pairs: Tensor) -> Tensor:
        """Pairs as an operand of a product: flat, in the dtype of such operands."""
        return self.flat(pairs).to(self.work.operand_dtype)

    def times(self, operand: Tensor, keys: Tensor) -> Tensor:
        """Pairs times keys (or values), ``[batch, heads, rows, D]``, in the accumulation dtype."""
        product = operand @ self.keys_of(keys)
        return product.view(*self.shape[:3], keys.shape[-1]).to(self.work.problem.dtype)

    def unnormalised(self, lse: Tensor | None = None, *, need_slope: bool = False) -> tuple[Tensor, Tensor]:
        """Unnormalised softmax weights ``[batch, H, rows, width]`` in the first buffer, and their totals.

        Totals are ``[batch, H, rows, 1]``, 1 for a row that sees nothing, whose weights are 0. The log-sum-exp is
        written into the rows of this block of ``lse``, ``[B, H, N_q]``. With ``need_slope`` the derivative of a named
        score is kept in the last buffer.
        """
        scores = self._scores(need_slope)
        top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
        scores.sub_(top)
        scores.mul_(PER_LN2).exp2_()
        total = scores.sum(-1, keepdim=True)
        if lse is not None:
            torch.add(top.squeeze(-1), total.squeeze(-1).log(), out=lse[self.at])
        # the largest weight of a row is 1 here, so only a row that sees nothing has a total below 1
        return scores, total.clamp_(min=1.0)

    def _scores(self, need_slope: bool) -> Tensor:
        """Finished scores, masked, in the first buffer."""
        problem, ids = self.work.problem, self.ids
        by_query = None if problem.by_query is None else problem.by_query[self.at]
        scores = self.buffer(0)
        beta = 0.0
        if by_query is not None or problem.by_key is not None:
            by_key = None
            if problem.by_key is not None:
                by_key = self.work.of_unit(problem.by_key, self.work.unit.keys)[:, self.heads]
            ids.gather(scores, by_query, by_key)  # B[i, l_ij] + C[j, l_ij]
            beta = 1.0
        keys = self.keys_of(self.work.key).transpose(1, 2)
        flat = self.flat(scores)
        torch.baddbmm(flat, self.rows_of(problem.query), keys, beta=beta, alpha=problem.scale, out=flat)
        if problem.score is not None:
            assert not isinstance(problem.score, Activation)  # only compiled kernels take one
            problem.score._apply_(scores)
            if need_slope:
                self.slope = problem.score._derivative_(self.buffer(-1).copy_(scores))
        if problem.mask is not None:
            self._mask(scores, problem.mask)
        ids.hide(scores)
        return scores

    def window(self, pairs: Tensor) -> Tensor:
        """This block's pairs of a tensor that broadcasts to ``[B, H, N_q, N_k]``."""
        keys = self.work.unit.keys.start
        wanted = (*self.at, slice(keys + self.ids.start, keys + self.ids.stop))
        return pairs[tuple(slice(None) if n == 1 else at for n, at in zip(pairs.shape, wanted, strict=True))]

    def _mask(self, scores: Tensor, mask: Tensor) -> None:
        window = self.window(mask)
        if mask.dtype == torch.bool:
            scores.masked_fill_(~window, float("-inf"))
        else:
            scores.add_(window)

    def drop(self, weights: Tensor, into: int | None = None) -> Tensor:
        """The weights after dropout, in place or in another buffer. The mask takes buffer 2, and 1 for a moment."""
        problem = self.work.problem
        if problem.dropout_p == 0.0:
            return weights
        self.keep = self.buffer(2)
        if problem.keep is not None:
            self.keep.copy_(self.window(problem.keep))
        else:
            torch.ge(self._numbers(), draw.smallest_kept(problem.dropout_p), out=self.keep)
        self.keep.div_(1.0 - problem.dropout_p)
        return torch.mul(weights, self.keep, out=weights if into is None else self.buffer(into))

    def _numbers(self) -> Tensor:
        """The random number of each pair, in buffer 1."""
        drawn, unit = self.work.problem.drawn, self.work.unit
        assert drawn is not None
        own = slice(unit.batch.start, unit.batch.stop) if drawn.keys.shape[0] > 1 else slice(None)
        seen = slice(unit.keys.start + self.ids.start, unit.keys.start + self.ids.stop)
        rows, keys = drawn.rows[self.at], drawn.keys[own, None, None, seen]
        room = self._integers(1), self._integers(2)
        return draw.numbers(rows[..., :1], rows[..., 1:], keys, room)

    def _integers(self, index: int) -> Tensor:
        """A buffer as int32 numbers of pairs."""
        return self.work.buffers[index].view(torch.int32)[: math.prod(self.shape)].view(self.shape)

    def incoming(self, grads: Outputs, delta: Tensor, share: Tensor) -> Outputs:
        """This block's rows of the incoming gradients, each times ``share``, the 1 / total of its row.

        Shares are ``[batch, H, rows, 1]``. They cost D products per row; normalising the weights would cost one per
        pair. The gradient of the log-sum-exp is -δ here, as both act on all scores of a row alike. The output is flat.
        Sums are minus δ if the unit has ``folded_sums``.
        """

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[self.at].to(share.dtype) * share

        output, folded = of(grads.output), self.work.folded_sums
        sums = of(grads.sums if folded is None else folded)
        lse = -delta[self.at][..., None] * share
        return Outputs(None if output is None else self.flat(output), lse, sums, of(grads.mass))

    def score_grad(self, unnormalised: Tensor, mine: Outputs) -> Tensor:
        """The gradient α (dα - δ) of the masked scores in the second buffer, from unnormalised weights."""
        grad = self.buffer(1)
        # -δ goes in first, with the sums or in their place; dropout forbids this, as it multiplies dα but not δ
        has_delta = self.keep is None and (mine.sums is None or self.work.folded_sums is not None)
        if mine.sums is not None:
            self.ids.gather(grad, mine.sums, None)
        elif has_delta:
            grad.copy_(mine.lse.expand(grad.shape))
        else:
            grad.zero_()
        if mine.output is not None:
            flat = self.flat(grad)  # [batch · kv heads, group · rows, width]
            torch.baddbmm(flat, mine.output, self.keys_of(self.work.value).transpose(1, 2), out=flat)
        if self.keep is not None:
            grad.mul_(self.keep)
            if mine.mass is not None:
                gathered = self.buffer(3)
                self.ids.gather(gathered, mine.mass, None)
                grad.add_(gathered)
        if not has_delta:
            grad.add_(mine.lse)
        return grad.mul_(unnormalised)
