"""The split term in plain torch: N_q · N_k scores, gathers and sums by label, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from relgraph.impl.call import Answer, Call, accumulation_dtype
from relgraph.impl.terms import (
    add_value_tables,
    attend_mask,
    query_tables,
    repeat_heads,
    score_tables,
    softmax_rows,
    split_mass,
)
from relgraph.plan import EXTRA, NOT_ATTENDING, LabelPlan, Part, dense_ids, listed_pairs


def attend(call: Call) -> Answer:
    """Attention with every score in memory at once."""
    dtype = accumulation_dtype(call.query.dtype)
    heads = call.query.shape[1]
    query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
    sizes = call.plan.num_labels
    by_query = score_tables(query, call.tables, sizes, call.scale)
    by_key = query_tables(key, heads, call.tables, sizes, call.scale)
    scores = query @ repeat_heads(key, heads).transpose(-1, -2) * call.scale
    allowed = attend_mask(call)
    labels = [_PartIds(call.plan, part, query.device) for part in call.plan.parts]
    start = 0
    for ids in labels:
        stop = start + ids.size + 1
        if by_query is not None:
            scores = scores + ids.gather(by_query[..., start:stop], rows=True)
        if by_key is not None:
            scores = scores + ids.gather(by_key[..., start:stop], rows=False)
        if ids.attends is not None:
            allowed = ids.attends if allowed is None else allowed & ids.attends
        start = stop
    if call.mask is not None and call.mask.dtype != torch.bool:
        scores = scores + call.mask.to(dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    weights, lse = softmax_rows(scores)
    dropped = weights
    if call.dropout_p > 0.0:
        dropped = (
            dropout(weights, call.dropout_p) if call.keep is None else weights * call.keep / (1.0 - call.dropout_p)
        )
    output = dropped @ repeat_heads(value, heads)
    if any(tables.value is not None for tables in call.tables):
        output = add_value_tables(output, _sum_by_label(labels, dropped), call.tables, sizes)
    mass = split_mass(_sum_by_label(labels, weights), sizes) if call.need_mass else None
    return Answer(output, lse, mass, weights if call.need_weights else None)


def _sum_by_label(labels: list[_PartIds], weights: Tensor) -> Tensor:
    sums = [ids.scatter(weights) for ids in labels]
    return sums[0] if len(sums) == 1 else torch.cat(sums, -1)


class _PartIds:
    """The ids of one part for every pair: gather a table over pairs, scatter pairs into sums by label."""

    def __init__(self, plan: LabelPlan, part: Part, device: torch.device) -> None:
        ids = dense_ids(plan, part, device)
        self.size = part.num_labels
        everywhere = part.complete and plan.q_ptr is None
        self.attends = None if everywhere else (ids > NOT_ATTENDING)[:, None]
        labeled = part.labeled and plan.q_ptr is None
        self.slots = (ids if labeled else torch.where(ids < 0, self.size, ids))[:, None]
        self.csr = part.csr if part.csr is not None and part.csr.parallel else None
        self.plan = plan

    def gather(self, table: Tensor, *, rows: bool) -> Tensor:
        """``[.., N_q, R+1]`` at (i, l_ij), or ``[.., N_k, R+1]`` at (j, l_ij): ``[B, H, N_q, N_k]``."""
        if self.size == 0:
            return table.new_zeros(())
        batch, heads = table.shape[:2]
        slots = self.slots.expand(batch, heads, -1, -1)
        pairs = table.gather(-1, slots) if rows else table.gather(-1, slots.transpose(-1, -2)).transpose(-1, -2)
        if self.csr is None:
            return pairs
        row, extra, at, shape = self._extra(batch, heads, rows=rows)
        values = table.flatten(-2).gather(-1, row + extra)
        return pairs.flatten(-2).scatter_add(-1, at, values).view(shape)

    def scatter(self, weights: Tensor) -> Tensor:
        """P[i, r]: the weights of row i summed by label, ``[B, H, N_q, R+1]``."""
        batch, heads, q_len, _ = weights.shape
        if q_len == 1 and self.csr is None:
            return self._scatter_row(weights)
        slots = self.slots.expand(batch, heads, -1, -1)
        sums = weights.new_zeros(batch, heads, q_len, self.size + 1).scatter_add(-1, slots, weights)
        if self.csr is None:
            return sums
        row, extra, at, _ = self._extra(batch, heads, rows=True)
        taken = weights.flatten(-2).gather(-1, at)
        return sums.flatten(-2).scatter_add(-1, row + extra, taken).view(sums.shape)

    def _scatter_row(self, weights: Tensor) -> Tensor:
        """P of a single long row, in four interleaved sums: additions to one label then wait less for each other."""
        batch, heads, _, k_len = weights.shape
        turn = torch.arange(k_len, device=weights.device) % 4
        at = (self.slots * 4 + turn).expand(batch, heads, -1, -1)
        sums = weights.new_zeros(batch, heads, 1, (self.size + 1) * 4).scatter_add(-1, at, weights)
        return sums.unflatten(-1, (self.size + 1, 4)).sum(-1)

    def _extra(self, batch: int, heads: int, *, rows: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
        """Indices of the further labels of parallel pairs in flat tables and flat scores, ``[B, H, P]`` each."""
        csr, plan = self.csr, self.plan
        assert csr is not None
        b, i, j = listed_pairs(plan, csr)
        slot = torch.where((csr.role == EXTRA) & (csr.ids >= 0), csr.ids, self.size)
        if csr.batch > 1:  # pairs of other batch rows look up the column of zeros, so they add nothing
            mine = b == torch.arange(batch, device=b.device)[:, None]
            slot = torch.where(mine, slot, self.size)
        else:
            slot = slot.expand(batch, -1)
        base = (i if rows else j) * (self.size + 1)
        at = (i * plan.k_len + j).expand(batch, -1)
        row, extra, at = (x[:, None].expand(batch, heads, -1) for x in (base.expand(batch, -1), slot, at))
        return row, extra, at, (batch, heads, plan.q_len, plan.k_len)
