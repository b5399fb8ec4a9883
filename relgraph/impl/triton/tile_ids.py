"""Cut pairs into aligned tiles per graph; find the tiles with one label and write out the labels of the others.

A tile cut off by the end of its graph, by causal order or by pairs that do not attend has several columns (*mixed*),
one of them "does not attend". For most tiles the range of distances decides; the others are written out, a bounded
number of pairs at a time, to find their columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.plan import FIRST, NOT_ATTENDING, DistanceIds, LabelPlan, Part, ids_at, listed_pairs

CHUNK_PAIRS = 1 << 22
"""How many pairs are written out at a time, which bounds memory."""

NO_LIMIT = 1 << 30
"""The limit on j - i without causal order."""


@dataclass(frozen=True, eq=False)
class Axis:
    """Query rows or keys, cut into blocks within each of G graphs (one, unless packed).

    Attributes:
        size: positions of a full block.
        begin: ``[G]``, the first position of each graph.
        end: ``[G]``, one past its last.
        first: ``[G]``, the number of its first block.
        graph: ``[NB]``, the graph of each block.
        start: ``[NB]``, the first position of each block.
        stop: ``[NB]``, one past its last; surplus blocks, at the end, are empty.
    """

    size: int
    begin: Tensor
    end: Tensor
    first: Tensor
    graph: Tensor
    start: Tensor
    stop: Tensor

    @classmethod
    def cut(cls, length: int, size: int, ptr: Tensor | None, device: torch.device) -> Axis:
        """The blocks of ``length`` positions; NB does not depend on the borders, as reading them would wait."""
        most = -(-length // size)
        if ptr is None or ptr.shape[0] == 1:
            ptr, most = torch.arange(2, device=device) * length, max(most, 1)
        else:
            most += ptr.shape[0] - 1
        begin, end = ptr[:-1].contiguous(), ptr[1:].contiguous()
        count = (end - begin + (size - 1)) // size
        upto = count.cumsum(0)
        number = torch.arange(most, device=device)
        graph = torch.searchsorted(upto, number, right=True).clamp(max=begin.shape[0] - 1)
        first = upto - count
        start = torch.minimum(begin[graph] + (number - first[graph]) * size, end[graph])
        return cls(size, begin, end, first, graph, start, torch.minimum(start + size, end[graph]))

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.graph.shape[0]

    @property
    def tiles(self) -> Tensor:
        """``[G]``, the number of blocks per graph."""
        return (self.end - self.begin + (self.size - 1)) // self.size


def offset_table(offset: int | Tensor, *, packed: bool, axis: Axis) -> Tensor:
    """An offset as ``[B or 1, G or 1]``: by batch row, or by graph when packed."""
    if not isinstance(offset, Tensor):
        return torch.full((1, 1), offset, device=axis.begin.device)
    offset = offset.to(axis.begin.device, torch.int64)
    if offset.numel() == 0:
        return offset.new_zeros(1, 1)
    return offset.reshape(1, -1) if packed else offset.reshape(-1, 1)


def _entry(table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """``table[row, column]``, with the table broadcast along axes of size 1."""
    return table[row if table.shape[0] > 1 else torch.zeros_like(row), column if table.shape[1] > 1 else 0 * column]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Some tiles, each field ``[t]``: their place, and their positions inside the graph."""

    map: Tensor
    graph: Tensor
    row_block: Tensor
    key_block: Tensor
    row_start: Tensor
    row_stop: Tensor
    key_start: Tensor
    key_stop: Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """All tiles of a plan, numbered by batch row (if they differ), row block and key block.

    Attributes:
        plan: the labels.
        rows: the blocks of queries.
        keys: the blocks of keys.
        maps: B if batch rows differ, else 1.
        causal: keys j <= i + causal are seen, ``[B or 1, G or 1]``, or None.
    """

    plan: LabelPlan
    rows: Axis
    keys: Axis
    maps: int
    causal: Tensor | None

    @property
    def counts(self) -> Tensor:
        """``[NB]``, the number of tiles per row block."""
        return self.keys.tiles[self.rows.graph] * (self.rows.stop > self.rows.start)

    def all(self) -> Tensor:
        """The number of every tile."""
        return torch.arange(self.maps * int(self.counts.sum()), device=self.rows.begin.device)

    def number(self, batch_row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The tile of a pair; shaped like ``query``."""
        upto = self.counts.cumsum(0)
        graph = torch.searchsorted(self.rows.end, query, right=True)
        block = self.rows.first[graph] + (query - self.rows.begin[graph]) // self.rows.size
        tile = (key - self.keys.begin[graph]) // self.keys.size
        return batch_row * upto[-1] + (upto - self.counts)[block] + tile

    def place(self, query: Tensor, key: Tensor) -> Tensor:
        """The position of a pair inside its tile, row by row."""
        graph = torch.searchsorted(self.rows.end, query, right=True)
        row = (query - self.rows.begin[graph]) % self.rows.size
        return row * self.keys.size + (key - self.keys.begin[graph]) % self.keys.size

    def at(self, number: Tensor) -> Tiles:
        """The tiles with these numbers."""
        rows, keys, counts = self.rows, self.keys, self.counts
        upto = counts.cumsum(0)
        total = upto[-1].clamp(min=1)
        within = number % total
        block = torch.searchsorted(upto, within, right=True)
        graph = rows.graph[block]
        key_block = keys.first[graph] + within - (upto - counts)[block]
        own, other = (rows.start[block], rows.stop[block]), (keys.start[key_block], keys.stop[key_block])
        return Tiles(number // total, graph, block, key_block, *own, *other)

    def apart(self, tiles: Tiles, offset: int | Tensor) -> Tensor:
        """What to subtract from key position minus query position to get a distance, ``[t]``."""
        table = offset_table(offset, packed=self.plan.q_ptr is not None, axis=self.rows)
        begin = self.keys.begin[tiles.graph] - self.rows.begin[tiles.graph]
        return begin + _entry(table, tiles.map, tiles.graph)


class SortedTiles(NamedTuple):
    """The tiles with a pair that attends.

    one ``[u]``, numbers of tiles with the same columns throughout; columns ``[u, parts]``, which; mixed ``[slots]``,
    numbers of the other tiles; ids ``[slots, parts, BM, BN]``, the column of each of their pairs.
    """

    one: Tensor
    columns: Tensor
    mixed: Tensor
    ids: Tensor


class _Listed(NamedTuple):
    """Listed pairs that count, by tile: number of the tile, place in it, id; each ``[P]``."""

    tile: Tensor
    place: Tensor
    ids: Tensor


def write(grid: Grid) -> SortedTiles:
    """Sort all tiles of the plan, and write out the mixed ones."""
    listed = [_listed(grid, part) for part in grid.plan.parts]
    numbers = _candidates(grid, listed)
    settled, dead, columns = _glance(grid, numbers, listed)
    one = settled & ~dead
    found = [(numbers[one], columns[one])]
    mixed, ids = [numbers[:0]], [_in_smallest(grid.plan, columns.new_empty(0, *_tile_shape(grid)))]
    for chunk, written in _in_chunks(grid, numbers[~settled], listed):
        low, high = written.amin((2, 3)), written.amax((2, 3))
        nowhere = low[:, 0] == grid.plan.columns
        several = (low != high).any(1)
        found.append((chunk[~several & ~nowhere], low[~several & ~nowhere]))
        mixed.append(chunk[several])
        ids.append(_in_smallest(grid.plan, written[several]))
    number, order = torch.cat([pair[0] for pair in found]).sort()
    return SortedTiles(number, torch.cat([pair[1] for pair in found])[order], torch.cat(mixed), torch.cat(ids))


def _tile_shape(grid: Grid) -> tuple[int, int, int]:
    return len(grid.plan.parts), grid.rows.size, grid.keys.size


def _in_smallest(plan: LabelPlan, ids: Tensor) -> Tensor:
    """``ids`` in the smallest type that holds every column and C."""
    fits = next(t for t in (torch.uint8, torch.int16, torch.int32) if plan.columns <= torch.iinfo(t).max)
    return ids.to(fits)


def _column(plan: LabelPlan, part: int, ids: Tensor) -> Tensor:
    """Ids of a part as columns; C, one past them all, for a pair that does not attend."""
    first, size = plan.starts[part], plan.num_labels[part]
    column = torch.where(ids < 0, first + size, first + ids)
    return column.masked_fill_(ids == NOT_ATTENDING, plan.columns)


def _listed(grid: Grid, part: Part) -> _Listed | None:
    """The listed pairs with role FIRST, sorted by tile, in every map."""
    if part.csr is None:
        return None
    kept = part.csr.role == FIRST
    batch_row, query, key = (x[kept] for x in listed_pairs(grid.plan, part.csr))
    ids = part.csr.ids[kept].to(torch.int32)
    if part.csr.batch < grid.maps:
        batch_row = torch.arange(grid.maps, device=ids.device).repeat_interleave(ids.shape[0])
        query, key, ids = (x.repeat(grid.maps) for x in (query, key, ids))
    tile, order = grid.number(batch_row, query, key).sort()
    return _Listed(tile, grid.place(query, key)[order], ids[order])


def _candidates(grid: Grid, listed: list[_Listed | None]) -> Tensor:
    """Numbers of the tiles that may attend: all, or those with a listed pair if only listed pairs attend."""
    for part, pairs in zip(grid.plan.parts, listed, strict=True):
        if part.edges_only and pairs is not None:
            return pairs.tile.unique_consecutive()
    return grid.all()


def _glance(grid: Grid, numbers: Tensor, listed: list[_Listed | None]) -> tuple[Tensor, Tensor, Tensor]:
    """Classify tiles without writing out their ids: (settled, dead, columns), ``[t]``, ``[t]``, ``[t, parts]``."""
    tiles = grid.at(numbers)
    nearest, farthest = tiles.key_start - tiles.row_stop + 1, tiles.key_stop - tiles.row_start - 1
    whole = (tiles.row_stop - tiles.row_start == grid.rows.size) & (tiles.key_stop - tiles.key_start == grid.keys.size)
    dead = torch.zeros_like(whole)
    if grid.causal is not None:
        limit = grid.apart(tiles, 0) + _entry(grid.causal, tiles.map, tiles.graph)
        dead, whole = nearest > limit, whole & (farthest <= limit)
    columns = []
    for p, (part, pairs) in enumerate(zip(grid.plan.parts, listed, strict=True)):
        apart = grid.apart(tiles, part.offset)
        known, column = _by_distance(grid.plan, p, nearest - apart, farthest - apart)
        if pairs is not None:
            known = known & ~torch.isin(numbers, pairs.tile.unique_consecutive())
        dead = dead | (known & (column == grid.plan.columns))
        whole = whole & known
        columns.append(column)
    return whole | dead, dead, torch.stack(columns, 1)


def _by_distance(plan: LabelPlan, p: int, nearest: Tensor, farthest: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a part gives one column to all distances of a range, and which; from counts of changes."""
    by_distance = plan.parts[p].ids
    if not isinstance(by_distance, DistanceIds):
        return torch.zeros_like(nearest, dtype=torch.bool), torch.zeros_like(nearest, dtype=torch.int32)
    ids = torch.tensor(by_distance.lookup, dtype=torch.int32, device=nearest.device)
    changes = torch.cat([ids.new_zeros(1), (ids[1:] != ids[:-1]).cumsum(0)])
    first, last = by_distance.first, by_distance.last
    low, high = (x.clamp(first, last) - first for x in (nearest, farthest))
    return changes[low] == changes[high], _column(plan, p, ids[low])


def _in_chunks(grid: Grid, numbers: Tensor, listed: list[_Listed | None]) -> Iterator[tuple[Tensor, Tensor]]:
    """Write tiles out, a bounded number of pairs at a time: numbers ``[c]``, columns ``[c, parts, BM, BN]``."""
    parts, rows, keys = _tile_shape(grid)
    for chunk in numbers.split(max(CHUNK_PAIRS // (parts * rows * keys), 1)):
        tiles = grid.at(chunk)
        i = (tiles.row_start[:, None] + torch.arange(rows, device=chunk.device))[:, :, None]
        j = (tiles.key_start[:, None] + torch.arange(keys, device=chunk.device))[:, None, :]
        hidden = (i >= tiles.row_stop[:, None, None]) | (j >= tiles.key_stop[:, None, None])
        if grid.causal is not None:
            limit = grid.apart(tiles, 0) + _entry(grid.causal, tiles.map, tiles.graph)
            hidden = hidden | (j - i > limit[:, None, None])
        columns = []
        for p, part in enumerate(grid.plan.parts):
            ids = _unlisted_ids(grid, part, tiles, i, j)
            _put_listed(ids, chunk, listed[p])
            columns.append(_column(grid.plan, p, ids))
            hidden = hidden | (ids == NOT_ATTENDING)
        yield chunk, torch.stack(columns, 1).masked_fill_(hidden[:, None], grid.plan.columns)


def _unlisted_ids(grid: Grid, part: Part, tiles: Tiles, i: Tensor, j: Tensor) -> Tensor:
    """The id of each pair, without listed pairs, int32 ``[c, BM, BN]``; arbitrary outside the graph."""
    i, j = torch.minimum(i, tiles.row_stop[:, None, None] - 1), torch.minimum(j, tiles.key_stop[:, None, None] - 1)
    row, graph = tiles.map[:, None, None], tiles.graph[:, None, None]
    ids = ids_at(grid.plan, part, row, i, j, None if grid.plan.q_ptr is None else graph)
    return ids.to(torch.int32)


def _put_listed(ids: Tensor, chunk: Tensor, listed: _Listed | None) -> None:
    """Overwrite ``ids`` with those of the listed pairs of these tiles."""
    if listed is None or not chunk.shape[0]:
        return
    begin, end = torch.searchsorted(listed.tile, chunk[[0, -1]]), torch.searchsorted(listed.tile, chunk, right=True)[-1]
    tile, place, new = (x[begin[0] : end] for x in listed)
    slot = torch.searchsorted(chunk, tile)
    here = chunk[slot] == tile
    ids.view(ids.shape[0], -1)[slot[here], place[here]] = new[here]


def sort_columns(plan: LabelPlan, ids: Tensor, axis: int, step: int) -> tuple[Tensor, Tensor]:
    """Sort the pairs of each line of a tile along ``axis``, ``step`` of them at a time, by column.

    uint8: the stable order within a step, in the shape of ``ids``, and how many pairs of a step have a lower column,
    for each column up to C: ``[slots, parts, steps, BM, C + 1]`` along keys, ``[slots, parts, steps, C + 1, BN]`` along
    rows.
    """
    limits = torch.arange(plan.columns + 1, dtype=torch.int32, device=ids.device)
    orders, bounds = [], []
    held = math.prod(ids.shape[1:]) // step * max(step, limits.shape[0])
    for chunk in ids.split(max(CHUNK_PAIRS // held, 1)):
        lines = chunk.movedim(axis, -1).unflatten(-1, (-1, step))  # [slots, parts, lines, steps, step]
        columns, order = lines.sort(dim=-1, stable=True)
        lower = limits.expand(*columns.shape[:-1], -1).contiguous()
        found = torch.searchsorted(columns.to(torch.int32).contiguous(), lower).movedim(-2, -3)
        orders.append(order.to(torch.uint8).flatten(-2).movedim(-1, axis))
        bounds.append((found if axis == -1 else found.mT).to(torch.uint8))
    return torch.cat(orders).contiguous(), torch.cat(bounds).contiguous()
