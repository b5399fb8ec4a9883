"""The base class of all labelers: a number of labels, a name for each, and operators that compose labelers."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.graphs import Graph
from relgraph.labels import LabelCounts, Labels, SumCounts
from relgraph.labels.naming import KINDS, named_by

if TYPE_CHECKING:
    from relgraph.labelers.algebra import Dense, Priority, Product, Restriction, Sum


class Labeler(ABC):
    """A callable that turns an input into :class:`~relgraph.Labels`.

    Labelers are immutable, hashable and compare by value; ``repr`` shows the expression that makes one. Compose them by
    operators:

    - ``a * b``, product: one label for each pair of labels, ``a`` counting slowest (one table);
    - ``a + b``, sum: the terms of both add up, each with its own tables;
    - ``a | b``, priority: the label of ``a``; if it has none, the label of ``b``, whose ids follow those of ``a``;
    - ``a & b``, restriction: the labels of ``a``, for pairs that attend in both.

    A composed labeler calls each part with the same arguments. A part that reads only lengths, such as
    :class:`~relgraph.ClippedDistance`, takes them from the labels of the other parts if these read something else:
    ``(rg.Segments(2) + rg.ClippedDistance(4))(segments)``. If parts need different inputs, call each of them and
    compose the labels, by the same operators.

    To write your own, make a frozen dataclass with ``num_labels``, ``names`` and ``__call__``. There are shorter ways:
    :class:`~relgraph.FromFunction` for a function of two positions, :class:`~relgraph.labelers.DistanceLabeler` for a
    function of their distance, and :func:`~relgraph.labelers.label_pairs` for ids of all pairs of a graph.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class SameWord(rg.Labeler):
        ...     num_labels = 2
        ...     names = ("other word", "same word")
        ...     def __call__(self, words):
        ...         return rg.DenseLabels((words[:, None] == words).long(), self.num_labels)
        >>> labeler = SameWord() + rg.Segments(1)
        >>> labeler
        SameWord() + Segments(1)
        >>> labeler.names
        (('other word', 'same word'), ('0→0',))
        >>> SameWord()(torch.tensor([7, 3, 7])).to_dense()[0]
        tensor([[[1, 0, 1],
                 [0, 1, 0],
                 [1, 0, 1]]])
    """

    # whether it reads only lengths, so that a composed labeler may call it with those of the other parts
    _reads_lengths: ClassVar[Any] = False

    if TYPE_CHECKING:  # a subclass may have class attributes or properties
        num_labels: Any
        names: Any
    else:

        @property
        @abstractmethod
        def num_labels(self) -> int | tuple[int, ...]:
            """R, the number of labels; for a sum, one number per part."""

        @property
        @abstractmethod
        def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
            """The name of every id, all different; for a sum, one tuple per part."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for method in ("__call__", "at"):
            made = vars(cls).get(method)
            if callable(made) and not getattr(made, "__isabstractmethod__", False):
                setattr(cls, method, _gives_names(made))

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """The labels of an input.

        Args:
            args: the input that the labeler reads, such as a length or a graph.
            kwargs: options of that labeler.

        Returns:
            Labels with this labeler's ``num_labels``; id r means ``names[r]``.
        """

    def describe(self, *inputs: Any, **kwargs: Any) -> LabelCounts | SumCounts:
        """Count how many pairs of an input carry each label, as a value that prints a table.

        Args:
            *inputs: the arguments for a call of the labeler; without any, the table lists only ids and names.
            **kwargs: passed to the labeler.

        Returns:
            :class:`~relgraph.labels.LabelCounts`; for a sum, :class:`~relgraph.labels.SumCounts`.

        Raises:
            TypeError, ValueError, NotImplementedError: any error of the call; a result that is not Labels.

        Example:
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
            >>> counts = rg.EdgeType(["child", "next"], attend="all").describe(graph)
            >>> counts
            id  name                     pairs   share
             0  child                        1  11.1 %
             1  next                         1  11.1 %
            -1  attends without a label      7  77.8 %
            2 labels, 9 pairs
            >>> counts.counts["child"], counts.unlabeled
            (1, 7)
        """
        if inputs or kwargs:
            return check_made(self, self(*inputs, **kwargs)).describe(self.names)
        if isinstance(self.num_labels, int):
            return LabelCounts(self.num_labels, self.names)  # pyright: ignore[reportArgumentType]
        parts = zip(self.num_labels, self.names, strict=True)
        return SumCounts(tuple(LabelCounts(number, names) for number, names in parts))  # pyright: ignore[reportArgumentType]

    def dense(self) -> Dense:
        """Make a labeler of the same labels with every id written out: N_q · N_k elements.

        Returns:
            A labeler of :class:`~relgraph.DenseLabels`; for a sum, of a sum of dense labels.
        """
        return _composed("Dense", self)

    def __mul__(self, other: Labeler) -> Product:
        return _composed("Product", self, other)

    def __add__(self, other: Labeler) -> Sum:
        return _composed("Sum", self, other)

    def __or__(self, other: Labeler) -> Priority:
        return _composed("Priority", self, other)

    def __and__(self, other: Labeler) -> Restriction:
        return _composed("Restriction", self, other)

    def _why_never_unlabeled(self, /) -> str | None:
        """Why every pair that attends has a label, so that no labeler may follow by ``|``; None if some have none."""
        return None

    def __repr__(self) -> str:
        """The expression that makes it, without arguments that have their default value."""
        parts: list[str] = []
        written = inspect.signature(type(self)).parameters  # a constructor of its own has the defaults there
        for field in fields(self) if is_dataclass(self) else ():
            value, default = getattr(self, field.name), field.default
            if field.name == "types" and value == tuple(map(str, range(len(value)))):
                value = len(value)  # names that the constructor made of a number
            if default is MISSING and field.default_factory is MISSING and field.name in written:
                default = written[field.name].default
            by_default = default is not MISSING and default is not inspect.Parameter.empty
            if by_default and value == default:
                continue
            parts.append(f"{field.name}={value!r}" if by_default or field.kw_only else repr(value))
        return f"{type(self).__name__}({', '.join(parts)})"

    def _set(self, **given: Any) -> None:
        """Set fields of a frozen dataclass; only constructors call this."""
        for name, value in given.items():
            object.__setattr__(self, name, value)


def _composed(kind: str, *parts: Labeler) -> Any:
    from relgraph.labelers import algebra  # which imports this module

    return getattr(algebra, kind)(*parts)


class GraphLabeler(Labeler):
    """The base class of labelers that read a graph."""

    @abstractmethod
    def __call__(self, graph: Graph) -> Labels:
        """The labels of a graph, or of each graph of a packed batch.

        Args:
            graph: a graph with the edge or node types that the labeler reads, each in range. For a tree labeler, its
                edges lead from parent to child, as :meth:`Graph.from_parents <relgraph.Graph.from_parents>` makes them.

        Returns:
            Labels of its nodes. If all pairs are written out, dense labels ``[1, N, N]``, or block labels for a packed
            batch; otherwise edge labels. Id r is called ``names[r]``, in part p of a sum ``names[p][r]``.

        Raises:
            ValueError: types that are missing or out of range; several edges of one pair with ``duplicates="error"``;
                more than 2^32 pairs to write out; for a tree labeler, a node with two parents, a cycle, or several
                roots in a graph.
        """


def _gives_names(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that returns labels, which then know the labeler and by it their names."""

    @functools.wraps(method)
    def named(self: Labeler, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        if type(made) in KINDS and made._named is self:  # labels of a length, made before
            return made
        return made if torch.compiler.is_compiling() else named_by(self, made)

    return named


def check_operand(symbol: str, value: Any) -> Labeler:
    """Return ``value``; raise TypeError unless it is a labeler."""
    if not isinstance(value, Labeler):
        hint = ": compose labels with labels" if isinstance(value, Labels) else ""
        raise TypeError(f"the operand of {symbol} must be a Labeler, got {type(value).__name__}{hint}")
    return value


def check_made(labeler: Any, labels: Any) -> Labels:
    """Return ``labels``, made by ``labeler``; raise TypeError unless they are Labels."""
    if type(labels) not in KINDS and not isinstance(labels, Labels):
        raise TypeError(f"the labels of {type(labeler).__name__} must be Labels, got {in_place_of_labels(labels)}")
    return labels


def why_all_labeled(_: Any) -> str:
    """Answer :meth:`Labeler._why_never_unlabeled` for a labeler that leaves no pair without a label."""
    return "it labels every pair that attends: put it last"


def unusual(thing: Any, **usual: Any) -> str:
    """The options of ``thing`` that differ from the ``usual`` ones, as ``repr`` shows them after other arguments."""
    return "".join(
        f", {name}={getattr(thing, name)!r}" for name, value in usual.items() if getattr(thing, name) != value
    )


Clip = int | tuple[int, int]
"""Up to where distances have labels of their own: on both sides, or on each."""


def two_clips(clip: Any) -> tuple[int, int]:
    """The clips of both sides, checked."""
    if not isinstance(clip, (tuple, list)):
        one = check.integer("clip", clip, minimum=0)
        return one, one
    if len(clip) != 2:
        raise ValueError(f"clip must be an int or two of them, got {len(clip)}")
    return check.integer("clip[0]", clip[0], minimum=0), check.integer("clip[1]", clip[1], minimum=0)


def as_clip(first: int, second: int) -> Clip:
    """Two clips as one argument."""
    return first if first == second else (first, second)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names in order; a repeated name gets a prime."""
    seen: dict[str, None] = {}
    for name in names:
        fresh = name
        while fresh in seen:
            fresh += "′"
        seen[fresh] = None
    return tuple(seen)
