"""Labels of an image or a board: how many rows and columns the key stands from the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.base import Labeler
from relgraph.labels import DenseLabels
from relgraph.labels.base import smallest_dtype


@final
@dataclass(frozen=True, init=False, repr=False)
class Grid(Labeler):
    """One label for each relative position on a grid: so many rows down and so many columns right of the query.

    The positions of a ``height × width`` grid are numbered row by row. A row distance is no function of j - i, so the
    ids are written out: ``(height · width)²`` of them. The id is ``row · (2 · col_clip + 1) + col``, where ``row`` and
    ``col`` are the distances, key minus query, clipped and shifted to begin at 0. ``Grid(r, c)`` has the ids of
    ``GridRows(r) * GridColumns(c)``.

    Source: Liu et al. 2021 (Swin), section 3.2.

    Args:
        row_clip: how many rows up and down are told apart, from 0.
        col_clip: how many columns left and right; ``row_clip`` when left out.

    Raises:
        TypeError: a clip that is no int.
        ValueError: a negative clip, or more than 2^20 labels.

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
        columns = _distances(self.col_clip)
        return tuple(f"({row}, {col})" for row in _distances(self.row_clip) for col in columns)

    def __call__(self, height: int, width: int) -> DenseLabels:
        """The labels of all pairs of positions on a ``height × width`` grid, numbered row by row.

        Args:
            height: how many rows there are.
            width: how many columns.

        Returns:
            Dense labels of ``height · width`` queries and as many keys; id r is ``names[r]``, rows, then columns.

        Raises:
            TypeError: a size that is no int.
            ValueError: a negative size, or more than 2^32 pairs.
        """
        _check_sides(height, width)
        rows, cols = _clipped(height, self.row_clip), _clipped(width, self.col_clip)
        return _written_out(rows * (2 * self.col_clip + 1), cols, self.num_labels)

    def __repr__(self) -> str:
        shown = str(self.row_clip) if self.col_clip == self.row_clip else f"{self.row_clip}, {self.col_clip}"
        return f"Grid({shown})"


@final
@dataclass(frozen=True)
class GridRows(Labeler):
    """The row distance alone on a grid, clipped: ``clip(row_j - row_i, -clip, clip) + clip``.

    ``GridRows(r) + GridColumns(c)`` gives rows and columns tables of their own whose terms add up: 2r + 2c + 2 vectors
    in place of the (2r + 1)(2c + 1) of ``Grid(r, c)``. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many rows up and down are told apart.

    Raises:
        TypeError: a clip that is no int.
        ValueError: a negative clip, or more than 2^20 labels.

    Example:
        >>> rg.GridRows(1).names
        ('row -1', 'row 0', 'row 1')
        >>> rg.GridRows(1)(2, 2).to_dense()[0]
        tensor([[[1, 1, 2, 2],
                 [1, 1, 2, 2],
                 [0, 0, 1, 1],
                 [0, 0, 1, 1]]])
        >>> (rg.GridRows(1) + rg.GridColumns(2)).num_labels
        (3, 5)
    """

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
        """The row distances, ``"row -1"``."""
        return tuple(f"row {distance}" for distance in _distances(self.clip))

    def __call__(self, height: int, width: int) -> DenseLabels:
        """The labels of all pairs of positions on a ``height × width`` grid, numbered row by row.

        Args:
            height: how many rows there are.
            width: how many columns.

        Returns:
            Dense labels of ``height · width`` queries and as many keys; id r is called ``f"row {r - clip}"``.

        Raises:
            TypeError: a size that is no int.
            ValueError: a negative size, or more than 2^32 pairs.
        """
        _check_sides(height, width)
        rows, cols = _clipped(height, self.clip), _clipped(width, 0)
        return _written_out(rows, cols, self.num_labels)


@final
@dataclass(frozen=True)
class GridColumns(Labeler):
    """The column distance alone on a grid, clipped: ``clip(col_j - col_i, -clip, clip) + clip``.

    The other half of :class:`~relgraph.GridRows`. The ids are written out, ``(height · width)²`` of them.

    Source: Bello et al. 2019, section 3.2.

    Args:
        clip: how many columns left and right are told apart.

    Raises:
        TypeError: a clip that is no int.
        ValueError: a negative clip, or more than 2^20 labels.

    Example:
        >>> rg.GridColumns(1).names
        ('column -1', 'column 0', 'column 1')
        >>> rg.GridColumns(1)(1, 3).to_dense()[0]
        tensor([[[1, 2, 2],
                 [0, 1, 2],
                 [0, 0, 1]]])
    """

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
        """The column distances, ``"column -1"``."""
        return tuple(f"column {distance}" for distance in _distances(self.clip))

    def __call__(self, height: int, width: int) -> DenseLabels:
        """The labels of all pairs of positions on a ``height × width`` grid, numbered row by row.

        Args:
            height: how many rows there are.
            width: how many columns.

        Returns:
            Dense labels of ``height · width`` queries and as many keys; id r is called ``f"column {r - clip}"``.

        Raises:
            TypeError: a size that is no int.
            ValueError: a negative size, or more than 2^32 pairs.
        """
        _check_sides(height, width)
        rows, cols = _clipped(height, 0), _clipped(width, self.clip)
        return _written_out(rows, cols, self.num_labels)


def _distances(clip: int) -> range:
    return range(-clip, clip + 1)


def _check_sides(height: Any, width: Any) -> None:
    """A grid of that size has few enough pairs to be written out, along each side too."""
    check.written("height", check.length("height", height), height)
    check.written("width", check.length("width", width), width)
    check.written("height and width", height * width, height * width)


def _clipped(length: int, clip: int) -> Tensor:
    """Clipped distances along one axis, shifted to begin at 0, ``[length, length]``."""
    at = torch.arange(length)
    return (at - at[:, None]).clamp(-clip, clip) + clip


def _written_out(rows: Tensor, cols: Tensor, num_labels: int) -> DenseLabels:
    """``rows + cols`` of every pair of grid positions, added up in the type that stores them."""
    dtype = smallest_dtype(num_labels)
    ids = rows.to(dtype)[:, None, :, None] + cols.to(dtype)[None, :, None, :]
    n = rows.shape[0] * cols.shape[0]
    return DenseLabels(ids.reshape(n, n), num_labels)
