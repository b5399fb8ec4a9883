"""Labels by degree: how many edges the query has, and how many the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labels import BlockLabels, DenseLabels

DIRECTIONS = ("in", "out", "both")


@final
@dataclass(frozen=True, repr=False)
class Degree(AllPairsLabeler):
    """One label for each pair of degrees, clipped: ``degree_i * (clip + 1) + degree_j``, the query's first.

    A node's degree is its number of edges. A name reads query→key: ``"1→>=4"`` for a query with one edge that looks at
    a key with four or more. (Edges lead the other way, from key to query.) The ids are written out.

    Args:
        clip: the largest degree with its own labels, from 0; larger degrees count as this one.
        direction: which edges of a node count: ``"in"`` those whose target (query) it is, ``"out"`` those whose source
            (key) it is, or ``"both"``. All parallel edges count, and a self-loop counts once in and once out.

    Raises:
        TypeError, ValueError: a wrong type, a negative degree, more than 2^20 labels, or an unknown direction.

    Example:
        >>> labeler = rg.Degree(1)
        >>> labeler.names
        ('0→0', '0→>=1', '>=1→0', '>=1→>=1')
        >>> labeler(rg.Graph(torch.tensor([[0, 0], [1, 2]]), 3)).to_dense()[0]
        tensor([[[0, 1, 1],
                 [2, 3, 3],
                 [2, 3, 3]]])
    """

    clip: int
    direction: str = "in"

    def __post_init__(self) -> None:
        check.integer("clip", self.clip, minimum=0)
        check.most_labels("clip", self.num_labels)
        check.choice("direction", self.direction, DIRECTIONS)

    @property
    def num_labels(self) -> int:
        """``(clip + 1)²``."""
        return (self.clip + 1) ** 2

    @property
    def names(self) -> tuple[str, ...]:
        """``"query's degree→key's degree"``; the largest as ``">=4"``."""
        degrees = (*map(str, range(self.clip)), f">={self.clip}")
        return tuple(f"{query}→{key}" for query in degrees for key in degrees)

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        source, target = graph.edge_index
        ends = {"in": target, "out": source, "both": graph.edge_index.flatten()}[self.direction]
        degree = torch.bincount(ends, minlength=graph.num_nodes).clamp(max=self.clip)
        query, key = graph.pairs()
        return label_pairs(graph, degree[query] * (self.clip + 1) + degree[key], self.num_labels)
