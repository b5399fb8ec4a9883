"""Labels by kinship in a tree: parent, child, sibling, or steps up and down through the common ancestor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.labelers.base import Labeler, unusual, why_no_rest
from relgraph.labelers.tree.walk import walk
from relgraph.labelers.written import check_default, label_pairs, with_other, written_with_rest
from relgraph.labels import BlockLabels, DenseLabels

KINDS = ("self", "parent", "child", "sibling", "ancestor", "descendant")

# The kind of a pair by steps up and steps down, 0, 1, or 2 and more of each; the last entry is for two trees.
_BY_STEPS = (
    *("self", "child", "descendant"),
    *("parent", "sibling", "other"),
    *("ancestor", "other", "other"),
    "other",
)


@final
@dataclass(frozen=True, init=False, repr=False)
class TreeRelation(Labeler):
    """What the key is to the query in a tree: itself, its parent, child, sibling, ancestor, descendant, or other.

    ``ancestor`` and ``descendant`` are those farther than ``parent`` and ``child``. Every pair gets an id written out;
    where parents and children alone attend, ``EdgeType(["parent"], inverse=True)`` lists the edges instead.

    Args:
        kinds: which of these have a label, in the order of ids: ``"self"``, ``"parent"``, ``"child"``, ``"sibling"``,
            ``"ancestor"``, ``"descendant"``.
        default: what all other pairs do: ``"other"``, they carry that label; ``"unlabeled"``, they attend without one,
            so that ``|`` can fill in another; None, they do not attend.
        forest: whether a graph may hold several trees; pairs across them are others.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: an unknown choice, or a kind that is there twice.

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
        self._set(kinds=tuple(kinds), default=check_default(default), forest=check.boolean("forest", forest))

    @property
    def num_labels(self) -> int:
        """One a kind, and one more for ``other``."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds, and ``"other"``."""
        return with_other(self.kinds, self.default)

    def _why_never_unlabeled(self) -> str | None:
        return why_no_rest(self)

    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of all pairs of a tree, or of each tree of a packed batch.

        Args:
            graph: edges from parent to child, as :meth:`Graph.from_parents <relgraph.Graph.from_parents>` makes it.

        Returns:
            Dense labels for a graph alone, ``[1, N, N]``; block labels for a packed batch.
            Id r is called ``names[r]``; ``other`` comes last.

        Raises:
            TypeError: what is no Graph.
            ValueError: no tree: two parents, a cycle, or several roots in a graph.
        """
        up, down = walk(graph, forest=self.forest).steps(*graph.pairs())
        which = torch.where(up < 0, len(_BY_STEPS) - 1, up.clamp(max=2) * 3 + down.clamp(max=2))
        ids = [self.kinds.index(kind) if kind in self.kinds else -1 for kind in _BY_STEPS]
        return written_with_rest(graph, torch.tensor(ids, device=graph.device)[which], self.num_labels, self.default)

    def __repr__(self) -> str:
        options = unusual(self, default="other", forest=False)
        kinds = "" if self.kinds == KINDS else repr(self.kinds)
        return f"TreeRelation({(kinds + options).removeprefix(', ')})"


@final
@dataclass(frozen=True, init=False, repr=False)
class UpDown(Labeler):
    """How many steps lead up from the query to the lowest common ancestor, and how many down from there to the key.

    ``clip(up, 0, max_up) * (max_down + 1) + clip(down, 0, max_down)``; pairs of different trees come last.

    Args:
        max_up: how many steps up are told apart, from 0; more count as this many.
        max_down: how many steps down; ``max_up`` when left out.
        forest: whether a graph may hold several trees; pairs across them carry the label ``unconnected``.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a negative number of steps, or more than 2^20 labels.

    Example:
        >>> labeler = rg.UpDown(2, 1)
        >>> labeler.names
        ('↑0↓0', '↑0↓1', '↑1↓0', '↑1↓1', '↑2↓0', '↑2↓1')
        >>> labeler(rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2]))).to_dense()[0]
        tensor([[[0, 1, 1, 1],
                 [2, 0, 3, 3],
                 [2, 3, 0, 1],
                 [4, 5, 2, 0]]])
    """

    max_up: int
    max_down: int
    forest: bool

    def __init__(self, max_up: int, max_down: int | None = None, *, forest: bool = False) -> None:
        check.integer("max_up", max_up, minimum=0)
        self._set(
            max_up=max_up,
            max_down=max_up if max_down is None else check.integer("max_down", max_down, minimum=0),
            forest=check.boolean("forest", forest),
        )
        check.most_labels("max_up and max_down", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``(max_up + 1) * (max_down + 1)``, and one more for a forest."""
        return (self.max_up + 1) * (self.max_down + 1) + self.forest

    @property
    def names(self) -> tuple[str, ...]:
        """``"↑2↓1"``, two up and one down; the largest of either stands for all beyond."""
        names = [f"↑{up}↓{down}" for up in range(self.max_up + 1) for down in range(self.max_down + 1)]
        return (*names, *["unconnected"] * self.forest)

    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of all pairs of a tree, or of each tree of a packed batch.

        Args:
            graph: edges from parent to child, as :meth:`Graph.from_parents <relgraph.Graph.from_parents>` makes it.

        Returns:
            Dense labels for a graph alone, ``[1, N, N]``; block labels for a packed batch.
            Id r is called ``names[r]``, such as ``"↑2↓1"``; ``unconnected`` comes last.

        Raises:
            TypeError: what is no Graph.
            ValueError: no tree: two parents, a cycle, or several roots in a graph.
        """
        up, down = walk(graph, forest=self.forest).steps(*graph.pairs())
        ids = up.clamp(max=self.max_up) * (self.max_down + 1) + down.clamp(max=self.max_down)
        return label_pairs(graph, torch.where(up < 0, self.num_labels - 1, ids), self.num_labels)

    def __repr__(self) -> str:
        sides = str(self.max_up) if self.max_down == self.max_up else f"{self.max_up}, {self.max_down}"
        return f"UpDown({sides}{unusual(self, forest=False)})"
