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


class Tiles(NamedTuple):
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
        causal: keys j <= i + causal are seen; None for all.
    """

    plan: LabelPlan
    rows: Axis
    keys: Axis
    maps: int
    causal: int | Tensor | None

    @classmethod
    def of(
        cls, plan: LabelPlan, rows: int, keys: int, causal: int | Tensor | None, device: torch.device
    ) -> Grid:  # fmt: skip
        """The tiles of ``rows`` query rows and ``keys`` keys."""
        maps = plan.batch
        for offset in (causal, *(part.offset for part in plan.parts)):
            if isinstance(offset, Tensor) and offset.dim() == 1:
                maps = max(maps, offset.shape[0])
        queries, others = Axis.cut(plan.q_len, rows, plan.q_ptr, device), Axis.cut(plan.k_len, keys, plan.k_ptr, device)
        return cls(plan, queries, others, maps if plan.q_ptr is None else 1, causal)

    @property
    def counts(self) -> Tensor:
        """``[NB]``, the number of tiles per row block."""
        return self.keys.tiles[self.rows.graph] * (self.rows.stop > self.rows.start)

    def apart(self, offset: int | Tensor) -> Tensor:
        """What to subtract from key position minus query position to get a distance, ``[maps, G]``."""
        begin = self.keys.begin - self.rows.begin
        if not isinstance(offset, Tensor):
            return (begin + offset).expand(self.maps, -1)
        offset = offset.to(begin.device, torch.int64) if offset.numel() else begin.new_zeros(1)
        by_map = offset.reshape((-1, 1) if self.plan.q_ptr is None else (1, -1))
        return (begin + by_map).expand(self.maps, -1)

    @property
    def limit(self) -> Tensor | None:
        """The greatest key position minus query position that is seen, ``[maps, G]``; None for all."""
        return None if self.causal is None else self.apart(self.causal)

    def find(self, batch_row: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The tiles of pairs, and their places inside them, row by row."""
        upto = self.counts.cumsum(0)
        graph = torch.searchsorted(self.rows.end, query, right=True)
        row, column = query - self.rows.begin[graph], key - self.keys.begin[graph]
        block = self.rows.first[graph] + row // self.rows.size
        tile = batch_row * upto[-1] + (upto - self.counts)[block] + column // self.keys.size
        return tile, row % self.rows.size * self.keys.size + column % self.keys.size

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
    # tiles that may attend: all, or those with a listed pair if only listed pairs attend
    alone = next((pairs for part, pairs in zip(grid.plan.parts, listed, strict=True) if part.edges_only), None)
    if alone is None:
        numbers = torch.arange(grid.maps * int(grid.counts.sum()), device=grid.rows.begin.device)
    else:
        numbers = alone.tile.unique_consecutive()
    settled, dead, columns = _glance(grid, numbers, listed)
    one = settled & ~dead
    found, mixed, ids = [(numbers[one], columns[one])], [], []
    # ids in the smallest type that holds every column and C
    smallest = next(t for t in (torch.uint8, torch.int16, torch.int32) if grid.plan.columns <= torch.iinfo(t).max)
    for chunk, written in _in_chunks(grid, numbers[~settled], listed):
        low, high = written.amin((2, 3)), written.amax((2, 3))
        several = (low != high).any(1)
        same = ~several & (low[:, 0] != grid.plan.columns)
        found.append((chunk[same], low[same]))
        mixed.append(chunk[several])
        ids.append(written[several].to(smallest))
    number, order = torch.cat([pair[0] for pair in found]).sort()
    return SortedTiles(number, torch.cat([pair[1] for pair in found])[order], torch.cat(mixed), torch.cat(ids))


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
    tile, place = grid.find(batch_row, query, key)
    tile, order = tile.sort()
    return _Listed(tile, place[order], ids[order])


def _glance(grid: Grid, numbers: Tensor, listed: list[_Listed | None]) -> tuple[Tensor, Tensor, Tensor]:
    """Classify tiles without writing out their ids: (settled, dead, columns), ``[t]``, ``[t]``, ``[t, parts]``."""
    tiles = grid.at(numbers)
    nearest, farthest = tiles.key_start - tiles.row_stop + 1, tiles.key_stop - tiles.row_start - 1
    whole = (tiles.row_stop - tiles.row_start == grid.rows.size) & (tiles.key_stop - tiles.key_start == grid.keys.size)
    dead = torch.zeros_like(whole)
    if grid.limit is not None:
        limit = grid.limit[tiles.map, tiles.graph]
        dead, whole = nearest > limit, whole & (farthest <= limit)
    columns = []
    for p, (part, pairs) in enumerate(zip(grid.plan.parts, listed, strict=True)):
        apart = grid.apart(part.offset)[tiles.map, tiles.graph]
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
    rows, keys = grid.rows.size, grid.keys.size
    for chunk in numbers.split(max(CHUNK_PAIRS // (len(grid.plan.parts) * rows * keys), 1)):
        tiles = grid.at(chunk)
        i = (tiles.row_start[:, None] + torch.arange(rows, device=chunk.device))[:, :, None]
        j = (tiles.key_start[:, None] + torch.arange(keys, device=chunk.device))[:, None, :]
        hidden = (i >= tiles.row_stop[:, None, None]) | (j >= tiles.key_stop[:, None, None])
        if grid.limit is not None:
            hidden = hidden | (j - i > grid.limit[tiles.map, tiles.graph][:, None, None])
        # ids outside the graph are those of its last row and key, and hidden
        i, j = torch.minimum(i, tiles.row_stop[:, None, None] - 1), torch.minimum(j, tiles.key_stop[:, None, None] - 1)
        row, graph = tiles.map[:, None, None], None if grid.plan.q_ptr is None else tiles.graph[:, None, None]
        columns = []
        for p, part in enumerate(grid.plan.parts):
            ids = ids_at(grid.plan, part, row, i, j, graph).to(torch.int32)  # [c, BM, BN]
            _put_listed(ids, chunk, listed[p])
            columns.append(_column(grid.plan, p, ids))
            hidden = hidden | (ids == NOT_ATTENDING)
        yield chunk, torch.stack(columns, 1).masked_fill_(hidden[:, None], grid.plan.columns)


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
