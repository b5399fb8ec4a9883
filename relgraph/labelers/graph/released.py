"""GRPE's labels as its released code numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_pairs
from relgraph.labelers.all_pairs import label_pairs
from relgraph.labelers.base import GraphLabeler, distinct, why_all_labeled
from relgraph.labelers.graph.edge_type import edge_types, type_names
from relgraph.labelers.graph.node_type import node_types
from relgraph.labelers.graph.shortest_path import pair_positions, shortest_path_lengths
from relgraph.labels import SumLabels


@final
@dataclass(frozen=True, init=False, repr=False)
class ReleasedGRPE(GraphLabeler):
    """GRPE's two channels with the ids of its released code, so that its tables load unchanged.

    - Distances: 0 to ``clip``, which holds all farther pairs, then ``task`` and ``unreachable``: the rows of
      ``query_hop_emb``, ``key_hop_emb`` and ``value_hop_emb``.
    - Edges: the types, then ``unused``, ``task``, ``self`` and ``none``: the rows of ``query_edge_emb`` and so on. No
      pair has ``self``: that code writes ``none`` over it, like over all pairs that are not one hop apart.

    The query of an edge is its source, and paths lead from the query to the key. If a pair has several edges, the last
    one counts; self-loops do not count. A pair of the task token and another node is ``task`` in both channels; the
    task token's pair with itself is like any other node's.

    The attention of that code differs from the paper's as well: it adds ``k_i · E_key`` where the paper has
    ``k_j · E_key``. The page on scores shows how to compute it with ``row_scores``.

    Source: the code released with Park et al. 2022 (GRPE).

    Args:
        clip: the largest distance with its own label, at least 1; ``max_hop`` in that code.
        types: the names of the edge types, or how many there are; ``num_edge_type`` in that code.
        directed: whether paths follow edges only from source (query) to target (key); if False, both ways.
        task_node: the type of the task token in ``graph.node_type``, a node without edges; None if there is none.

    Raises:
        TypeError, ValueError: a wrong type, sizes out of range, or repeated names.

    Example:
        >>> labeler = rg.labelers.ReleasedGRPE(2, ["single", "double"], task_node=9)
        >>> labeler.names[1]
        ('single', 'double', 'unused', 'task', 'self', 'none')
        >>> graph = rg.Graph(
        ...     torch.tensor([[0], [1]]), 3, edge_type=torch.tensor([1]), node_type=torch.tensor([0, 0, 9])
        ... )
        >>> [part.to_dense()[0].tolist() for part in labeler(graph).parts]
        [[[[0, 1, 3], [1, 0, 3], [3, 3, 0]]], [[[5, 1, 3], [5, 5, 3], [3, 3, 5]]]]
    """

    clip: int
    types: tuple[str, ...]
    directed: bool
    task_node: int | None

    def __init__(
        self, clip: int, types: int | Sequence[str], *, directed: bool = False, task_node: int | None = None
    ) -> None:
        check.integer("clip", clip, minimum=1)
        check.most_labels("clip", clip + 3)
        names = type_names("types", types)
        check.most_labels("types", len(names) + 4)
        check.boolean("directed", directed)
        if task_node is not None:
            check.integer("task_node", task_node, minimum=0)
        self._set(clip=clip, types=names, directed=directed, task_node=task_node)

    @property
    def num_labels(self) -> tuple[int, int]:
        """``clip + 3`` distances and ``len(types) + 4`` types of edges."""
        return self.clip + 3, len(self.types) + 4

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The distances and ``"unreachable"``; the types, ``"self"`` and ``"none"``; ``"task"`` in both."""
        distances = (*map(str, range(self.clip)), f">={self.clip}", "task", "unreachable")
        return distances, distinct((*self.types, "unused", "task", "self", "none"))

    _why_never_unlabeled = why_all_labeled

    def __call__(self, graph: Graph) -> SumLabels:
        check_pairs(check_graph(graph))
        flipped = graph.with_edges(graph.edge_index.flip(0), graph.edge_type)
        lengths = shortest_path_lengths(flipped, directed=self.directed).long()
        hops = lengths.clamp(max=self.clip).masked_fill(lengths < 0, self.clip + 2)
        edges = self._edge_ids(graph, lengths.shape[0])
        if self.task_node is not None:
            query, key = graph.pairs()
            is_task = node_types(graph) == self.task_node
            with_task = (is_task[query] | is_task[key]) & (query != key)
            hops = hops.masked_fill(with_task, self.clip + 1)
            edges = edges.masked_fill(with_task, len(self.types) + 1)
        parts = zip((hops, edges), self.num_labels, strict=True)
        return SumLabels(*(label_pairs(graph, ids, number) for ids, number in parts))

    def _edge_ids(self, graph: Graph, pairs: int) -> Tensor:
        """The type of each pair's last edge, from query to key, or the id of ``none``, ``[sum of n_g²]``."""
        types = edge_types(graph, self.types)
        source, target = graph.edge_index
        row, column = pair_positions(graph)
        apart = (source != target).nonzero()[:, 0]
        place = row[source[apart]] + column[target[apart]]
        last = torch.full((pairs,), -1, dtype=torch.int64, device=graph.device)
        last = last.scatter_reduce(0, place, apart, "amax")
        padded = torch.cat([types.long(), types.new_full((1,), len(self.types) + 3, dtype=torch.int64)])
        return padded[last]
