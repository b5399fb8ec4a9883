"""Paths through a tree as labels: the types of all edges on the way from the query to the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import label_pairs
from relgraph.labelers.graph.edge_type import edge_types
from relgraph.labelers.graph.paths import GraphPaths, PathLabels, unique_paths, with_columns
from relgraph.labelers.tree.walk import TreeWalk, walk_tree


@final
@dataclass(frozen=True)
class TreePaths(GraphPaths):
    """Label each pair by its whole path through the lowest common ancestor: one id for each different path of a batch.

    A step up along an edge of type t is t, a step down is t + ``num_types``; the path from a node to itself is empty.
    The number of labels depends on the input, so this is not a :class:`~relgraph.Labeler`: a bank computes the rows of
    the tables from the paths.

    Source: Zhu et al. 2019 (paths as labels, cut after their first steps).

    Args:
        max_length: the most steps of a path, at least 1; a longer path is cut after them.
        num_types: how many edge types there are, at least 1; a graph without types has one.
        forest: whether a graph may hold several trees; pairs across trees attend without a label.

    Raises:
        ValueError: more than 2^16 steps or 2^20 types.

    Example:
        >>> tree = rg.Graph.from_parents(torch.tensor([1, -1, 1]), edge_type=torch.tensor([0, 0, 1]))
        >>> labels, paths = rg.labelers.TreePaths(4, 2)(tree)
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

    forest: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.boolean("forest", self.forest)

    @property
    def num_steps(self) -> int:
        """How many different entries a bank must embed; two per type, up and down."""
        return 2 * self.num_types

    def __call__(self, graph: Graph) -> PathLabels:
        """The paths of all pairs of a tree, or of each tree of a packed batch.

        Args:
            graph: edges from parent to child, their ``edge_type`` in ``[0, num_types)``.

        Returns:
            Labels of all pairs, whose ids are rows of ``paths``, and ``paths`` ``[U, max_length]``, int64, each padded
            at its end with -1.

        Raises:
            ValueError: a node with two parents, a cycle, or several roots in a graph; edge types out of range, or
                missing if there are several.
        """
        tree = walk_tree(graph, forest=self.forest)
        types = torch.zeros_like(tree.parents).scatter(0, graph.edge_index[1], edge_types(graph, self.num_types))
        query, key = graph.pairs()
        up, down = tree.steps(query, key)
        joined = up >= 0
        query, key, up, down = (x[joined] for x in (query, key, up, down))
        found, paths = unique_paths(self._steps(tree, types, query, key, up, down))
        ids = torch.full_like(joined, -1, dtype=torch.int64).masked_scatter(joined, found)
        return PathLabels(label_pairs(graph, ids, paths.shape[0]), with_columns(paths, self.max_length))

    def _steps(self, tree: TreeWalk, types: Tensor, query: Tensor, key: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """The steps of every path, ``[P, max_length]``; fewer columns if no path is that long, but at least one."""
        length = up + down
        width = min(self.max_length, max(int(length.max()), 1) if length.numel() else 1)
        columns: list[Tensor] = []
        for step in range(width):
            rising = step < up
            # A step's edge belongs to its lower node: the one that a step up leaves, or a step down arrives at.
            depth = torch.where(rising, tree.depth[query] - step, tree.depth[key] - length + step + 1)
            node = torch.where(rising, query, key)
            at = tree.ancestor(node, torch.minimum(depth, tree.depth[node]))
            columns.append(torch.where(step < length, types[at] + self.num_types * ~rising, -1))
        return torch.stack(columns, 1)
