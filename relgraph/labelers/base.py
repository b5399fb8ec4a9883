"""What every labeler shares: a number of labels, a name for each, and the operators that compose labelers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from relgraph.arguments.hints import in_place_of_labels
from relgraph.labels import LabelCounts, Labels, SumCounts

if TYPE_CHECKING:
    from relgraph.labelers.algebra import Dense, Priority, Product, Restriction, Sum


OPERATORS: dict[str, Callable[..., Any]] = {}
"""What each operator makes. ``relgraph.labelers.algebra`` fills it in, because what it makes are labelers too."""


class Labeler(ABC):
    """How labels come from an input: a callable from the input to :class:`~relgraph.Labels`.

    Labelers are immutable, hashable and compare by value; ``repr`` is the expression that makes one. They compose:

    - ``a * b``, product: one label for each pair of labels, ``a`` counting slowest (one table);
    - ``a + b``, sum: the terms of both add up, each with its own tables;
    - ``a | b``, priority: the label of ``b``, after those of ``a``, where ``a`` carries none;
    - ``a & b``, restriction: the labels of ``a``, and only the pairs that attend in ``b`` too.

    A composed labeler calls each of its parts with the same arguments. Where the inputs differ, call the labelers one
    by one and compose the labels: :func:`~relgraph.product`, :func:`~relgraph.total`, :func:`~relgraph.first_of`,
    :func:`~relgraph.restrict`.

    To write one, make a frozen dataclass with ``num_labels``, ``names`` and ``__call__``. Of a function of positions
    :class:`~relgraph.FromFunction` makes one, of distances alone :class:`~relgraph.DistanceLabeler`; ids that
    you compute for all pairs of a graph become labels by :func:`~relgraph.label_pairs`.

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
        SameWord() + Segments(num_segments=1)
        >>> labeler.names
        (('other word', 'same word'), ('0→0',))
        >>> SameWord()(torch.tensor([7, 3, 7])).to_dense()[0]
        tensor([[[1, 0, 1],
                 [0, 1, 0],
                 [1, 0, 1]]])
    """

    @property
    @abstractmethod
    def num_labels(self) -> int | tuple[int, ...]:
        """R, the number of labels; for a sum, one number a part."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The name of every id, each different; for a sum, one tuple a part."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """The labels of an input.

        Args:
            args: what the labeler reads: lengths, segments, a graph; each labeler says what.
            kwargs: likewise.

        Returns:
            Labels with this labeler's ``num_labels``; id r means ``names[r]``.
        """

    def describe(self, *inputs: Any, **kwargs: Any) -> LabelCounts | SumCounts:
        """The ids with their names, and how many pairs of an input carry each, as a value that prints a table.

        Args:
            *inputs: what the labeler is called with; without any, ids and names alone are told.
            **kwargs: likewise.

        Returns:
            :class:`~relgraph.LabelCounts`; for a sum, :class:`~relgraph.SumCounts`.

        Raises:
            TypeError: a labeler that made other than Labels, and what calling it raises, likewise ValueError and
                NotImplementedError.

        Example:
            >>> rg.EdgeType(["child", "next"], default="unlabeled").describe()
            id  name
             0  child
             1  next
            2 labels
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
            >>> told = rg.EdgeType(["child", "next"], default="unlabeled").describe(graph)
            >>> told
            id  name                     pairs   share
             0  child                        1  11.1 %
             1  next                         1  11.1 %
            -1  attends without a label      7  77.8 %
            2 labels, 9 pairs
            >>> told.counts["child"], told.unlabeled
            (1, 7)
        """
        if inputs or kwargs:
            return check_made(self, self(*inputs, **kwargs)).describe(self.names)
        if isinstance(self.num_labels, int):
            return LabelCounts(self.num_labels, self.names)  # pyright: ignore[reportArgumentType]
        parts = zip(self.num_labels, self.names, strict=True)
        return SumCounts(tuple(LabelCounts(number, names) for number, names in parts))  # pyright: ignore[reportArgumentType]

    def dense(self) -> Dense:
        """A labeler of the same labels with every id written out: N_q · N_k numbers, asked for by name.

        Returns:
            A labeler of :class:`~relgraph.DenseLabels`; for a sum, of a sum of them.

        Example:
            >>> rg.ClippedDistance(1).dense()(3).ids
            tensor([[[1, 2, 2],
                     [0, 1, 2],
                     [0, 0, 1]]], dtype=torch.int8)
        """
        return OPERATORS["dense"](self)

    def __mul__(self, other: Labeler) -> Product:
        return OPERATORS["*"](self, check_operand("*", other))

    def __add__(self, other: Labeler) -> Sum:
        return OPERATORS["+"](self, check_operand("+", other))

    def __or__(self, other: Labeler) -> Priority:
        return OPERATORS["|"](self, check_operand("|", other))

    def __and__(self, other: Labeler) -> Restriction:
        return OPERATORS["&"](self, check_operand("&", other))

    def _why_never_unlabeled(self) -> str | None:
        """Why every pair that attends carries a label, and the way out; None where that is not known.

        ``|`` asks its operands: after such a labeler no other would ever speak.
        """
        return None

    def _set(self, **fields: Any) -> None:
        """Set fields of a frozen dataclass; only constructors call this."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def check_operand(symbol: str, value: Any) -> Labeler:
    """``value`` itself when it is a labeler."""
    if isinstance(value, Labels):
        raise TypeError(
            f"the operand of {symbol} must be a Labeler, got {type(value).__name__}: "
            "labels compose by product, total, first_of and restrict"
        )
    if not isinstance(value, Labeler):
        raise TypeError(f"the operand of {symbol} must be a Labeler, got {type(value).__name__}")
    return value


def check_made(labeler: Any, labels: Any) -> Labels:
    """``labels`` itself when a labeler of one's own made Labels."""
    if not isinstance(labels, Labels):
        made = in_place_of_labels(labels)
        raise TypeError(f"the labels of {type(labeler).__name__} must be Labels, got {made}")
    return labels


def why_no_rest(labeler: Any) -> str | None:
    """What :meth:`Labeler._why_never_unlabeled` answers for a labeler whose ``default`` says what other pairs do."""
    if labeler.default == "unlabeled":
        return None
    others = "do not attend" if labeler.default is None else f"carry the label {labeler.default!r}"
    return f"its other pairs {others}, as default={labeler.default!r}: give it default='unlabeled'"


def unusual(thing: Any, **usual: Any) -> str:
    """The options of ``thing`` that are not as usual, as ``repr`` shows them after the other arguments."""
    return "".join(
        f", {name}={getattr(thing, name)!r}" for name, value in usual.items() if getattr(thing, name) != value
    )


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names in order; one that was there before gets a prime."""
    seen: dict[str, None] = {}
    for name in names:
        fresh = name
        while fresh in seen:
            fresh += "′"
        seen[fresh] = None
    return tuple(seen)
