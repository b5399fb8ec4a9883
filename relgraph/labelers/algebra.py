"""Labelers composed of labelers: they call all parts with the same arguments and combine the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers.base import Labeler, check_made, check_operand, distinct
from relgraph.labels import Labels, SumLabels
from relgraph.labels.algebra import first_of, product, restrict, total


def _accepts(labeler: Labeler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a labeler reads an input."""
    try:
        labeler(*args, **kwargs)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, init=False, repr=False)
class Composed(Labeler):
    """Two or more labelers joined by one operator; nested ones with the same operator flatten."""

    symbol: ClassVar[str]
    _combine: ClassVar[Callable[..., Labels]]
    takes_sums: ClassVar[bool] = False

    parts: tuple[Labeler, ...]

    def __init__(self, *parts: Labeler) -> None:
        flat: list[Labeler] = []
        for part in parts:
            check_operand(self.symbol, part)
            if not self.takes_sums and not isinstance(part.num_labels, int):
                raise TypeError(
                    f"the operand of {self.symbol} must have one label per pair, got a sum, {part!r}: "
                    "compose its parts one by one"
                )
            flat.extend(part.parts if isinstance(part, type(self)) else (part,))
        if len(flat) < 2:
            raise ValueError(f"{type(self).__name__} must have at least two parts, got {len(flat)}")
        self._set(parts=tuple(flat))
        if not self.takes_sums:
            check.most_labels(f"the operands of {self.symbol}", _single_number(self))

    @final
    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """Label an input that every part understands.

        Parts that read only lengths take them from the labels of the other parts, unless the first argument is a length
        or a graph.

        Args:
            args: passed to each part in turn.
            kwargs: passed to each part in turn.

        Returns:
            Labels whose kind follows from the kinds of the parts. Distances stay distances, edges with distances become
            edges, and dense labels stay dense; ``+`` gives a sum of labels.

        Raises:
            ValueError: an input that a part does not accept, or parts whose labels differ in pairs or offsets.
            NotImplementedError: parallel edges that each count, combined with labels that cannot keep them apart.
        """
        own_input = args and not isinstance(args[0], (int, torch.SymInt, Graph))
        if own_input and not self._reads_lengths:
            return self._of_own_input(args, kwargs)
        return type(self)._combine(*self._called(self.parts, args, kwargs))

    @property
    def _reads_lengths(self) -> bool:
        return all(part._reads_lengths for part in self.parts)

    def _called(self, parts: Sequence[Labeler], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Labels]:
        """The labels of each part; if only some parts read the input, the error says what to do."""
        try:
            return [check_made(part, part(*args, **kwargs)) for part in parts]
        except TypeError as error:
            reads = [_accepts(part, args, kwargs) for part in parts]
            if not any(reads):
                raise
            raise TypeError(
                f"{error}; the parts of {self!r} read different inputs: call each with its own, and join their labels "
                f"with {self.symbol}"
            ) from error

    def _of_own_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Labels:
        """The labels of an input other than lengths or a graph, which not every part reads."""
        own = [i for i, part in enumerate(self.parts) if not part._reads_lengths]
        made = dict(zip(own, self._called([self.parts[i] for i in own], args, kwargs), strict=True))
        first = next(iter(made.values()))
        borders = {"ptr": first.k_ptr, "q_ptr": first.q_ptr} if first.packed else {}
        for i, part in enumerate(self.parts):
            if i not in made:
                made[i] = check_made(part, part(first.q_len, first.k_len, **borders))
        return type(self)._combine(*(made[i] for i in range(len(self.parts))))

    @final
    def at(self, q_positions: Tensor, k_positions: Tensor | None = None) -> Labels:
        """The labels of queries and keys at given positions, if every part labels distances or grids.

        Args:
            q_positions: ``[N_q]`` or ``[B, N_q]``, integer; for grids ``[N_q, 2]`` or ``[B, N_q, 2]``.
            k_positions: the same for the keys, ``[N_k]`` and so on; ``q_positions`` by default.

        Returns:
            Dense labels; for ``+`` a sum of them.

        Raises:
            TypeError: a part that does not label positions.
            ValueError: positions that a part does not accept.

        Example:
            >>> sam = rg.labelers.GridRows(1) + rg.labelers.GridColumns(1)
            >>> sam.at(torch.tensor([[0, 0], [2, 5]])).parts[1].to_dense()[0]
            tensor([[[1, 2],
                     [0, 1]]])
        """
        made: list[Labels] = []
        for part in self.parts:
            call = getattr(part, "at", None)
            if call is None:
                raise TypeError(
                    f"every part must be a labeler by distance or of a grid to give labels at positions, got {part!r}"
                )
            made.append(call(q_positions, k_positions))
        return type(self)._combine(*made)

    def __repr__(self) -> str:
        return f" {self.symbol} ".join(_bracketed(part) for part in self.parts)


@final
@dataclass(frozen=True, init=False, repr=False)
class Product(Composed):
    """``a * b``: one label for each combination of labels, ``a · R_b + b``; see :func:`~relgraph.labels.product`.

    A pair attends if it attends in all parts, and has a label if it has one in all parts. Distances are not written
    out.

    Args:
        parts: labelers with one label per pair.

    Raises:
        TypeError: a part that is a sum.
        ValueError: fewer than two parts, or more than 2^20 labels.

    Example:
        >>> labeler = rg.ClippedDistance(1) * rg.ClippedDistance((0, 1))
        >>> labeler.names
        ('-1×0', '-1×1', '0×0', '0×1', '1×0', '1×1')
        >>> labeler(3).to_dense()[0]
        tensor([[[2, 5, 5],
                 [0, 2, 5],
                 [0, 0, 2]]])
    """

    symbol = "*"
    _combine = staticmethod(product)

    @property
    def num_labels(self) -> int:
        return prod(_single_number(part) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names with ``×`` between them."""
        return distinct("×".join(names) for names in combinations(*(_single_names(part) for part in self.parts)))

    def _why_never_unlabeled(self) -> str | None:
        reasons = [part._why_never_unlabeled() for part in self.parts]
        return None if None in reasons else reasons[0]


@final
@dataclass(frozen=True, init=False, repr=False)
class Sum(Composed):
    """``a + b``: several labels per pair, each with its own tables, whose terms add up; :func:`~relgraph.labels.total`.

    A pair attends if it attends in all parts. ``num_labels``, ``names`` and the tables of a layer hold one entry per
    part.

    Args:
        parts: labelers; a sum among them is replaced by its parts.

    Raises:
        TypeError, ValueError: a part that is not a labeler, or fewer than two parts.

    Example:
        >>> labeler = rg.ClippedDistance(1) + rg.Window(1, 0)
        >>> labeler.num_labels, labeler.names
        ((3, 0), (('-1', '0', '1'), ()))
        >>> [part.num_labels for part in labeler(3).parts]
        [3, 0]
    """

    symbol = "+"
    _combine = staticmethod(total)
    takes_sums = True

    @property
    def num_labels(self) -> tuple[int, ...]:
        numbers = (part.num_labels for part in self.parts)
        return tuple(n for number in numbers for n in ((number,) if isinstance(number, int) else number))

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        of_parts = ((part.names,) if isinstance(part.num_labels, int) else part.names for part in self.parts)
        return tuple(names for of_part in of_parts for names in of_part)


@final
@dataclass(frozen=True, init=False, repr=False)
class Priority(Composed):
    """``a | b``: the label of ``a``; if it has none, the label of ``b``, whose ids follow those of ``a``.

    It combines their labels by :func:`~relgraph.labels.first_of`. A pair that does not attend in ``a`` does not attend.

    Args:
        parts: labelers with one label per pair, in order of priority. Each but the last must let some pairs attend
            without a label, which the next part labels: ``EdgeType(2, attend="all") | ShortestPath(4)``.

    Raises:
        TypeError: a part that is a sum.
        ValueError: fewer than two parts, more than 2^20 labels, or a part before the last that labels every pair.

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
    _combine = staticmethod(first_of)

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
        return sum(_single_number(part) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names one after the other; a repeated name gets a prime."""
        return distinct(name for part in self.parts for name in _single_names(part))


@final
@dataclass(frozen=True, init=False, repr=False)
class Restriction(Composed):
    """``a & b``: the labels of ``a``, for pairs that attend in both; see :func:`~relgraph.labels.restrict`.

    The labels of ``b`` are ignored: ``num_labels`` and ``names`` are those of ``a``.

    Args:
        parts: the labeler, and the labelers that restrict it.

    Raises:
        TypeError, ValueError: a part that is not a labeler, or fewer than two parts.

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
    _combine = staticmethod(restrict)
    takes_sums = True

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        return self.parts[0].num_labels

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        return self.parts[0].names

    def _why_never_unlabeled(self) -> str | None:
        return self.parts[0]._why_never_unlabeled()


@final
@dataclass(frozen=True, repr=False)
class Dense(Labeler):
    """``a.dense()``: the same labels with every id written out, N_q · N_k small integers; a sum stays a sum.

    Args:
        labeler: the labeler whose labels are written out.

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
        check_operand("Dense", self.labeler)

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        return self.labeler.num_labels

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        return self.labeler.names

    def _why_never_unlabeled(self) -> str | None:
        return self.labeler._why_never_unlabeled()

    @property
    def _reads_lengths(self) -> bool:
        return self.labeler._reads_lengths

    def __call__(self, *args: Any, **kwargs: Any) -> Labels:
        """Write out the labels of an input; in a packed batch, pairs across graphs do not attend.

        Args:
            args: passed to the labeler.
            kwargs: passed to the labeler.

        Returns:
            :class:`~relgraph.DenseLabels` with the labeler's ids, or a sum of them.

        Raises:
            ValueError: an input that the labeler does not accept, or parallel edges that each count.
        """
        labels = check_made(self.labeler, self.labeler(*args, **kwargs))
        if isinstance(labels, SumLabels):
            return SumLabels(*(part.dense() for part in labels.parts))
        return labels.dense()

    def dense(self) -> Self:
        """Return this labeler, whose labels are written out already.

        Returns:
            This labeler.
        """
        return self

    def __repr__(self) -> str:
        return f"{_bracketed(self.labeler)}.dense()"


def _bracketed(part: Labeler) -> str:
    return f"({part!r})" if isinstance(part, Composed) else repr(part)


def _single_number(labeler: Labeler) -> int:
    """``num_labels`` of a labeler that is not a sum."""
    number = labeler.num_labels
    assert isinstance(number, int)
    return number


def _single_names(labeler: Labeler) -> tuple[str, ...]:
    """``names`` of a labeler that is not a sum."""
    names: Any = labeler.names
    return names
