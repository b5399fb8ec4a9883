"""What id each pair of a plan carries, written out for a window of pairs or for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relgraph.labels.base import NOT_ATTENDING, common_batch, graph_of
from relgraph.plan.regions import FIRST, Band, Block, Csr, LabelPlan, Part, Region


def ids_by_distance(regions: Sequence[Region], distance: Tensor) -> Tensor:
    """The id of each pair by its distance, int64 like ``distance``; -2 where no region speaks."""
    first, lookup = _lookup(regions)
    table = torch.tensor(lookup, device=distance.device)
    return table[distance.clamp(first, first + len(lookup) - 1) - first]


def _lookup(regions: Sequence[Region]) -> tuple[int, list[int]]:
    """A distance and the ids from there on; what lies beyond either end is like the end."""
    by_distance = [region for region in regions if not isinstance(region, Block)]
    bounds = [bound for region in by_distance for bound in region.bounds if bound is not None]
    first, stop = (min(bounds) - 1, max(bounds) + 1) if bounds else (0, 1)
    lookup = [NOT_ATTENDING] * (stop - first)
    for region in by_distance:
        low, high = region.bounds
        start = first if low is None else low
        end = stop if high is None else high
        ids = region.lookup if isinstance(region, Band) else (region.label,) * (end - start)
        lookup[start - first : start - first + len(ids)] = ids
    return first, lookup


def dense_ids(plan: LabelPlan, part: Part, device: torch.device) -> Tensor:
    """The id of every pair, ``[B or 1, N_q, N_k]``, -2 where it does not attend; of parallel pairs the first."""
    ids = _region_ids(plan, part, device)
    if part.csr is None:
        return ids
    csr = part.csr
    batch = common_batch(ids.shape[0], csr.batch)
    ids = ids.expand(batch, -1, -1)
    row, col, listed = csr.row, csr.col, csr.ids
    key = row * plan.k_len + col
    size = csr.batch * plan.q_len * plan.k_len
    key = torch.where(csr.role == FIRST, key, size)  # the others write to a place that is cut off
    flat = ids.new_full((size + 1,), NOT_ATTENDING - 1).scatter(0, key, listed)
    over = flat[:size].view(csr.batch, plan.q_len, plan.k_len)
    return torch.where(over > NOT_ATTENDING - 1, over, ids)


def listed_pairs(plan: LabelPlan, csr: Csr) -> tuple[Tensor, Tensor, Tensor]:
    """Batch row, query and key of every listed pair, ``[P]`` each."""
    return csr.row // max(plan.q_len, 1), csr.row % max(plan.q_len, 1), csr.col


def inside_graphs(plan: LabelPlan) -> Tensor | None:
    """Which pairs stay within a graph, ``[N_q, N_k]``; None when the plan is not packed."""
    if plan.q_ptr is None or plan.k_ptr is None:
        return None
    return graph_of(plan.q_ptr, plan.q_len)[:, None] == graph_of(plan.k_ptr, plan.k_len)


def distances(plan: LabelPlan, offset: int | Tensor, device: torch.device) -> Tensor:
    """Key position minus query position of every pair, ``[B or 1, N_q, N_k]``; within its graph when packed."""
    i, j = torch.arange(plan.q_len, device=device), torch.arange(plan.k_len, device=device)
    if plan.q_ptr is None or plan.k_ptr is None:
        if isinstance(offset, Tensor):
            offset = offset.to(device).reshape(-1, 1, 1)
        return (j - i[:, None])[None] - offset
    q_graph, k_graph = graph_of(plan.q_ptr, plan.q_len), graph_of(plan.k_ptr, plan.k_len)
    i = i - plan.q_ptr[q_graph]
    if isinstance(offset, Tensor):
        offset = offset.to(device).expand(plan.q_ptr.shape[0] - 1)[q_graph]
    return ((j - plan.k_ptr[k_graph]) - (i + offset)[:, None])[None]


def _region_ids(plan: LabelPlan, part: Part, device: torch.device) -> Tensor:
    blocks = [region for region in part.regions if isinstance(region, Block)]
    if blocks:
        ids = blocks[0].ids
        return (ids if plan.q_ptr is None else _unflatten(plan, ids)).to(torch.int64)
    ids = ids_by_distance(part.regions, distances(plan, part.offset, device))
    inside = inside_graphs(plan)
    return ids if inside is None else ids.masked_fill(~inside, NOT_ATTENDING)


def _unflatten(plan: LabelPlan, flat: Tensor) -> Tensor:
    """Blocks laid end to end, as one ``[1, N_q, N_k]`` matrix."""
    assert plan.q_ptr is not None and plan.k_ptr is not None
    q_graph, k_graph = graph_of(plan.q_ptr, plan.q_len), graph_of(plan.k_ptr, plan.k_len)
    width = plan.k_ptr.diff()
    begin = (plan.q_ptr.diff() * width).cumsum(0) - plan.q_ptr.diff() * width
    i = torch.arange(plan.q_len, device=flat.device) - plan.q_ptr[q_graph]
    j = torch.arange(plan.k_len, device=flat.device) - plan.k_ptr[k_graph]
    at = (begin[q_graph] + i * width[q_graph])[:, None] + j
    padded = torch.cat([flat, flat.new_full((1,), NOT_ATTENDING)])
    return padded[torch.where(q_graph[:, None] == k_graph, at, flat.shape[0])][None]
