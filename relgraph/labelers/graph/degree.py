"""Labels by degree: how many edges the query has, and how many the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_pairs
from relgraph.labelers.base import Labeler
from relgraph.labelers.written import label_pairs
from relgraph.labels import BlockLabels, DenseLabels

DIRECTIONS = ("in", "out", "both")


@final
@dataclass(frozen=True)
class Degree(Labeler):
    """One label for each pair of degrees, clipped: ``degree_i * (max_degree + 1) + degree_j``, the query's first.

    A node's degree is how many edges it has. A name reads query→key, ``"1→>=4"`` for a query with one edge that looks
    at a key with four or more: against the direction of edges, which lead from key to query. Labels of all pairs of a
    graph are written out.

    Args:
        max_degree: the largest degree told apart, from 0; larger ones count as this.
        direction: which edges of a node count: those ``"in"`` to it (it is the target, the query), ``"out"`` of it (the
            source, the key), or ``"both"``. Each of several parallel edges counts, a self-loop once in and once out.

    Raises:
        TypeError: a degree that is no int.
        ValueError: a negative degree, more than 2^20 labels, or an unknown direction.

    Example:
        >>> labeler = rg.Degree(1)
        >>> labeler.names
        ('0→0', '0→>=1', '>=1→0', '>=1→>=1')
        >>> labeler(rg.Graph(torch.tensor([[0, 0], [1, 2]]), 3)).to_dense()[0]
        tensor([[[0, 1, 1],
                 [2, 3, 3],
                 [2, 3, 3]]])
    """

    max_degree: int
    direction: str = "in"

    def __post_init__(self) -> None:
        check.integer("max_degree", self.max_degree, minimum=0)
        check.most_labels("max_degree", self.num_labels)
        check.choice("direction", self.direction, DIRECTIONS)

    @property
    def num_labels(self) -> int:
        """``(max_degree + 1)²``."""
        return (self.max_degree + 1) ** 2

    @property
    def names(self) -> tuple[str, ...]:
        """``"query's degree→key's degree"``, who looks, then who is looked at; the largest as ``">=4"``."""
        degrees = (*map(str, range(self.max_degree)), f">={self.max_degree}")
        return tuple(f"{query}→{key}" for query in degrees for key in degrees)

    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of all pairs of a graph, or of each graph of a packed batch.

        Args:
            graph: whose edges are counted; their types do not matter.

        Returns:
            Dense labels for a graph alone, ``[1, N, N]``; block labels for a packed batch.
            Id ``a · (max_degree + 1) + b`` is called ``"a→b"``, the query's degree first.

        Raises:
            TypeError: what is no Graph.
            ValueError: more than 2^32 pairs, which are written out.
        """
        source, target = check_pairs(check_graph(graph)).edge_index
        ends = {"in": target, "out": source, "both": graph.edge_index.flatten()}[self.direction]
        degree = torch.bincount(ends, minlength=graph.num_nodes).clamp(max=self.max_degree)
        query, key = graph.pairs()
        return label_pairs(graph, degree[query] * (self.max_degree + 1) + degree[key], self.num_labels)
