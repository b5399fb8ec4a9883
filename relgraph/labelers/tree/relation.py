"""Labels by kinship in a tree: parent, child, sibling and so on; or steps up and down via the common ancestor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labelers.base import Clip, as_clip, two_clips
from relgraph.labelers.tree.walk import walk_tree
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels

KINDS = ("self", "parent", "child", "sibling", "ancestor", "descendant")
DEFAULTS = ("other", "unlabeled")  # or None: what pairs of no kind do

# The kind of a pair by steps up (rows: 0, 1, more) and steps down (columns); the last entry is for different trees.
_BY_STEPS = (
    *("self", "child", "descendant"),
    *("parent", "sibling", "other"),
    *("ancestor", "other", "other"),
    "other",
)


@final
@dataclass(frozen=True, init=False, repr=False)
class TreeRelation(AllPairsLabeler):
    """What the key is to the query in a tree: itself, its parent, child, sibling, ancestor, descendant, or other.

    A parent is not an ``ancestor`` too, nor a child a ``descendant``. Every pair gets an id written out; if only
    parents and children attend, use ``EdgeType(["parent"], inverse=True)``, which lists the edges instead.

    Args:
        kinds: which of these have a label, in the order of ids: ``"self"``, ``"parent"``, ``"child"``, ``"sibling"``,
            ``"ancestor"``, ``"descendant"``.
        default: what all other pairs do. ``"other"``: they have the label ``other``. ``"unlabeled"``: they attend
            without a label, so that ``|`` can add one. None: they do not attend.
        forest: whether a graph may hold several trees; pairs across trees follow ``default``.

    Raises:
        TypeError, ValueError: a wrong type, an unknown choice, or a repeated kind.

    Example:
        >>> labeler = rg.TreeRelation()
        >>> labeler.names
        ('self', 'parent', 'child', 'sibling', 'ancestor', 'descendant', 'other')
        >>> tree = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2]))
        >>> labeler(tree).to_dense()[0]
        tensor([[[0, 2, 2, 5],
                 [1, 0, 3, 6],
                 [1, 3, 0, 2],
                 [4, 6, 1, 0]]])
    """

    kinds: tuple[str, ...]
    default: str | None
    forest: bool

    def __init__(self, kinds: Sequence[str] = KINDS, *, default: str | None = "other", forest: bool = False) -> None:
        if isinstance(kinds, str) or not isinstance(kinds, Sequence):
            raise TypeError(f"kinds must be a sequence of strings, got {shown(kinds)}")
        for kind in kinds:
            check.choice("kind", kind, KINDS)
        if len(set(kinds)) != len(kinds):
            raise ValueError(f"kinds must be different, got {list(kinds)}")
        if default is not None:
            check.choice("default", default, DEFAULTS)
        self._set(kinds=tuple(kinds), default=default, forest=check.boolean("forest", forest))

    @property
    def num_labels(self) -> int:
        """One per kind, and one more for ``other``."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds, and ``"other"``."""
        return (*self.kinds, "other") if self.default == "other" else self.kinds

    def _why_never_unlabeled(self) -> str | None:
        if self.default == "unlabeled":
            return None
        others = "do not attend" if self.default is None else "have the label 'other'"
        return f"its other pairs {others} because default={self.default!r}: give it default='unlabeled'"

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        up, down = walk_tree(graph, forest=self.forest).steps(*graph.pairs())
        kind = torch.where(up < 0, len(_BY_STEPS) - 1, up.clamp(max=2) * 3 + down.clamp(max=2))
        other = len(self.kinds) if self.default == "other" else UNLABELED
        id_of = [self.kinds.index(kind) if kind in self.kinds else other for kind in _BY_STEPS]
        ids = torch.tensor(id_of, device=graph.device)[kind]
        return label_pairs(graph, ids, self.num_labels, attend=ids >= 0 if self.default is None else None)


@final
@dataclass(frozen=True, init=False, repr=False)
class UpDown(AllPairsLabeler):
    """How many steps lead up from the query to the lowest common ancestor, and how many down from there to the key.

    With ``clip=(U, D)`` the id is ``min(up, U) * (D + 1) + min(down, D)``; pairs of different trees come last.

    Args:
        clip: the largest number of steps up, and down, with its own labels, from 0; more steps count as this many. Or a
            pair (up, down).
        forest: whether a graph may hold several trees; pairs across trees have the label ``unconnected``.

    Raises:
        TypeError, ValueError: a wrong type, a negative number of steps, or more than 2^20 labels.

    Example:
        >>> labeler = rg.UpDown((2, 1))
        >>> labeler.names
        ('↑0↓0', '↑0↓1', '↑1↓0', '↑1↓1', '↑2↓0', '↑2↓1')
        >>> labeler(rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2]))).to_dense()[0]
        tensor([[[0, 1, 1, 1],
                 [2, 0, 3, 3],
                 [2, 3, 0, 1],
                 [4, 5, 2, 0]]])
    """

    clip: Clip
    forest: bool

    def __init__(self, clip: Clip, *, forest: bool = False) -> None:
        self._set(clip=as_clip(*two_clips(clip)), forest=check.boolean("forest", forest))
        check.most_labels("clip", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``(U + 1) * (D + 1)`` for ``clip=(U, D)``, and one more for a forest."""
        most_up, most_down = two_clips(self.clip)
        return (most_up + 1) * (most_down + 1) + self.forest

    @property
    def names(self) -> tuple[str, ...]:
        """``"↑2↓1"``, two up and one down; the largest numbers hold for all beyond."""
        most_up, most_down = two_clips(self.clip)
        names = [f"↑{up}↓{down}" for up in range(most_up + 1) for down in range(most_down + 1)]
        return (*names, *["unconnected"] * self.forest)

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        up, down = walk_tree(graph, forest=self.forest).steps(*graph.pairs())
        most_up, most_down = two_clips(self.clip)
        ids = up.clamp(max=most_up) * (most_down + 1) + down.clamp(max=most_down)
        return label_pairs(graph, torch.where(up < 0, self.num_labels - 1, ids), self.num_labels)
