"""Small graphs of similar size in a packed batch, computed together as a padded batch with little padding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from relgraph.impl.draw import Hashes
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.units import borders, lengths
from relgraph.labels.memory import Memory
from relgraph.plan import FIRST, NOT_ATTENDING, DistanceIds, LabelPlan, Part, WrittenIds, ids_at

SMALL_PAIRS = 1 << 12
"""A graph of at most this many pairs is small: calling the operators costs more than their work."""

LEAST_FILLED = 0.6
"""Least share of a padded graph's pairs that are not padding."""


@dataclass(frozen=True, eq=False)
class _Side:
    """The queries or the keys of a group.

    Attributes:
        positions: ``[g, n]``, places in the packed batch; padding repeats the first position of its graph.
        padding: ``[g, n]``, True for padding; None without padding.
        own: graph, place and position of every entry that is not padding; None without padding.
    """

    positions: Tensor
    padding: Tensor | None = None
    own: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, ptr: Tensor, graphs: Tensor, sizes: list[int]) -> _Side:
        """The queries (or keys) of graphs with these sizes."""
        first, here = ptr[graphs][:, None], torch.arange(max(sizes), device=ptr.device)
        if min(sizes) == max(sizes):
            return cls(first + here)
        own = here < torch.tensor(sizes, device=ptr.device)[:, None]
        positions = first + here * own
        graph, place = own.nonzero(as_tuple=True)
        return cls(positions, ~own, (graph, place, positions[own]))

    def take(self, x: Tensor) -> Tensor:
        """``[1, H, T, X]`` as ``[g, H, n, X]``."""
        return x[0].transpose(0, 1)[self.positions].transpose(1, 2)

    def take_own(self, x: Tensor | None) -> Tensor | None:
        """The same, with zeros for padding."""
        if x is None:
            return None
        x = self.take(x)
        return x if self.padding is None else x.masked_fill(self.padding[:, None, :, None], 0.0)

    def put(self, whole: Tensor, mine: Tensor) -> None:
        """Write ``[g, H, n, ...]`` back to ``[1, H, T, ...]`` without padding."""
        mine = mine.transpose(0, 1)
        if self.own is None:
            whole[0][:, self.positions] = mine
        else:
            graph, place, position = self.own
            whole[0][:, position] = mine[:, graph, place]


@dataclass(frozen=True, eq=False)
class _GroupLabels:
    """The part of a group that depends only on the labels; it is kept for the next call with them.

    Attributes:
        graphs: the numbers of the graphs.
        at: the same as a tensor.
        queries: their queries.
        keys: their keys.
        plan: their labels, as those of a padded batch.
        memo: what is kept for that plan.
    """

    graphs: list[int]
    at: Tensor
    queries: _Side
    keys: _Side
    plan: LabelPlan
    memo: Memory = field(default_factory=Memory)


@dataclass(frozen=True, eq=False)
class Group:
    """Graphs of similar size, and the same attention as a padded batch of g rows."""

    labels: _GroupLabels
    problem: Problem

    def incoming(self, incoming: Outputs) -> Outputs:
        """The group's share of the gradients of the outputs."""
        lse = None if incoming.lse is None else incoming.lse[..., None]
        take = self.labels.queries.take_own
        output, lse, sums, mass = map(take, (incoming.output, lse, incoming.sums, incoming.mass))
        return Outputs(output, None if lse is None else lse[..., 0], sums, mass)


def groups(problem: Problem) -> list[Group]:
    """Groups of at least two graphs.

    There are none if the batch is not packed, if labels have several ids per pair, or if the mask needs a gradient,
    because graphs may share it.
    """
    plan = problem.plan
    if plan.q_ptr is None or plan.k_ptr is None or problem.mask_gradient:
        return []
    if any(p.csr is not None and p.csr.parallel for p in plan.parts):
        return []
    memo = problem.memo
    return [_group(problem, layout) for layout in memo.once("groups", lambda: _layouts(plan, memo))]


def _layouts(plan: LabelPlan, memo: Memory) -> list[_GroupLabels]:
    sizes = list(zip(*map(lengths, borders(plan, memo)), strict=True))
    together = [graphs for graphs in alike(sizes) if len(graphs) > 1]
    return [_layout(plan, graphs, [sizes[g] for g in graphs]) for graphs in together]


def alike(sizes: list[tuple[int, int]]) -> list[list[int]]:
    """The numbers of small graphs from large to small, cut where padding would be too much.

    ``sizes`` are the queries and keys of each graph.
    """
    small = [graph for graph, (n_q, n_k) in enumerate(sizes) if 0 < n_q * n_k <= SMALL_PAIRS]
    found: list[list[int]] = []
    most = (0, 0)
    for graph in sorted(small, key=sizes.__getitem__, reverse=True):
        n_q, n_k = sizes[graph]
        if n_k > most[1] or n_q * n_k < LEAST_FILLED * most[0] * most[1]:
            found.append([])
            most = (n_q, n_k)
        found[-1].append(graph)
    return found


def _layout(plan: LabelPlan, graphs: list[int], sizes: list[tuple[int, int]]) -> _GroupLabels:
    assert plan.q_ptr is not None and plan.k_ptr is not None
    at = torch.tensor(graphs, device=plan.q_ptr.device)
    queries = _Side.of(plan.q_ptr, at, [n_q for n_q, _ in sizes])
    keys = _Side.of(plan.k_ptr, at, [n_k for _, n_k in sizes])
    parts = tuple(_part(plan, part, at, queries, keys) for part in plan.parts)
    padded = LabelPlan(queries.positions.shape[1], keys.positions.shape[1], len(graphs), parts)
    return _GroupLabels(graphs, at, queries, keys, padded)


def _group(problem: Problem, layout: _GroupLabels) -> Group:
    queries, keys, drawn = layout.queries, layout.keys, problem.drawn
    sub = replace(
        problem,
        query=queries.take(problem.query),
        key=keys.take(problem.key),
        value=keys.take(problem.value),
        by_query=None if problem.by_query is None else queries.take(problem.by_query),
        by_key=None if problem.by_key is None else keys.take(problem.by_key),
        mask=_hidden(_pairs(problem.mask, queries, keys), keys),
        keep=_pairs(problem.keep, queries, keys),
        drawn=None if drawn is None else Hashes(queries.take(drawn.rows), drawn.keys[0][keys.positions]),
        causal=_offset(problem.causal, layout.at),
        plan_key=layout.memo,
        plan=layout.plan,
    )
    return Group(layout, sub)


def _hidden(mask: Tensor | None, keys: _Side) -> Tensor | None:
    """The mask with padding hidden."""
    if keys.padding is None:
        return mask
    padding = keys.padding[:, None, None]
    if mask is None:
        return ~padding
    return mask.masked_fill(padding, False if mask.dtype == torch.bool else float("-inf"))


def _offset(offset: int | Tensor | None, graphs: Tensor) -> int | Tensor | None:
    return offset[graphs] if isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] > 1 else offset


def _pairs(pairs: Tensor | None, queries: _Side, keys: _Side) -> Tensor | None:
    """A tensor that broadcasts to ``[1, H, T_q, T_k]``, as ``[g, H or 1, n_q, n_k]``."""
    if pairs is None:
        return None
    row, col = (
        side.positions if size > 1 else torch.zeros_like(side.positions)
        for side, size in zip((queries, keys), pairs.shape[2:], strict=True)
    )
    return pairs[0][:, row[:, :, None], col[:, None]].transpose(0, 1)


def _part(plan: LabelPlan, part: Part, graphs: Tensor, queries: _Side, keys: _Side) -> Part:
    """One part of the labels of some graphs, with listed pairs written out."""
    offset = _offset(part.offset, graphs)
    assert offset is not None
    if isinstance(part.ids, DistanceIds) and part.csr is None:
        return replace(part, offset=offset)
    query, key, graph = queries.positions[:, :, None], keys.positions[:, None], graphs[:, None, None]
    ids = ids_at(plan, part, graph, query, key, graph)
    full = part.complete
    if part.csr is not None:
        ids = _over(ids.to(torch.int64, copy=True), part, queries.positions, keys.positions)
        full = full and bool((ids > NOT_ATTENDING).all())
    return Part(part.num_labels, offset, WrittenIds(ids, full))


def _over(ids: Tensor, part: Part, queries: Tensor, keys: Tensor) -> Tensor:
    """``ids`` with the listed pairs of these queries written over it, in place."""
    csr = part.csr
    assert csr is not None
    first = csr.row_ptr[queries.reshape(-1)]
    counts = csr.row_ptr[queries.reshape(-1) + 1] - first
    row = torch.arange(first.shape[0], device=first.device).repeat_interleave(counts)
    pair = torch.arange(row.shape[0], device=first.device) - (counts.cumsum(0) - counts)[row] + first[row]
    pair, row = pair[csr.role[pair] == FIRST], row[csr.role[pair] == FIRST]
    graph, width = row // queries.shape[1], queries.shape[1]
    ids[graph, row % width, csr.col[pair] - keys[graph, 0]] = csr.ids[pair]
    return ids
