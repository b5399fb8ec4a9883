"""The ids of some or all pairs of a plan."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.labels.alike import common_batch
from relgraph.labels.base import NOT_ATTENDING
from relgraph.labels.borders import graph_at, graph_of
from relgraph.labels.ragged import block_address, distance_at
from relgraph.plan.memory import tensor_once
from relgraph.plan.parts import FIRST, Csr, DistanceIds, FunctionIds, LabelPlan, Part, WrittenIds


def ids_at(
    plan: LabelPlan, part: Part, batch: Tensor, query: Tensor, key: Tensor, graph: Tensor | None = None
) -> Tensor:
    """The id of each pair, without listed pairs; -2 if it does not attend, arbitrary across graphs.

    Args:
        plan: the plan.
        part: one of its parts.
        batch: batch row of each pair; these arguments broadcast.
        query: query of each pair, counted through all graphs when packed.
        key: key of each pair, counted in the same way.
        graph: the graph of each pair when packed; by default looked up from the query.
    """
    ids = part.ids
    if graph is None and plan.q_ptr is not None:
        graph = graph_at(plan.q_ptr, query)
    if isinstance(ids, DistanceIds):
        return ids_by_distance(ids, distance_at(plan.q_ptr, plan.k_ptr, part.offset, batch, query, key, graph))
    if isinstance(ids, FunctionIds):
        return _by_function(plan, ids, batch, query, key, graph)
    if plan.q_ptr is None or plan.k_ptr is None:
        return ids.ids[batch if ids.ids.shape[0] > 1 else 0, query, key]
    assert ids.starts is not None and graph is not None
    at = block_address(plan.q_ptr, plan.k_ptr, ids.starts, query, key, graph)
    if ids.ids.shape[0] == 0:
        return torch.full_like(at, NOT_ATTENDING)
    return ids.ids[at.clamp_(0, ids.ids.shape[0] - 1)]


def _by_function(
    plan: LabelPlan, ids: FunctionIds, batch: Tensor, query: Tensor, key: Tensor, graph: Tensor | None
) -> Tensor:
    """The id of each pair by a function, which is not asked about pairs across graphs."""
    if graph is None:
        return ids.at(batch, query, key, packed=False)
    assert plan.k_ptr is not None
    query, key, own = torch.broadcast_tensors(query, key, graph)
    inside = (plan.k_ptr[own] <= key) & (key < plan.k_ptr[own + 1])
    found = torch.full(inside.shape, NOT_ATTENDING, dtype=ids.dtype, device=key.device)
    found[inside] = ids.at(batch.new_zeros(1), query[inside], key[inside], packed=True)
    return found


def ids_by_distance(ids: DistanceIds, distance: Tensor) -> Tensor:
    """The id of each distance, int64 like ``distance``."""
    if len(ids.lookup) == 1:
        return torch.full_like(distance, ids.lookup[0])
    device = distance.device
    table = tensor_once(ids.memory, ("ids", device), lambda: torch.tensor(ids.lookup, device=device))
    return table[distance.clamp(ids.first, ids.last) - ids.first]


def dense_ids(plan: LabelPlan, part: Part, device: torch.device) -> Tensor:
    """The id of every pair, ``[B or 1, N_q, N_k]``, -2 if it does not attend; the first of parallel pairs counts."""
    ids = _unlisted(plan, part, device)
    if part.csr is None:
        return ids
    csr = part.csr
    batch = common_batch(ids.shape[0], csr.batch)
    ids = ids.expand(batch, -1, -1)
    size = csr.batch * plan.q_len * plan.k_len
    at = torch.where(csr.role == FIRST, csr.row * plan.k_len + csr.col, size)  # others go to an entry that is cut off
    flat = ids.new_full((size + 1,), NOT_ATTENDING - 1).scatter(0, at, csr.ids)
    over = flat[:size].view(csr.batch, plan.q_len, plan.k_len)
    return torch.where(over > NOT_ATTENDING - 1, over, ids)


def _unlisted(plan: LabelPlan, part: Part, device: torch.device) -> Tensor:
    if isinstance(part.ids, WrittenIds) and plan.q_ptr is None:
        return part.ids.ids.to(torch.int64)
    batch, query, key, graph = _every_pair(plan, part.offset, device)
    if isinstance(part.ids, FunctionIds):
        batch = torch.arange(part.ids.batch, device=device)[:, None, None]
    ids = ids_at(plan, part, batch, query, key, graph).to(torch.int64)
    inside = inside_graphs(plan)
    return ids if inside is None else ids.masked_fill(~inside, NOT_ATTENDING)


def _every_pair(
    plan: LabelPlan, offset: int | Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Batch row, query, key and graph of every pair; together they broadcast to ``[B or 1, N_q, N_k]``."""
    rows = offset.shape[0] if plan.q_ptr is None and isinstance(offset, Tensor) and offset.dim() == 1 else 1
    batch, query, key = (torch.arange(n, device=device) for n in (rows, plan.q_len, plan.k_len))
    graph = None if plan.q_ptr is None else graph_of(plan.q_ptr, plan.q_len)[:, None]
    return batch[:, None, None], query[:, None], key[None, None], graph


def distances(plan: LabelPlan, offset: int | Tensor, device: torch.device) -> Tensor:
    """Key position minus query position of every pair, ``[B or 1, N_q, N_k]``; arbitrary across graphs."""
    return distance_at(plan.q_ptr, plan.k_ptr, offset, *_every_pair(plan, offset, device))


def listed_pairs(plan: LabelPlan, csr: Csr) -> tuple[Tensor, Tensor, Tensor]:
    """Batch row, query and key of every listed pair, ``[P]`` each."""
    return csr.row // max(plan.q_len, 1), csr.row % max(plan.q_len, 1), csr.col


def inside_graphs(plan: LabelPlan) -> Tensor | None:
    """Which pairs stay within a graph, ``[N_q, N_k]``; None when the plan is not packed."""
    if plan.q_ptr is None or plan.k_ptr is None:
        return None
    return graph_of(plan.q_ptr, plan.q_len)[:, None] == graph_of(plan.k_ptr, plan.k_len)
