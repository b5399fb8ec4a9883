"""Paths through a tree as labels: the types of all edges on the way from the query to the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers.graph.edge_type import edge_types
from relgraph.labelers.graph.paths import MOST_STEPS, PathLabels, unique_paths, with_columns
from relgraph.labelers.tree.walk import TreeWalk, walk
from relgraph.labelers.written import label_pairs
from relgraph.labels import LabelCounts, SumCounts

LONGER = ("first", "one")


@final
@dataclass(frozen=True)
class TreePaths:
    """The whole way from query to key through their lowest common ancestor: one id for each different path of a batch.

    A step up along an edge of type t is t, a step down is t + ``num_types``; the path from a node to itself is empty.
    How many labels there are depends on the input, so this is no :class:`~relgraph.Labeler`: a bank computes the rows
    of the tables from the paths.

    Source: Zhu et al. 2019 (paths of labels, and their first few steps); Cai and Lam 2020 (one path for all that are
    too long).

    Args:
        max_length: how many steps a path has at most, at least 1.
        num_types: how many edge types there are, at least 1; a graph without types has one.
        longer: what longer paths become: their ``"first"`` steps, ``max_length`` of them; or ``"one"`` path for them
            all, the single step ``2 * num_types``.
        forest: whether a graph may hold several trees; pairs across them attend without a label.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a number below 1, more than 2^16 steps or 2^20 types, or an unknown choice.

    Example:
        >>> tree = rg.Graph.from_parents(torch.tensor([1, -1, 1]), edge_type=torch.tensor([0, 0, 1]))
        >>> labels, paths = rg.TreePaths(4, 2)(tree)
        >>> labels.to_dense()[0]
        tensor([[[0, 1, 2],
                 [5, 0, 6],
                 [4, 3, 0]]])
        >>> paths  # nothing; up 0; up 0 and down 1; up 1; up 1 and down 0; down 0; down 1
        tensor([[-1, -1, -1, -1],
                [ 0, -1, -1, -1],
                [ 0,  3, -1, -1],
                [ 1, -1, -1, -1],
                [ 1,  2, -1, -1],
                [ 2, -1, -1, -1],
                [ 3, -1, -1, -1]])
    """

    max_length: int
    num_types: int
    longer: str = "first"
    forest: bool = False

    def __post_init__(self) -> None:
        check.integer("max_length", self.max_length, minimum=1, maximum=MOST_STEPS)
        check.integer("num_types", self.num_types, minimum=1, maximum=check.MOST_LABELS)
        check.choice("longer", self.longer, LONGER)
        check.boolean("forest", self.forest)

    @property
    def num_steps(self) -> int:
        """How many different steps there are, for the bank to embed; up and down for each type, and one too long."""
        return 2 * self.num_types + (self.longer == "one")

    def __call__(self, graph: Graph) -> PathLabels:
        """The labels of a tree, or of a packed batch, and the paths that they number.

        Args:
            graph: edges from parent to child, their ``edge_type`` in ``[0, num_types)``.

        Returns:
            Labels of all pairs, whose ids are rows of ``paths``, and ``paths`` ``[U, max_length]``, int64, each padded
            at its end with -1.

        Raises:
            TypeError: what is no Graph.
            ValueError: no tree: two parents, a cycle, or several roots in a graph; or edge types out of range.
        """
        tree = walk(graph, forest=self.forest)
        types = torch.zeros_like(tree.parents).scatter(0, graph.edge_index[1], edge_types(graph, self.num_types))
        query, key = graph.pairs()
        up, down = tree.steps(query, key)
        joined = up >= 0
        query, key, up, down = (x[joined] for x in (query, key, up, down))
        found, paths = unique_paths(self._sequences(tree, types, query, key, up, down))
        ids = torch.full_like(joined, -1, dtype=torch.int64).masked_scatter(joined, found)
        return PathLabels(label_pairs(graph, ids, paths.shape[0]), with_columns(paths, self.max_length))

    def describe(self, graph: Graph) -> LabelCounts | SumCounts:
        """The paths of a graph and how many pairs each joins; see :class:`~relgraph.PathLabels`.

        Args:
            graph: edges from parent to child, their ``edge_type`` in ``[0, num_types)``.

        Returns:
            :class:`~relgraph.LabelCounts`; a path is named by its entries, ``"2 0"``, and the empty one ``"empty"``.

        Raises:
            TypeError: what is no Graph.
            ValueError: no tree, or edge types out of range, or missing where there are several.
        """
        return self(graph).describe()

    def _sequences(self, tree: TreeWalk, types: Tensor, query: Tensor, key: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """The steps of every path, ``[P, max_length]``; fewer columns where no path is that long, but one at least."""
        length = up + down
        width = min(self.max_length, max(int(length.max()), 1) if length.numel() else 1)
        columns: list[Tensor] = []
        for step in range(width):
            rising = step < up
            # A step up leaves its node, a step down arrives there: either way the node hangs on the edge.
            depth = torch.where(rising, tree.depth[query] - step, tree.depth[key] - length + step + 1)
            node = torch.where(rising, query, key)
            at = tree.ancestor(node, torch.minimum(depth, tree.depth[node]))
            columns.append(torch.where(step < length, types[at] + self.num_types * ~rising, -1))
        sequences = torch.stack(columns, 1)
        if self.longer == "one":
            long = sequences.new_full((width,), -1)
            long[0] = 2 * self.num_types
            sequences = torch.where((length > self.max_length)[:, None], long, sequences)
        return sequences
