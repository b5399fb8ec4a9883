"""Labels by signed distance in a tree: between ancestors, between siblings, or by depth and order."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import AllPairsLabeler, check_default, label_pairs, label_with_default, names_and_other
from relgraph.labelers.base import why_default_labels
from relgraph.labelers.tree.walk import TreeWalk, walk_tree
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels


@dataclass(frozen=True, repr=False)
class TreeDistance(AllPairsLabeler):
    """The base class of labelers by a clipped, signed distance that some pairs of a tree have."""

    clip: int
    default: str | None = "unlabeled"
    forest: bool = False

    def __post_init__(self) -> None:
        check.integer("clip", self.clip, minimum=0)
        check.most_labels("clip", 2 * self.clip + 2)
        check_default(self.default)
        check.boolean("forest", self.forest)

    @property
    def num_labels(self) -> int:
        """``2 * clip + 1``, and one more for ``other``."""
        return 2 * self.clip + 1 + (self.default == "other")

    @property
    def names(self) -> tuple[str, ...]:
        """The distances from ``-clip`` up, and ``"other"``."""
        return names_and_other(_distances(self.clip), self.default)

    _why_never_unlabeled = why_default_labels

    @final
    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        distance, related = self._distance(walk_tree(graph, forest=self.forest), *graph.pairs())
        ids = torch.where(related, _clipped(distance, self.clip), UNLABELED)
        return label_with_default(graph, ids, self.num_labels, self.default)

    @abstractmethod
    def _distance(self, tree: TreeWalk, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The distance of each pair, and which pairs have one."""


@final
@dataclass(frozen=True, repr=False)
class AncestorDistance(TreeDistance):
    """How many levels the key is below the query if one is an ancestor of the other: ``depth_j - depth_i``, clipped.

    The distance is negative if the key is an ancestor, positive if it is a descendant, and 0 for the node itself. Id r
    is the distance ``r - clip``.

    Source: Zügner et al. 2021 (Code Transformer), the distance ``ancestor_sp``.

    Args:
        clip: the largest distance up or down with its own label, from 0.
        default: what all other pairs do. ``"unlabeled"``: they attend without a label, so that ``|`` can add one.
            ``"other"``: they have the label ``other``. None: they do not attend.
        forest: whether a graph may hold several trees; pairs across trees follow ``default``.

    Raises:
        TypeError, ValueError: a wrong type, a negative clip, more than 2^20 labels, or an unknown choice.

    Example:
        >>> labeler = rg.AncestorDistance(2, default="other")
        >>> labeler.names
        ('-2', '-1', '0', '1', '2', 'other')
        >>> labeler(rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2]))).to_dense()[0]
        tensor([[[2, 3, 3, 4],
                 [1, 2, 5, 5],
                 [1, 5, 2, 3],
                 [0, 5, 1, 2]]])
    """

    def _distance(self, tree: TreeWalk, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        steps = tree.steps(query, key)
        return steps.down - steps.up, steps.in_line


@final
@dataclass(frozen=True, repr=False)
class SiblingDistance(TreeDistance):
    """How many siblings the key is after the query, if both have the same parent: ``rank_j - rank_i``, clipped.

    Siblings are in the order of nodes; a node is at distance 0 from itself. Id r is the distance ``r - clip``.

    Source: Zügner et al. 2021 (Code Transformer), the distance ``sibling_sp``.

    Args:
        clip, default: as in :class:`~relgraph.AncestorDistance`.
        forest: whether a graph may hold several trees; their roots are not siblings.

    Raises:
        TypeError, ValueError: a wrong type, a negative clip, more than 2^20 labels, or an unknown choice.

    Example:
        >>> labeler = rg.SiblingDistance(1)
        >>> labeler.names
        ('-1', '0', '1')
        >>> labeler(rg.Graph.from_parents(torch.tensor([-1, 0, 0, 0]))).to_dense()[0]
        tensor([[[ 1, -1, -1, -1],
                 [-1,  1,  2,  2],
                 [-1,  0,  1,  2],
                 [-1,  0,  0,  1]]])
    """

    def _distance(self, tree: TreeWalk, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        above = tree.parents[query]
        together = (above == tree.parents[key]) & (above >= 0) | (query == key)
        return tree.rank[key] - tree.rank[query], together


@final
@dataclass(frozen=True, repr=False)
class StructuralPosition(AllPairsLabeler):
    """Distance by depth along one branch of a tree, and by depth and the order of nodes across branches; clipped.

    ``depth_j - depth_i`` if one node is an ancestor of the other; otherwise ``depth_i + depth_j``, negative if the key
    comes before the query in the order of nodes. All signs are those of j - i. Id r is the distance ``r - clip``.

    Source: Wang et al. 2019, relative structural positions.

    Args:
        clip: the largest distance of either sign with its own label, from 0.
        forest: whether a graph may hold several trees; pairs across trees have the label ``unconnected``.

    Raises:
        TypeError, ValueError: a wrong type, a negative clip, or more than 2^20 labels.

    Example:
        >>> labeler = rg.labelers.StructuralPosition(3)
        >>> labeler.names
        ('-3', '-2', '-1', '0', '1', '2', '3')
        >>> labeler(rg.Graph.from_parents(torch.tensor([1, -1, 3, 1]))).to_dense()[0] - 3
        tensor([[[ 0, -1,  3,  2],
                 [ 1,  0,  2,  1],
                 [-3, -2,  0, -1],
                 [-2, -1,  1,  0]]])
    """

    clip: int
    forest: bool = False

    def __post_init__(self) -> None:
        check.integer("clip", self.clip, minimum=0)
        check.most_labels("clip", 2 * self.clip + 2)
        check.boolean("forest", self.forest)

    @property
    def num_labels(self) -> int:
        """``2 * clip + 1``, and one more for a forest."""
        return 2 * self.clip + 1 + self.forest

    @property
    def names(self) -> tuple[str, ...]:
        """The distances from ``-clip`` up, and ``"unconnected"``."""
        return (*_distances(self.clip), *["unconnected"] * self.forest)

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        tree = walk_tree(graph, forest=self.forest)
        query, key = graph.pairs()
        steps = tree.steps(query, key)
        across = (tree.depth[query] + tree.depth[key]) * (key - query).sign()
        ids = _clipped(torch.where(steps.in_line, steps.down - steps.up, across), self.clip)
        return label_pairs(graph, torch.where(steps.up < 0, self.num_labels - 1, ids), self.num_labels)


def _distances(clip: int) -> tuple[str, ...]:
    return tuple(str(distance) for distance in range(-clip, clip + 1))


def _clipped(distance: Tensor, clip: int) -> Tensor:
    """The id of each distance."""
    return distance.clamp(-clip, clip) + clip
