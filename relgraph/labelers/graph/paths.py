"""Paths as labels: ids of a batch's unique sequences, and these sequences for a bank to compute table rows from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import label_pairs
from relgraph.labelers.graph.edge_type import edge_types
from relgraph.labelers.graph.shortest_path import pair_positions, shortest_path_lengths, walkable_edges
from relgraph.labels import UNLABELED, LabelCounts, Labels, SumCounts

MOST_STEPS = 1 << 16  # of a path that becomes a label


class PathLabels(NamedTuple):
    """Labels whose ids number sequences of types, together with these sequences.

    Pass ``labels`` to attention. A bank (see :class:`~relgraph.nn.LabelTable`) takes ``paths`` as its features and
    computes one row per path, however many pairs have this path. :class:`~relgraph.labelers.ShortestPathTypes` and
    :class:`~relgraph.labelers.TreePaths` make these labels.

    Args:
        labels: labels in which the id of a pair is the row of its path in ``paths``; -1 for no path.
        paths: ``[U, L]``, int64, the unique sequences of types, each padded at its end with -1.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0], [1]]), 2)
        >>> labels, paths = rg.labelers.ShortestPathTypes(2, 1)(graph)
        >>> paths  # nothing; along the edge; against it
        tensor([[-1, -1],
                [ 0, -1],
                [ 1, -1]])
        >>> labels.to_dense()[0]
        tensor([[[0, 2],
                 [1, 0]]])
        >>> rg.labelers.ShortestPathTypes(2, 1)(graph).lengths
        tensor([0, 1, 1])
    """

    labels: Labels
    paths: Tensor

    def __repr__(self) -> str:
        return brief_fields(self, "labels", "paths")

    @property
    def lengths(self) -> Tensor:
        """The number of types of each path, ``[U]``; 0 for the path from a node to itself."""
        return (self.paths >= 0).sum(1)

    def describe(self) -> LabelCounts | SumCounts:
        """Count the pairs of each path, as a value that prints a table; types name a path: ``"2 0"``.

        Returns:
            :class:`~relgraph.labels.LabelCounts`.

        Example:
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
            >>> rg.labelers.ShortestPathTypes(1, 2)(graph).describe().counts
            {'empty': 3, '0': 1, '1': 1, '2': 1, '3': 1}
        """
        rows = self.paths.tolist()
        return self.labels.describe([" ".join(str(step) for step in row if step >= 0) or "empty" for row in rows])


def unique_paths(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Which unique row each row equals, ``[P]``, and the unique rows, ``[U, L]``, in lexicographic order.

    ``sequences`` is ``[P, L]``, int64: the steps of each path below 2^31, padded at its end with -1.
    """
    count, length = sequences.shape
    base = int(sequences.max()) + 2 if sequences.numel() else 2
    ids, known = sequences.new_zeros(count), 1
    for column in range(length):
        # One number per prefix, renumbered before it can overflow: sorting numbers is far faster than sorting rows.
        if known > 2**62 // base:
            unique, ids = ids.unique(return_inverse=True)
            known = unique.shape[0]
        ids, known = ids * base + sequences[:, column] + 1, known * base
    unique, ids = ids.unique(return_inverse=True)
    first = sequences.new_zeros(unique.shape[0]).scatter(0, ids, torch.arange(count, device=ids.device))  # [U]
    return ids, sequences[first]


@dataclass(frozen=True)
class GraphPaths(ABC):
    """The base class of callables that label pairs by paths; every batch has its own labels, so it is not a Labeler."""

    max_length: int
    num_types: int

    def __post_init__(self) -> None:
        check.integer("max_length", self.max_length, minimum=1, maximum=MOST_STEPS)
        check.integer("num_types", self.num_types, minimum=1, maximum=check.MOST_LABELS)

    @abstractmethod
    def __call__(self, graph: Graph) -> PathLabels: ...

    @final
    def describe(self, graph: Graph) -> LabelCounts | SumCounts:
        """Count the pairs of each path of a graph; see :class:`~relgraph.labelers.PathLabels`.

        Args:
            graph: as in a call.

        Returns:
            :class:`~relgraph.labels.LabelCounts`.

        Raises:
            TypeError, ValueError: as in a call.
        """
        return self(graph).describe()


@final
@dataclass(frozen=True)
class ShortestPathTypes(GraphPaths):
    """Label each pair by the types of the edges along one shortest path: one id for each different sequence of types.

    A sequence begins with the edge next to the query and ends with the one next to the key. An edge that leads towards
    the query (its source on the key's side) counts as its type t, and an edge walked against its direction as
    ``t + num_types``. The path of a node to itself is empty. Pairs without a path, or with a longer one, have no label.
    If there are several shortest paths, the first in the order of ``edge_index`` counts, compared edge by edge from the
    query on; edges that lead towards the query come before the others.

    This is not a :class:`~relgraph.Labeler`, because the number and meaning of labels differ from batch to batch. A
    bank computes the rows of the tables from the paths (see :class:`~relgraph.nn.LabelTable`).

    Source: Cai and Lam 2020 (Graph Transformer).

    Args:
        max_length: the most edges of a path, at least 1.
        num_types: how many edge types there are, at least 1. A graph without types has one.
        directed: whether paths follow edges only from source (key) to target (query); if False, both ways.

    Raises:
        TypeError, ValueError: a wrong type, a number below 1, or more than 2^16 edges or 2^20 types.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
        >>> labels, paths = rg.labelers.ShortestPathTypes(2, 2)(graph)
        >>> paths.tolist()
        [[-1, -1], [0, -1], [1, -1], [1, 0], [2, -1], [2, 3], [3, -1]]
        >>> labels.to_dense()[0]
        tensor([[[0, 4, 5],
                 [1, 0, 6],
                 [3, 2, 0]]])
    """

    _: KW_ONLY
    directed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.boolean("directed", self.directed)

    @property
    def num_steps(self) -> int:
        """How many different entries a bank must embed; the number of types, or twice that unless directed."""
        return self.num_types * (2 - self.directed)

    def __call__(self, graph: Graph) -> PathLabels:
        """The paths of all pairs of a graph, or of each graph of a packed batch.

        Args:
            graph: a graph with ``edge_type`` in ``[0, num_types)``.

        Returns:
            Labels of all pairs, whose ids are rows of ``paths``, and ``paths`` ``[U, max_length]``, int64. An entry
            below ``num_types`` is an edge walked along its direction, any other an edge walked against it.

        Raises:
            TypeError, ValueError: not a Graph, or edge types out of range or missing.
        """
        lengths = shortest_path_lengths(graph, self.max_length, directed=self.directed)
        types = path_types(graph, lengths, self.num_types, self.max_length, directed=self.directed)
        reached = lengths >= 0
        ids = torch.full_like(lengths, UNLABELED, dtype=torch.int64)
        ids[reached], paths = unique_paths(types[reached])
        return PathLabels(label_pairs(graph, ids, paths.shape[0]), with_columns(paths, self.max_length))


def path_types(graph: Graph, lengths: Tensor, num_types: int, max_length: int, *, directed: bool) -> Tensor:
    """The types of the first L = ``max_length`` edges of one shortest path for each pair, from the query on.

    ``[sum of n_g², L]``: t along an edge of type t, t + ``num_types`` against it, -1 for none. There are fewer columns
    if no path has L edges. ``lengths`` are those of :func:`~relgraph.labelers.shortest_path_lengths`.
    """
    types = edge_types(graph, num_types)
    types = torch.cat([types, types + num_types, types.new_full((1,), -1)])  # of each walkable edge, then of edge -1
    (row, column), (query, key) = pair_positions(graph), graph.pairs()
    source, target = walkable_edges(graph, directed=directed)
    order = target.argsort(stable=True)
    degree = torch.bincount(target, minlength=graph.num_nodes)
    begin = degree.cumsum(0) - degree
    last = torch.full_like(query, -1)
    left, rank = (lengths > 0).nonzero()[:, 0], 0
    while left.numel():  # try the first edge into each query; if it leads away, the second, and so on
        edge = order[begin[query[left]] + rank]
        nearer = lengths[row[source[edge]] + column[key[left]]] == lengths[left] - 1
        last[left[nearer]] = edge[nearer]
        left, rank = left[~nearer], rank + 1
    hops, at = [], torch.arange(query.shape[0], device=graph.device)
    before = torch.cat([row[source], row.new_zeros(1)])  # the zero for edge -1, which ends a path
    for _ in range(min(max_length, int(lengths.max()) if lengths.numel() else 0)):
        hops.append(last[at])
        at = torch.where(hops[-1] < 0, at, before[hops[-1]] + column[key])
    return types[torch.stack(hops, 1) if hops else last[:, None][:, :0]]


def with_columns(sequences: Tensor, count: int) -> Tensor:
    """The sequences, padded with -1 to ``count`` columns."""
    return torch.nn.functional.pad(sequences, (0, count - sequences.shape[1]), value=-1)
