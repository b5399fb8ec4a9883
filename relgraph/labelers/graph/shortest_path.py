"""Labels by shortest path: how many edges lead from the key to the query."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_pairs
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels

UNREACHABLE = ("label", "unlabeled")


@final
@dataclass(frozen=True, repr=False)
class ShortestPath(AllPairsLabeler):
    """One label per distance in hops, from key j to query i; if ``directed``, only along the edges.

    Ids are distances from 0, then the label of ``unreachable`` pairs, if they have one. A node is at distance 0 from
    itself.

    Source: Ying et al. 2021 (Graphormer), section 3.1.2.

    Args:
        clip: the largest distance with its own label, in hops from 0; larger distances count as this one.
        directed: whether paths follow edges only from source (key) to target (query); if False, both ways.
        unreachable: what pairs without a path do. ``"label"``: they share a label. ``"unlabeled"``: they attend without
            one. None: they do not attend.

    Raises:
        ValueError: more than 2^20 labels.

    Example:
        >>> labeler = rg.ShortestPath(2, directed=True)
        >>> labeler.names
        ('0', '1', '>=2', 'unreachable')
        >>> labeler(rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)).to_dense()[0]
        tensor([[[0, 3, 3],
                 [1, 0, 3],
                 [2, 1, 0]]])
    """

    clip: int
    _: KW_ONLY
    directed: bool = False
    unreachable: str | None = "label"

    def __post_init__(self) -> None:
        check.integer("clip", self.clip, minimum=0)
        check.most_labels("clip", self.clip + 2)
        check.boolean("directed", self.directed)
        if self.unreachable is not None:
            check.choice("unreachable", self.unreachable, UNREACHABLE)

    @property
    def num_labels(self) -> int:
        """The distances from 0 to ``clip``, and one for unreachable pairs."""
        return self.clip + 1 + (self.unreachable == "label")

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, the last as ``">=4"``; ``"unreachable"``."""
        unreachable = ["unreachable"] if self.unreachable == "label" else []
        return (*map(str, range(self.clip)), f">={self.clip}", *unreachable)

    def _why_never_unlabeled(self) -> str | None:
        return None if self.unreachable == "unlabeled" else super()._why_never_unlabeled()

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        lengths = shortest_path_lengths(graph, directed=self.directed)
        reached = lengths >= 0
        other = self.num_labels - 1 if self.unreachable == "label" else UNLABELED
        ids = lengths.clamp(max=self.clip).masked_fill(~reached, other)
        return label_pairs(graph, ids, self.num_labels, attend=reached if self.unreachable is None else None)


def shortest_path_lengths(graph: Graph, max_distance: int | None = None, *, directed: bool = False) -> Tensor:
    """The number of edges on the shortest path from key j to query i, for every pair of each graph.

    All nodes search at once: in each hop, every edge passes on the set of keys reached so far, 64 keys per int64.

    Args:
        graph: a graph, or a packed batch.
        max_distance: the number of hops after which the search stops; None for no limit.
        directed: whether paths follow edges only from source to target; if False, both ways.

    Returns:
        ``[sum of n_g²]``, int32, in the order of :meth:`Graph.pairs <relgraph.Graph.pairs>`; -1 if there is no path
        within the limit.

    Raises:
        TypeError, ValueError: a wrong type, a negative ``max_distance``, or more than 2^32 pairs.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> rg.labelers.shortest_path_lengths(graph, directed=True).view(3, 3)
        tensor([[ 0, -1, -1],
                [ 1,  0, -1],
                [ 2,  1,  0]], dtype=torch.int32)
    """
    check.outside_compiled_code("shortest_path_lengths")
    check_pairs(check_graph(graph))
    if max_distance is not None:
        check.integer("max_distance", max_distance, minimum=0)
    row, column = pair_positions(graph)
    lengths = torch.full((int(graph.borders().diff().square().sum()),), -1, dtype=torch.int32, device=graph.device)
    lengths[row + column] = 0
    source, target = walkable_edges(graph, directed=check.boolean("directed", directed))
    if source.numel() == 0:
        return lengths
    source, target = (ends[target.argsort(stable=True)] for ends in (source, target))
    degree = torch.bincount(target, minlength=graph.num_nodes)  # [N]
    entered = degree.nonzero()[:, 0]  # only a node with an incoming edge can be reached
    begin = degree.cumsum(0) - degree
    rounds = _merge_rounds(torch.arange(target.shape[0], device=graph.device) - begin[target], degree[target])
    bit = torch.arange(64, device=graph.device)
    reached = torch.zeros(graph.num_nodes, int(column.max()) // 64 + 1, dtype=torch.int64, device=graph.device)
    reached[torch.arange(graph.num_nodes, device=graph.device), column // 64] = 1 << (column % 64)
    for hop in count(1):
        if max_distance is not None and hop > max_distance:
            break
        passed = reached[source]  # [E, words of 64 keys]
        for into, other in rounds:
            passed[into] |= passed[other]
        fresh = passed[begin[entered]] & ~reached[entered]  # [entered, words]
        query, word = fresh.nonzero(as_tuple=True)
        if query.numel() == 0:
            break
        reached[entered] |= fresh
        at, key = (fresh[query, word][:, None] >> bit & 1).nonzero(as_tuple=True)
        lengths[row[entered[query[at]]] + word[at] * 64 + key] = hop
    return lengths


def pair_positions(graph: Graph) -> tuple[Tensor, Tensor]:
    """``row`` and ``column``, ``[N]`` each: :meth:`~relgraph.Graph.pairs` has pair (i, j) at ``row[i] + column[j]``."""
    ptr = graph.borders()
    sizes = ptr.diff()
    width = sizes.repeat_interleave(sizes)
    column = torch.arange(graph.num_nodes, device=graph.device) - ptr[:-1].repeat_interleave(sizes)
    return width.cumsum(0) - width, column


def walkable_edges(graph: Graph, *, directed: bool) -> Tensor:
    """The edges that a path may take as (from, to): all E along their direction, then, unless directed, against it."""
    return graph.edge_index if directed else torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)


def _merge_rounds(rank: Tensor, count: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The edges (into, other) to merge in each round, until the first edge of each target holds the union of all.

    Edges of one target are consecutive; ``rank`` is an edge's place among them, ``count`` their number.
    """
    rounds, step, most = [], 1, int(count.max())
    while step < most:
        into = ((rank % (2 * step) == 0) & (rank + step < count)).nonzero()[:, 0]
        rounds.append((into, into + step))
        step *= 2
    return rounds
