"""The weighted labels of all pairs of a part: M gathers of a table over pairs, M sums by label."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.impl.terms import with_zero_row
from relgraph.plan import NOT_ATTENDING, LabelPlan, Part, dense_ids, listed_pairs


class WeightedIds:
    """The ids and weights of one part for every pair, ``[B or 1, 1, N_q, N_k]`` for each of the M labels of a pair."""

    def __init__(self, plan: LabelPlan, part: Part, weights: Tensor, device: torch.device) -> None:
        codes, ids = dense_ids(plan, part, device), part.weighted
        assert ids is not None
        everywhere = part.complete and plan.q_ptr is None
        self.size = part.num_labels
        self.attends = None if everywhere else (codes > NOT_ATTENDING)[:, None]
        slots = torch.where(ids < 0, self.size, ids.long())
        if part.csr is not None:
            at, order = listed_pairs(plan, part.csr), part.csr.order
            shape = (*codes.shape, ids.shape[-1])
            slots = slots.new_full(shape, self.size).index_put(at, slots[order])
            weights = weights.new_zeros(shape).index_put(at, weights[order])
        self.slots, self.weights = slots[:, None], weights[:, None]

    def gather(self, table: Tensor, *, rows: bool) -> Tensor:
        """Σ_m w · ``[.., N_q, R+1]`` at (i, l_ijm), or ``[.., N_k, R+1]`` at (j, l_ijm): ``[B, H, N_q, N_k]``."""
        total = table.new_zeros(())
        for slots, weights in self._each(table):
            slots = slots.expand(*table.shape[:2], -1, -1)
            pairs = table.gather(-1, slots) if rows else table.gather(-1, slots.mT).mT
            total = total + weights * pairs
        return total

    def rows(self, table: Tensor) -> Tensor:
        """The weighted sums of rows of a table, ``[B or 1, H or 1, N_q, N_k, D]``."""
        table = with_zero_row(table)
        table = table.reshape((1,) * (4 - table.dim()) + table.shape)
        batch, head = (torch.arange(n, device=table.device) for n in table.shape[:2])
        at = batch[:, None, None, None], head[:, None, None]
        total = table.new_zeros(())
        for slots, weights in self._each(table):
            total = total + weights[..., None] * table[(*at, slots)]
        return total

    def scatter(self, weights: Tensor) -> Tensor:
        """P[i, r]: the weights of row i times those of the labels, summed by label, ``[B, H, N_q, R+1]``."""
        batch, heads, q_len, _ = weights.shape
        sums = weights.new_zeros(batch, heads, q_len, self.size + 1)
        for slots, own in self._each(weights):
            sums = sums.scatter_add(-1, slots.expand(batch, heads, -1, -1), weights * own)
        return sums

    def _each(self, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Slots and weights of each of the labels of a pair, one after the other."""
        return list(zip(self.slots.unbind(-1), self.weights.to(like.dtype).unbind(-1), strict=True))
