"""Labels of an image or a board: how many rows and columns the key is away from the query."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.base import Labeler, one_or_both, why_all_labeled
from relgraph.labels import DenseLabels
from relgraph.labels.base import smallest_dtype


class GridLabeler(Labeler):
    """The base class of labelers by the clipped distances along both axes of a grid."""

    @abstractmethod
    def _clips(self) -> tuple[int, int]:
        """The largest distances along rows and along columns that count."""

    _why_never_unlabeled = why_all_labeled

    @final
    def __call__(self, height: int, width: int) -> DenseLabels:
        """The labels of all pairs of positions on a ``height × width`` grid, numbered row by row.

        Args:
            height: how many rows there are.
            width: how many columns.

        Returns:
            Dense labels of ``height · width`` queries and as many keys; id r is called ``names[r]``.

        Raises:
            TypeError, ValueError: a size that is not an int or is negative, or more than 2^32 pairs.
        """
        check.written("height", check.length("height", height), height)
        check.written("width", check.length("width", width), width)
        count = height * width
        check.written("height and width", count, count)
        row_clip, col_clip = self._clips()
        columns = 2 * col_clip + 1
        num_labels = (2 * row_clip + 1) * columns
        dtype = smallest_dtype(num_labels)
        rows = _clipped(height, row_clip) * columns
        ids = rows.to(dtype)[:, None, :, None] + _clipped(width, col_clip).to(dtype)[None, :, None, :]
        return DenseLabels(ids.reshape(count, count), num_labels)


@final
@dataclass(frozen=True, init=False, repr=False)
class Grid(GridLabeler):
    """One label for each relative position on a grid: so many rows down and so many columns right of the query.

    The positions of a ``height × width`` grid are numbered row by row, and the ids are written out,
    ``(height · width)²`` of them. The id is ``row · (2 · col_clip + 1) + col``, where ``row`` and ``col`` are the
    distances, key minus query, clipped and shifted to begin at 0. ``Grid(r, c)`` has the ids of
    ``GridRows(r) * GridColumns(c)``.

    Source: Liu et al. 2021 (Swin), section 3.2.

    Args:
        row_clip: how many rows up and down have labels of their own, from 0.
        col_clip: how many columns left and right; ``row_clip`` by default.

    Raises:
        TypeError, ValueError: a clip that is not an int or is negative, or more than 2^20 labels.

    Example:
        >>> grid = rg.Grid(1)
        >>> grid.num_labels, grid.names[0]
        (9, '(-1, -1)')
        >>> grid(2, 2).to_dense()[0]
        tensor([[[4, 5, 7, 8],
                 [3, 4, 6, 7],
                 [1, 2, 4, 5],
                 [0, 1, 3, 4]]])
    """

    row_clip: int
    col_clip: int

    def __init__(self, row_clip: int, col_clip: int | None = None) -> None:
        check.integer("row_clip", row_clip, minimum=0)
        col_clip = row_clip if col_clip is None else check.integer("col_clip", col_clip, minimum=0)
        check.most_labels("row_clip and col_clip", (2 * row_clip + 1) * (2 * col_clip + 1))
        self._set(row_clip=row_clip, col_clip=col_clip)

    @property
    def num_labels(self) -> int:
        """``(2 · row_clip + 1) · (2 · col_clip + 1)``."""
        return (2 * self.row_clip + 1) * (2 * self.col_clip + 1)

    @property
    def names(self) -> tuple[str, ...]:
        """``"(rows, columns)"``."""
        rows, columns = (range(-clip, clip + 1) for clip in (self.row_clip, self.col_clip))
        return tuple(f"({row}, {column})" for row in rows for column in columns)

    def _clips(self) -> tuple[int, int]:
        return self.row_clip, self.col_clip

    def __repr__(self) -> str:
        return f"Grid({one_or_both(self.row_clip, self.col_clip)})"


@dataclass(frozen=True)
class _GridAxis(GridLabeler):
    """What labelers by the distance along one axis of a grid share."""

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
    def _clips(self) -> tuple[int, int]:
        return (self.clip, 0) if self.axis == "row" else (0, self.clip)


@final
@dataclass(frozen=True)
class GridRows(_GridAxis):
    """The row distance on a grid, clipped: ``clip(row_j - row_i, -clip, clip) + clip``.

    ``GridRows(r) + GridColumns(c)`` gives rows and columns separate tables whose terms add up: 2r + 2c + 2 vectors
    instead of the (2r + 1)(2c + 1) of ``Grid(r, c)``. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many rows up and down have a label of their own, from 0.

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
@dataclass(frozen=True)
class GridColumns(_GridAxis):
    """The column distance on a grid, clipped: ``clip(col_j - col_i, -clip, clip) + clip``.

    The other half of :class:`~relgraph.labelers.GridRows`. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many columns left and right have a label of their own, from 0.

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


def _clipped(length: int, clip: int) -> Tensor:
    """Clipped distances along one axis, shifted to begin at 0, ``[length, length]``."""
    at = torch.arange(length)
    return (at - at[:, None]).clamp(-clip, clip) + clip
