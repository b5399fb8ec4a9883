"""What every labeler shares: a number of labels, a name for each, and the operators that compose labelers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from relgraph.labels import Labels

if TYPE_CHECKING:
    from relgraph.labelers.algebra import Dense, Priority, Product, Restriction, Sum


class Labeler(ABC):
    """How labels come from an input: a callable from the input to :class:`~relgraph.labels.Labels`.

    Labelers are immutable, hashable and compare by value; ``repr`` is the expression that makes one. They compose:

    ======== =========================================================================================
    ``a * b``  product: one label for each pair of labels, ``a`` counting slowest (one table)
    ``a + b``  sum: the terms of both add up, each with its own tables
    ``a | b``  priority: the label of ``b``, after those of ``a``, where ``a`` carries none
    ``a & b``  restriction: the labels of ``a``, and only the pairs that attend in ``b`` too
    ======== =========================================================================================

    A composed labeler calls each of its parts with the same arguments. Where the inputs differ, call the labelers one
    by one and compose the labels: :func:`product`, :func:`total`, :func:`first_of`, :func:`restrict`.

    To write one, make a frozen dataclass with these two properties and ``__call__``.
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
        """The labels of an input."""

    def dense(self) -> Dense:
        """A labeler of the same labels with every id written out: N_q · N_k numbers, asked for by name."""
        from relgraph.labelers.algebra import Dense

        return Dense(self)

    def __mul__(self, other: Labeler) -> Product:
        from relgraph.labelers.algebra import Product

        return Product(self, check_operand("*", other))

    def __add__(self, other: Labeler) -> Sum:
        from relgraph.labelers.algebra import Sum

        return Sum(self, check_operand("+", other))

    def __or__(self, other: Labeler) -> Priority:
        from relgraph.labelers.algebra import Priority

        return Priority(self, check_operand("|", other))

    def __and__(self, other: Labeler) -> Restriction:
        from relgraph.labelers.algebra import Restriction

        return Restriction(self, check_operand("&", other))

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
