"""Keys of a block with labels of one kind: gather a table over pairs, scatter pairs into sums by label.

In a ``UniformTile`` all pairs carry one label, in a ``DistanceTile`` the label follows the distance, in an ``IdTile``
each pair has its own id. A piece is ``[batch, H, rows, keys]`` of some buffer, and a table is
``[batch, H, rows, columns]`` (by query) or ``[batch, H, keys, columns]`` (by key).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Stripe(NamedTuple):
    """Distances ``first:stop``, counted from the smallest of a tile: one column for all, or one per distance."""

    first: int
    stop: int
    column: int | slice | Tensor

    @classmethod
    def of(cls, first: int, columns: Sequence[int], as_tensor: Callable[[], Tensor]) -> Stripe:
        """One column per distance; consecutive columns become a slice, others are asked for as a tensor."""
        start, stop = columns[0], columns[0] + len(columns)
        if list(columns) == list(range(start, stop)):
            return cls(first, first + len(columns), slice(start, stop))
        return cls(first, first + len(columns), as_tensor())


@dataclass(frozen=True, eq=False)
class UniformTile:
    """Keys ``start:stop`` of a block: one column for all pairs."""

    start: int
    stop: int
    column: int

    def gather(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None, *, add: bool) -> None:
        """Write (or add) the entries of by_query over the piece, and add those of by_key."""
        if by_query is not None:
            entries = by_query[..., self.column, None]
            piece.add_(entries) if add else piece.copy_(entries.expand(piece.shape))
        if by_key is not None:
            piece.add_(by_key[..., None, :, self.column])

    def scatter(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Add the sums of the piece by label to the tables."""
        if by_query is not None:
            by_query[..., self.column].add_(piece.sum(-1))
        if by_key is not None:
            by_key[..., self.column].add_(piece.sum(-2))


@dataclass(frozen=True, eq=False)
class IdTile:
    """Keys ``start:stop`` of a block: one column per pair, ``[batch or 1, rows, keys]``."""

    start: int
    stop: int
    columns: Tensor

    def gather(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None, *, add: bool) -> None:
        """Write (or add) the entries of by_query over the piece, and add those of by_key."""
        if by_query is not None:
            at = self._at(by_query)
            piece.add_(torch.gather(by_query, -1, at)) if add else torch.gather(by_query, -1, at, out=piece)
        if by_key is not None:
            piece.add_(torch.gather(by_key, -1, self._at(by_key).mT).mT)

    def scatter(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Add the sums of the piece by label to the tables."""
        if by_query is not None:
            by_query.scatter_add_(-1, self._at(by_query), piece)
        if by_key is not None:
            by_key.scatter_add_(-1, self._at(by_key).mT, piece.mT)

    def _at(self, table: Tensor) -> Tensor:
        return self.columns[:, None].expand(*table.shape[:2], -1, -1)


@dataclass(frozen=True, eq=False)
class DistanceTile:
    """Keys ``start:stop`` of a block: columns by distance, from the smallest (last row, first key) to the largest."""

    start: int
    stop: int
    stripes: Sequence[Stripe]

    def gather(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None, *, add: bool) -> None:
        """Write (or add) the entries of by_query over the piece, and add those of by_key."""
        if by_query is not None:
            _gather_stripes(piece, by_query, self.stripes, add=add)
        if by_key is not None:
            _gather_stripes(piece.mT, by_key, self._from_the_keys(by_key.device), add=True)

    def scatter(self, piece: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Add the sums of the piece by label to the tables."""
        if by_query is not None:
            _scatter_stripes(piece, by_query, self.stripes)
        if by_key is not None:
            _scatter_stripes(piece.mT, by_key, self._from_the_keys(by_key.device))

    def _from_the_keys(self, device: torch.device) -> list[Stripe]:
        """The same stripes with keys as rows; distances then run the other way."""
        count = self.stripes[-1].stop
        return [Stripe(count - stop, count - first, _reversed(column, device)) for first, stop, column in self.stripes]


Tile = UniformTile | IdTile | DistanceTile


def _reversed(column: int | slice | Tensor, device: torch.device) -> int | Tensor:
    if isinstance(column, slice):
        column = torch.arange(column.start, column.stop, device=device)
    return column.flip(0) if isinstance(column, Tensor) else column


def _pairs_of(by_distance: Tensor, rows: int, keys: int) -> Tensor:
    """View ``[.., rows, rows + keys - 1]``, one number per row and distance, as pairs ``[.., rows, keys]``.

    Pair (i, j) is the entry (i, j - i + rows - 1), so a step to the next row is one entry shorter than a row.
    """
    flat = by_distance.flatten(-2)
    size, stride = (*flat.shape[:-1], rows, keys), (*flat.stride()[:-1], by_distance.shape[-1] - 1, 1)
    return flat.as_strided(size, stride, flat.storage_offset() + rows - 1)


def _gather_stripes(piece: Tensor, table: Tensor, stripes: Sequence[Stripe], *, add: bool) -> None:
    """Write (or add) the table entry (row, column of its distance) to each pair of the piece."""
    rows, keys = piece.shape[-2:]
    wide = table.new_empty(*table.shape[:-1], rows + keys - 1)
    for first, stop, column in stripes:
        part = wide[..., first:stop]
        if isinstance(column, Tensor):
            part.copy_(table.index_select(-1, column))
        elif isinstance(column, slice):
            part.copy_(table[..., column])
        else:
            part.copy_(table[..., column, None].expand(part.shape))
    pairs = _pairs_of(wide, rows, keys)
    piece.add_(pairs) if add else piece.copy_(pairs)


def _scatter_stripes(piece: Tensor, table: Tensor, stripes: Sequence[Stripe]) -> None:
    """Add each pair of the piece to the table entry (row, column of its distance)."""
    rows, keys = piece.shape[-2:]
    wide = table.new_zeros(*table.shape[:-1], rows + keys - 1)
    _pairs_of(wide, rows, keys).copy_(piece)
    for first, stop, column in stripes:
        part = wide[..., first:stop]
        if isinstance(column, Tensor):
            table.index_add_(-1, column, part)
        elif isinstance(column, slice):
            table[..., column].add_(part)
        else:
            table[..., column].add_(part.sum(-1))
