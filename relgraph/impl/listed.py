"""Listed pairs for edges-only attention: sorted by row and by column, mask entries, causal order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.impl.problem import Problem
from relgraph.plan import LabelPlan, graph_at, listed_pairs, sort_stably


class Pattern(NamedTuple):
    """Listed pairs sorted by row, and the same pairs sorted by column.

    Attributes:
        row_ptr: ``[n + 1]`` where each row's pairs begin.
        row: ``[P]``.
        col: ``[P]``.
        col_ptr: ``[m + 1]`` where each column's pairs begin, once sorted by column.
        sorted_col: ``[P]`` their columns in that order.
        row_by_col: ``[P]`` their rows in that order.
        by_col: ``[P]`` index of each of them among the pairs sorted by row.
        to_row: ``[P]`` the inverse of ``by_col``.
    """

    row_ptr: Tensor
    row: Tensor
    col: Tensor
    col_ptr: Tensor
    sorted_col: Tensor
    row_by_col: Tensor
    by_col: Tensor
    to_row: Tensor

    @classmethod
    def of(cls, row_ptr: Tensor, row: Tensor, col: Tensor, columns: int) -> Pattern:
        """The pattern of pairs that are sorted by row already."""
        sorted_col, by_col = sort_stably(col)
        col_ptr = torch.searchsorted(sorted_col, torch.arange(columns + 1, device=col.device))
        return cls(row_ptr, row, col, col_ptr, sorted_col, row[by_col], by_col, inverse(by_col))

    @property
    def transposed(self) -> Pattern:
        """The same pairs with rows and columns swapped; reorder values per pair by ``by_col``."""
        return Pattern(
            self.col_ptr, self.sorted_col, self.row_by_col, self.row_ptr, self.row, self.col, self.to_row, self.by_col
        )


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes ``order``."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))


def earlier_twins(row: Tensor, col: Tensor) -> Tensor:
    """How many pairs of the same row and column come before each, int32; such pairs are next to each other."""
    place = torch.arange(row.shape[0], dtype=torch.int32, device=row.device)
    fresh = torch.ones_like(place, dtype=torch.bool)
    fresh[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
    return place - torch.where(fresh, place, 0).cummax(0).values.to(torch.int32)


def listed_entries(plan: LabelPlan, x: Tensor, rows: Sequence[int]) -> Tensor:
    """The listed entries of a tensor that broadcasts to ``[B, H, N_q, N_k]``: ``[L or 1, P]``; ``rows`` is B and H."""
    csr = plan.listed
    batch, query, key = listed_pairs(plan, csr)
    query, key = (at if n > 1 else torch.zeros_like(at) for at, n in zip((query, key), x.shape[2:], strict=True))
    if csr.batch != 1:
        return x[batch if x.shape[0] > 1 else torch.zeros_like(batch), :, query, key].T
    x = x[:, :, query, key]
    return x[0] if x.shape[:2] == (1, 1) else x.expand(*rows, -1).flatten(0, 1)


def listed_future(plan: LabelPlan, offset: int | Tensor, heads: int) -> Tensor:
    """Which listed pairs a causal query may not see, ``[L or 1, P]``."""
    csr = plan.listed
    batch, query, key = listed_pairs(plan, csr)
    if plan.q_ptr is not None and plan.k_ptr is not None:
        batch = graph_at(plan.q_ptr, query)
        query, key = query - plan.q_ptr[batch], key - plan.k_ptr[batch]
    distance = (key - query)[None]
    if not isinstance(offset, Tensor) or offset.dim() == 0 or offset.shape[0] == 1:
        return distance > offset
    if csr.batch != 1 or plan.q_ptr is not None:
        return distance > offset[batch]
    return (distance > offset[:, None]).repeat_interleave(heads, 0)


def added_to_pairs(problem: Problem) -> Tensor | None:
    """The number that mask and causal order add to the score of every pair, ``[L or 1, P]``; None without these."""
    plan, mask, rows = problem.plan, problem.mask, problem.query.shape[:2]
    hidden, added = [], None
    if mask is not None:
        entries = listed_entries(plan, mask, rows)
        if mask.dtype == torch.bool:
            hidden.append(~entries)
        else:
            added = entries.to(problem.dtype)
    if problem.causal is not None:
        hidden.append(listed_future(plan, problem.causal, rows[1]))
    for pairs in hidden:
        added = torch.zeros((), dtype=problem.dtype, device=pairs.device) if added is None else added
        added = added.masked_fill(pairs, float("-inf"))
    return None if added is None else added.contiguous()


def gradient_of_mask(problem: Problem, of_pairs: Tensor) -> Tensor:
    """The gradient of the mask from that of every pair, ``[L, P]``; pairs that share a number are added in order."""
    csr, mask = problem.plan.listed, problem.mask
    assert mask is not None
    batch, heads, queries, keys = mask.shape
    row, query, key = listed_pairs(problem.plan, csr)
    place = query * keys * (queries > 1) + key * (keys > 1)
    total = of_pairs.unflatten(0, (-1, problem.query.shape[1]))  # [B or 1, H, P]
    if heads == 1:
        total = total.sum(1, keepdim=True)
    rows = 1
    if csr.batch != 1:
        place, rows = place + row * queries * keys * (batch > 1), batch
    elif batch == 1:
        total = total.sum(0, keepdim=True)
    made = total.new_zeros(*total.shape[:2], rows * queries * keys)  # [B or 1, H or 1, numbers of the mask]
    if total.is_cpu:
        made.scatter_add_(2, place.expand_as(total), total)
    else:  # sorted and then added: scatter_add_ on a GPU adds in any order
        made = made.permute(2, 0, 1).index_put((place,), total.permute(2, 0, 1), accumulate=True).permute(1, 2, 0)
    made = made.unflatten(2, (rows, queries, keys))
    return (made[0].transpose(0, 1) if csr.batch != 1 else made[:, :, 0]).to(mask.dtype)


def given_factor(problem: Problem) -> Tensor | None:
    """The factor of a given dropout mask on the weight of every pair, ``[L or 1, P]``; None without one."""
    if problem.keep is None:
        return None
    kept = listed_entries(problem.plan, problem.keep, problem.query.shape[:2])
    return (kept.to(problem.dtype) / (1.0 - problem.dropout_p)).contiguous()
