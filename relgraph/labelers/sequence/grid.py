"""Labels of an image or a board: how many rows and columns the key is away from the query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from relgraph.arguments import check
from relgraph.labelers.base import Clip, as_clip, two_clips, why_all_labeled
from relgraph.labelers.sequence.difference import ByDifference, checked_positions
from relgraph.labels import DenseLabels, FunctionLabels
from relgraph.labels.base import smallest_dtype
from relgraph.labels.function import by_function

BEYOND = ("clip", "error")


class GridLabeler(ByDifference):
    """The base class of labelers by the distances along both axes of a grid."""

    extra_tokens: int = 0

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """R, the number of labels."""

    @abstractmethod
    def _cell_ids(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The ids of pairs of cells, from how many rows and columns each key is after its query, int64."""

    _why_never_unlabeled = why_all_labeled

    @final
    def __call__(self, height: int, width: int) -> DenseLabels:
        """The labels of all pairs of positions on a ``height × width`` grid, numbered row by row.

        Args:
            height: how many rows there are.
            width: how many columns.

        Returns:
            Dense labels of ``height · width`` queries and as many keys, after the extra tokens if there are any; id r
            is called ``names[r]``.

        Raises:
            TypeError, ValueError: a size that is not an int or is negative, or more than 2^32 pairs; a grid beyond the
                clips if these must hold it.
        """
        check.written("height", check.length("height", height), height)
        check.written("width", check.length("width", width), width)
        count = height * width + self.extra_tokens
        check.written("height and width", count, count)
        down, right = torch.arange(height), torch.arange(width)
        rows, columns = (torch.arange(1 - max(length, 1), max(length, 1)) for length in (height, width))
        self._check_within("height and width", rows, columns)
        by_distance = self._cell_ids(rows[:, None], columns[None]).to(smallest_dtype(self.num_labels))
        # Looking up columns first and then whole blocks of them needs far fewer look-ups than pair by pair.
        blocks = by_distance[:, right - right[:, None] + width - 1]  # [2 · height - 1, width, width]
        cells = blocks.index_select(0, (down - down[:, None] + height - 1).flatten())
        cells = cells.view(height, height, width, width).transpose(1, 2)
        return self._labels(cells.reshape(1, height * width, height * width))

    @final
    def at(self, q_positions: Tensor, k_positions: Tensor | None = None) -> DenseLabels | FunctionLabels:
        """The labels of queries and keys at given cells, such as corners of boxes or patches that were kept.

        Args:
            q_positions: ``[N_q, 2]`` or ``[B, N_q, 2]``, integer within ±2³¹, row and column of each query.
            k_positions: ``[N_k, 2]`` or ``[B, N_k, 2]``, row and column of each key; ``q_positions`` by default.

        Returns:
            Dense labels of these queries and keys, with more than 2^20 pairs labels by function; extra tokens come
            before both.

        Raises:
            ValueError: positions of a wrong rank, shape, dtype, device or batch size, or beyond ±2³¹; more than 2^24 of
                them; distances beyond the clips if these must hold them.

        Example:
            >>> rg.Grid(1).at(torch.tensor([[0, 0], [0, 1], [7, 3]])).to_dense()[0]
            tensor([[[4, 5, 8],
                     [3, 4, 8],
                     [0, 0, 4]]])
        """
        query, key = checked_positions(q_positions, k_positions, axes=2)
        if query.numel() and key.numel():  # the largest distances are between the outermost positions
            ends = key.amax(1) - query.amin(1), query.amax(1) - key.amin(1)
            self._check_within("q_positions and k_positions", *torch.cat(ends).unbind(-1))
        fn, sides = ByCell(self), (query, key)
        if self.extra_tokens:  # they come first; a further number says which tokens they are
            extra, (query, key) = self.extra_tokens, (pad(x, (0, 0, self.extra_tokens, 0)) for x in sides)
            queries, keys = ((*x.unbind(-1), (torch.arange(x.shape[1], device=x.device) < extra)) for x in (query, key))
        else:
            queries, keys = (x.unbind(-1) for x in sides)
        return by_function(fn, queries, keys, self.num_labels)

    def _labels(self, cells: Tensor) -> DenseLabels:
        """Labels from the ids of pairs of cells, ``[B, N_q, N_k]``, with the extra tokens before them."""
        extra = self.extra_tokens
        if not extra:
            return DenseLabels(cells, self.num_labels)
        batch, q_len, k_len = cells.shape
        to_cell, from_cell, between = range(self.num_labels - 3, self.num_labels)
        ids = cells.new_empty(batch, q_len + extra, k_len + extra)
        ids[:, extra:, extra:] = cells
        ids[:, :extra, extra:] = to_cell
        ids[:, extra:, :extra] = from_cell
        ids[:, :extra, :extra] = between
        return DenseLabels(ids, self.num_labels)

    def _check_within(self, names: str, rows: Tensor, columns: Tensor) -> None:
        """Raise ValueError if a labeler without shared labels at its border meets distances beyond it."""

    def _mirror(self) -> list[int]:
        # Both axes change their sign, so the ids of cells run backward; extra tokens have no position.
        cells = self._num_cell_labels()
        return [*reversed(range(cells)), *range(cells, self.num_labels)]

    def _num_cell_labels(self) -> int:
        """How many ids pairs of cells can have; those of extra tokens follow."""
        return self.num_labels


@dataclass(frozen=True)
class ByCell:
    """A function of two cells, the id of a labeler of a grid; with extra tokens a third number says which they are."""

    labeler: GridLabeler

    def __call__(self, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        """The ids of pairs of cells."""
        (row, column, *q_extra), (other_row, other_column, *k_extra) = queries, keys
        ids = self.labeler._cell_ids(other_row - row, other_column - column)
        if not q_extra:
            return ids
        to_cell, from_cell, between = range(self.labeler.num_labels - 3, self.labeler.num_labels)
        ids = torch.where(k_extra[0], from_cell, ids)
        return torch.where(q_extra[0], torch.where(k_extra[0], between, to_cell), ids)


@final
@dataclass(frozen=True, init=False, repr=False)
class Grid(GridLabeler):
    """One label for each relative position on a grid: how many rows down and columns right the key is from the query.

    The positions of a ``height × width`` grid are numbered row by row, and the ids are written out,
    ``(height · width)²`` of them. The id is ``row · (2 · columns + 1) + col``, where ``row`` and ``col`` are the
    distances, key minus query, clipped and shifted to begin at 0. ``Grid((r, c))`` has the ids of
    ``GridRows(r) * GridColumns(c)``. ``Grid((h - 1, w - 1))`` has a label for each difference in an ``h × w`` grid.

    Extra tokens, such as a class token, come before the cells. They have three labels after all others, query first:
    ``extra→cell``, ``cell→extra`` and ``extra→extra``, as in BEiT.

    Source: Liu et al. 2021 (Swin), section 3.2; for extra tokens Bao et al. 2022 (BEiT) and its released code.

    Args:
        clip: how many rows up and down, and columns left and right, have their own labels, from 0; or a pair (rows,
            columns).
        extra_tokens: how many tokens without a position come first.
        beyond: what to do with pairs farther apart. ``"clip"``: they share the labels at the border. ``"error"``: they
            raise, so that no two differences share a label.

    Raises:
        TypeError, ValueError: a clip that is not an int or is negative, a wrong number of extra tokens, an unknown
            choice, or more than 2^20 labels.

    Example:
        >>> grid = rg.Grid(1)
        >>> grid.num_labels, grid.names[0]
        (9, '(-1, -1)')
        >>> grid(2, 2).to_dense()[0]
        tensor([[[4, 5, 7, 8],
                 [3, 4, 6, 7],
                 [1, 2, 4, 5],
                 [0, 1, 3, 4]]])
        >>> beit = rg.Grid(1, extra_tokens=1, beyond="error")  # a class token before patches 2 × 2
        >>> beit.names[-3:]
        ('extra→cell', 'cell→extra', 'extra→extra')
        >>> beit(2, 2).to_dense()[0]
        tensor([[[11,  9,  9,  9,  9],
                 [10,  4,  5,  7,  8],
                 [10,  3,  4,  6,  7],
                 [10,  1,  2,  4,  5],
                 [10,  0,  1,  3,  4]]])
    """

    clip: Clip
    extra_tokens: int
    beyond: str

    def __init__(self, clip: Clip, *, extra_tokens: int = 0, beyond: str = "clip") -> None:
        rows_and_columns = two_clips(clip)
        check.integer("extra_tokens", extra_tokens, minimum=0, maximum=check.MOST_WRITTEN)
        check.choice("beyond", beyond, BEYOND)
        self._set(clip=as_clip(*rows_and_columns), extra_tokens=extra_tokens, beyond=beyond)
        check.most_labels("clip", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``(2 · rows + 1) · (2 · columns + 1)``, and 3 if there are extra tokens."""
        return self._num_cell_labels() + (3 if self.extra_tokens else 0)

    @property
    def names(self) -> tuple[str, ...]:
        """``"(rows, columns)"``; ``"extra→cell"``, ``"cell→extra"`` and ``"extra→extra"``, query first."""
        rows, columns = (range(-clip, clip + 1) for clip in two_clips(self.clip))
        extra = ("extra→cell", "cell→extra", "extra→extra") if self.extra_tokens else ()
        return (*(f"({row}, {column})" for row in rows for column in columns), *extra)

    def _num_cell_labels(self) -> int:
        rows, columns = two_clips(self.clip)
        return (2 * rows + 1) * (2 * columns + 1)

    def _cell_ids(self, rows: Tensor, columns: Tensor) -> Tensor:
        return clipped_ids(rows, columns, *two_clips(self.clip))

    def _check_within(self, names: str, rows: Tensor, columns: Tensor) -> None:
        if self.beyond == "clip":
            return
        check.outside_compiled_code(f"{self!r}")
        check.data(names, rows, columns)
        for axis, distance, clip in zip(("rows", "columns"), (rows, columns), two_clips(self.clip), strict=True):
            farthest = int(distance.abs().max()) if distance.numel() else 0
            if farthest > clip:
                raise ValueError(
                    f"{names} must be at most {clip} {axis} apart for {self!r}, which shares no label, got {farthest}"
                )


@dataclass(frozen=True, repr=False)
class _GridAxis(GridLabeler):
    """The base class of labelers by the distance along one axis of a grid."""

    axis: ClassVar[str]

    clip: int

    def __post_init__(self) -> None:
        check.integer("clip", self.clip, minimum=0)
        check.most_labels("clip", 2 * self.clip + 1)

    @property
    def num_labels(self) -> int:
        """``2 · clip + 1``."""
        return 2 * self.clip + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, such as ``"row -1"`` or ``"column -1"``."""
        return tuple(f"{self.axis} {distance}" for distance in range(-self.clip, self.clip + 1))

    @final
    def _cell_ids(self, rows: Tensor, columns: Tensor) -> Tensor:
        clips = (self.clip, 0) if self.axis == "row" else (0, self.clip)
        return clipped_ids(rows, columns, *clips)


@final
@dataclass(frozen=True, repr=False)
class GridRows(_GridAxis):
    """The row distance on a grid, clipped: ``clip(row_j - row_i, -clip, clip) + clip``.

    ``GridRows(r) + GridColumns(c)`` gives rows and columns separate tables whose terms add up: 2r + 2c + 2 vectors
    instead of the (2r + 1)(2c + 1) of ``Grid((r, c))``. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many rows up and down have their own label, from 0.

    Raises:
        TypeError, ValueError: a clip that is not an int or is negative, or more than 2^20 labels.

    Example:
        >>> rg.labelers.GridRows(1).names
        ('row -1', 'row 0', 'row 1')
        >>> rg.labelers.GridRows(1)(2, 2).to_dense()[0]
        tensor([[[1, 1, 2, 2],
                 [1, 1, 2, 2],
                 [0, 0, 1, 1],
                 [0, 0, 1, 1]]])
        >>> (rg.labelers.GridRows(1) + rg.labelers.GridColumns(2)).num_labels
        (3, 5)
    """

    axis = "row"


@final
@dataclass(frozen=True, repr=False)
class GridColumns(_GridAxis):
    """The column distance on a grid, clipped: ``clip(col_j - col_i, -clip, clip) + clip``.

    Combine it with :class:`~relgraph.labelers.GridRows`. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many columns left and right have their own label, from 0.

    Raises:
        TypeError, ValueError: a clip that is not an int or is negative, or more than 2^20 labels.

    Example:
        >>> rg.labelers.GridColumns(1).names
        ('column -1', 'column 0', 'column 1')
        >>> rg.labelers.GridColumns(1)(1, 3).to_dense()[0]
        tensor([[[1, 2, 2],
                 [0, 1, 2],
                 [0, 0, 1]]])
    """

    axis = "column"


def clipped_ids(rows: Tensor, columns: Tensor, most_rows: int, most_columns: int) -> Tensor:
    """Clipped distances along both axes, each shifted to begin at 0, as one id."""
    columns = columns.clamp(-most_columns, most_columns) + most_columns
    return (rows.clamp(-most_rows, most_rows) + most_rows) * (2 * most_columns + 1) + columns
