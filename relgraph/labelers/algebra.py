"""Labelers composed of labelers: each part is called with the same arguments, then their labels are combined."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any, ClassVar, Self, final

from relgraph.arguments import check
from relgraph.labelers.base import OPERATORS, Labeler, check_made, check_operand, distinct
from relgraph.labels import Labels, SumLabels
from relgraph.labels.algebra import first_of, product, restrict, total


@dataclass(frozen=True, init=False, repr=False)
class Composed(Labeler):
    """Two or more labelers that take the same arguments, joined by one operator; nested ones flatten."""

    symbol: ClassVar[str]
    takes_sums: ClassVar[bool]

    parts: tuple[Labeler, ...]

    def __init__(self, *parts: Labeler) -> None:
        flat: list[Labeler] = []
        for part in parts:
            check_operand(self.symbol, part)
            if not self.takes_sums and not isinstance(part.num_labels, int):
                raise TypeError(
                    f"the operand of {self.symbol} must have one label a pair, got a sum, {part!r}: "
                    "compose its parts one by one"
                )
            flat.extend(part.parts if isinstance(part, type(self)) else (part,))
        if len(flat) < 2:
            raise ValueError(f"{type(self).__name__} must have at least two parts, got {len(flat)}")
        self._set(parts=tuple(flat))
        if not self.takes_sums:
            number = self.num_labels
            assert isinstance(number, int)
            check.most_labels(f"the operands of {self.symbol}", number)

    @final
    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """The labels of an input that every part understands.

        Args:
            args: given to each part in turn.
            kwargs: likewise.

        Returns:
            Labels of the kind that the operator makes of the parts' kinds. Distances stay distances, edges with
            distances are edges, and what was written out stays so; ``+`` gives a sum of labels.

        Raises:
            TypeError: an input that a part refuses, or a part that made other than Labels.
            ValueError: likewise, or parts whose labels do not cover the same pairs or count from other offsets.
            NotImplementedError: parallel edges, each of which counts, that meet labels which cannot keep them apart.
        """
        return self._combine([check_made(part, part(*args, **kwargs)) for part in self.parts])

    @abstractmethod
    def _combine(self, labels: list[Labels]) -> Labels:
        """The labels of the whole from those of the parts."""

    def __repr__(self) -> str:
        return f" {self.symbol} ".join(_bracketed(part) for part in self.parts)


@final
@dataclass(frozen=True, init=False, repr=False)
class Product(Composed):
    """``a * b``: one label for each combination of labels, ``a · R_b + b``; see :func:`~relgraph.product`.

    Attends where all parts do, and carries a label where all do. Labels that were not written out stay so.

    Args:
        parts: labelers with one label a pair.

    Raises:
        TypeError: a part that is no labeler, or a sum.
        ValueError: fewer than two parts, or more than 2^20 labels.

    Example:
        >>> labeler = rg.ClippedDistance(1) * rg.ClippedDistance(0, 1)
        >>> labeler.names
        ('-1×0', '-1×1', '0×0', '0×1', '1×0', '1×1')
        >>> labeler(3).to_dense()[0]
        tensor([[[2, 5, 5],
                 [0, 2, 5],
                 [0, 0, 2]]])
    """

    symbol = "*"
    takes_sums = False

    @property
    def num_labels(self) -> int:
        """The product of the parts' numbers."""
        return prod(_number(part) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names with ``×`` between them."""
        return distinct("×".join(names) for names in combinations(*(_names(part) for part in self.parts)))

    def _why_never_unlabeled(self) -> str | None:
        reasons = [part._why_never_unlabeled() for part in self.parts]
        return None if None in reasons else reasons[0]

    def _combine(self, labels: list[Labels]) -> Labels:
        return product(*labels)


@final
@dataclass(frozen=True, init=False, repr=False)
class Sum(Composed):
    """``a + b``: several labels a pair whose terms add up, each part with its own tables; see :func:`~relgraph.total`.

    Attends where all parts do. ``num_labels`` and ``names`` hold one entry a part, as do the tables of a layer.

    Args:
        parts: labelers; a sum among them is taken part by part.

    Raises:
        TypeError: a part that is no labeler.
        ValueError: fewer than two parts.

    Example:
        >>> labeler = rg.ClippedDistance(1) + rg.Window(1, 0)
        >>> labeler.num_labels, labeler.names
        ((3, 0), (('-1', '0', '1'), ()))
        >>> [part.num_labels for part in labeler(3).parts]
        [3, 0]
    """

    symbol = "+"
    takes_sums = True

    @property
    def num_labels(self) -> tuple[int, ...]:
        """One number a part."""
        numbers = (part.num_labels for part in self.parts)
        return tuple(n for number in numbers for n in ((number,) if isinstance(number, int) else number))

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """One tuple of names a part."""
        out: list[Any] = []
        for part in self.parts:
            out.extend([part.names] if isinstance(part.num_labels, int) else part.names)
        return tuple(out)

    def _combine(self, labels: list[Labels]) -> SumLabels:
        return total(*labels)


@final
@dataclass(frozen=True, init=False, repr=False)
class Priority(Composed):
    """``a | b``: the label of ``b`` where ``a`` carries none, with ids after those of ``a``.

    The same as :func:`~relgraph.first_of` of their labels.
    Where ``a`` does not attend the pair does not, and where it attends without a label the pair follows ``b``.

    Args:
        parts: labelers with one label a pair, the first speaking first. All but the last must leave pairs that attend
            without a label, for the next to label: ``EdgeType(2, default="unlabeled") | ShortestPath(4)``.

    Raises:
        TypeError: a part that is no labeler, or a sum.
        ValueError: fewer than two parts, more than 2^20 labels, or a part, not the last, that is known to leave no pair
            without a label.

    Example:
        >>> labeler = rg.FromFunction(lambda i, j: (i == j).long() - 1, 1, names=["self"]) | rg.ClippedDistance(1)
        >>> labeler.names
        ('self', '-1', '0', '1')
        >>> labeler(3).to_dense()[0]
        tensor([[[0, 3, 3],
                 [1, 0, 3],
                 [1, 1, 0]]])
    """

    symbol = "|"
    takes_sums = False

    def __init__(self, *parts: Labeler) -> None:
        super().__init__(*parts)
        for part in self.parts[:-1]:
            reason = part._why_never_unlabeled()
            if reason is not None:
                raise ValueError(
                    f"the operand of | must leave pairs that attend without a label, for {self.parts[-1]!r} to label, "
                    f"got {part!r}: {reason}"
                )

    def _why_never_unlabeled(self) -> str | None:
        return self.parts[-1]._why_never_unlabeled()

    @property
    def num_labels(self) -> int:
        """The sum of the parts' numbers."""
        return sum(_number(part) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names one after the other; a name that comes again gets a prime."""
        return distinct(name for part in self.parts for name in _names(part))

    def _combine(self, labels: list[Labels]) -> Labels:
        return first_of(*labels)


@final
@dataclass(frozen=True, init=False, repr=False)
class Restriction(Composed):
    """``a & b``: the labels of ``a``, and only the pairs that attend in ``b`` too; see :func:`~relgraph.restrict`.

    The labels of ``b`` do not count. ``num_labels`` and ``names`` are those of ``a``.

    Args:
        parts: the labeler, and those that restrict it.

    Raises:
        TypeError: a part that is no labeler.
        ValueError: fewer than two parts.

    Example:
        >>> labeler = rg.ClippedDistance(1) & rg.Window(1, 0)
        >>> labeler.names
        ('-1', '0', '1')
        >>> labeler(3).to_dense()[0]
        tensor([[[ 1, -1, -1],
                 [ 0,  1, -1],
                 [-1,  0,  1]]])
    """

    symbol = "&"
    takes_sums = True

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        """The first part's."""
        return self.parts[0].num_labels

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The first part's."""
        return self.parts[0].names

    def _why_never_unlabeled(self) -> str | None:
        return self.parts[0]._why_never_unlabeled()

    def _combine(self, labels: list[Labels]) -> Labels:
        return restrict(*labels)


@final
@dataclass(frozen=True, repr=False)
class Dense(Labeler):
    """``a.dense()``: the same labels with every id written out; a sum part by part.

    N_q · N_k small integers, whatever kind the labels were before.

    Args:
        labeler: whose labels to write out.

    Raises:
        TypeError: ``labeler`` is no labeler.

    Example:
        >>> labeler = rg.ClippedDistance(1).dense()
        >>> labeler.names
        ('-1', '0', '1')
        >>> labeler(3).ids
        tensor([[[1, 2, 2],
                 [0, 1, 2],
                 [0, 0, 1]]], dtype=torch.int8)
    """

    labeler: Labeler

    def __post_init__(self) -> None:
        check_operand("dense", self.labeler)

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        """That of the labeler."""
        return self.labeler.num_labels

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """Those of the labeler."""
        return self.labeler.names

    def _why_never_unlabeled(self) -> str | None:
        return self.labeler._why_never_unlabeled()

    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """The labels of an input, written out; the borders of a packed batch become pairs that do not attend.

        Args:
            args: given to the labeler.
            kwargs: likewise.

        Returns:
            :class:`~relgraph.DenseLabels` with the labeler's ids, or a sum of them.

        Raises:
            TypeError: an input that the labeler refuses, or one that made other than Labels.
            ValueError: likewise, or parallel edges that each count.
        """
        labels = check_made(self.labeler, self.labeler(*args, **kwargs))
        if isinstance(labels, SumLabels):
            return SumLabels(*(part.dense() for part in labels.parts))
        return labels.dense()

    def dense(self) -> Self:
        """The labeler itself, whose labels are written out already.

        Returns:
            This labeler.
        """
        return self

    def __repr__(self) -> str:
        return f"{_bracketed(self.labeler)}.dense()"


def _bracketed(part: Labeler) -> str:
    return f"({part!r})" if isinstance(part, Composed) else repr(part)


def _number(part: Labeler) -> int:
    number = part.num_labels
    assert isinstance(number, int)
    return number


def _names(part: Labeler) -> tuple[str, ...]:
    names: Any = part.names
    return names


OPERATORS.update({"*": Product, "+": Sum, "|": Priority, "&": Restriction, "dense": Dense})
