"""Labels by the edges of a shortest path: the edge type of each hop from the query to the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.graphs import Graph, check_type_names
from relgraph.labelers.all_pairs import label_pairs
from relgraph.labelers.base import GraphLabeler, distinct
from relgraph.labelers.graph.edge_type import type_names
from relgraph.labelers.graph.paths import path_types, with_columns
from relgraph.labelers.graph.shortest_path import shortest_path_lengths
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels, Labels, SumLabels


@final
@dataclass(frozen=True, init=False, repr=False)
class PathEdges(GraphLabeler):
    """For each hop of a shortest path, a label for the path's length and the edge's type: a sum, one part per hop.

    With ``max_path=1`` it is just that part, not a sum. Hop 1 is the edge next to the query. Part h has ids
    ``(length - h) * types + type``. A pair whose path is shorter than h hops has no label there, and a path longer
    than ``max_path`` counts as that long. :class:`~relgraph.labelers.ShortestPathTypes` describes which of several
    shortest paths counts, and how edges count that are walked against their direction.

    Source: Ying et al. 2021 (Graphormer), section 3.1.3.

    Args:
        max_path: how many hops to label, at least 1.
        types: the names of the edge types, or how many there are. A graph without types has one.
        directed: whether paths follow edges only from source (key) to target (query). If False, they follow edges both
            ways, and edges walked against their direction have other labels.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: fewer than one hop, a negative number of types, more than 2^20 labels, or repeated names.

    Example:
        >>> labeler = rg.PathEdges(2, ["single", "double"], directed=True)
        >>> labeler.names[0]
        ('hop 1 of 1: single', 'hop 1 of 1: double', 'hop 1 of >=2: single', 'hop 1 of >=2: double')
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
        >>> labeler(graph).parts[0].to_dense()[0]
        tensor([[[-1, -1, -1],
                 [ 0, -1, -1],
                 [ 3,  1, -1]]])
    """

    max_path: int
    types: tuple[str, ...]
    directed: bool

    def __init__(self, max_path: int, types: int | Sequence[str], *, directed: bool = False) -> None:
        names = type_names("types", types)
        width = len(names) * (2 - check.boolean("directed", directed))
        check.integer("max_path", max_path, minimum=1, maximum=check.MOST_LABELS)
        check.most_labels("max_path and types", max_path * (max_path + 1) // 2 * width)
        self._set(max_path=max_path, types=names, directed=directed)

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        """One number per hop, the count of lengths from that hop on times that of types (doubled unless directed)."""
        numbers = tuple(len(names) for names in self._names_by_hop())
        return numbers if self.max_path > 1 else numbers[0]

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """For each hop ``"hop 1 of 3: type"``."""
        names = self._names_by_hop()
        return names if self.max_path > 1 else names[0]

    def _names_by_hop(self) -> tuple[tuple[str, ...], ...]:
        types = self.types if self.directed else distinct((*self.types, *(f"{name}⁻¹" for name in self.types)))
        lengths = [*map(str, range(1, self.max_path)), f">={self.max_path}"]
        return tuple(
            tuple(f"hop {hop} of {length}: {name}" for length in lengths[hop - 1 :] for name in types)
            for hop in range(1, self.max_path + 1)
        )

    def __call__(self, graph: Graph) -> Labels:
        lengths = shortest_path_lengths(graph, directed=self.directed)
        check_type_names("types", self.types, "edge_types of the graph", graph.edge_types)
        types = path_types(graph, lengths, len(self.types), self.max_path, directed=self.directed)
        types = with_columns(types, self.max_path)
        lengths = lengths.clamp(max=self.max_path).long()
        width = len(self.types) * (2 - self.directed)
        parts: list[DenseLabels | BlockLabels] = []
        for hop, names in enumerate(self._names_by_hop(), start=1):
            kind = types[:, hop - 1]
            ids = torch.where(kind < 0, UNLABELED, (lengths - hop) * width + kind)
            parts.append(label_pairs(graph, ids, len(names)))
        return SumLabels(*parts) if len(parts) > 1 else parts[0]
