"""Tile maps: which tiles of pairs a kernel visits, and which of them have one label throughout.

A program owns one block of query rows (*transposed*: of keys) of one graph and loops over its tiles. A tile without a
pair that attends is skipped. A tile inside its graph whose pairs all attend with the same columns is part of a *run*.
Other tiles are *mixed* and listed one by one. Columns are those of ``terms.score_tables``: part p has R_p labels and
then one column for pairs without a label; C is the number of all columns.

Labels that depend on the distance only (:func:`virtual`) are never written out, and their map is made without reading
data: its columns are *virtual*, by distance. For all other labels the columns of mixed tiles are written out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from relgraph.impl.triton.tile_ids import NO_LIMIT, Axis, Grid, SortedTiles, offset_table, sort_columns, write
from relgraph.impl.triton.virtual import BEYOND, FAR_LEFT, Virtual, is_affine, virtual
from relgraph.labels.memory import Memory
from relgraph.plan import LabelPlan

FIELDS = (
    "own_start", "own_stop", "other_stop", "shift", "limit", "run_begin", "run_end", "tile_begin", "tile_end",
)  # fmt: skip
"""The columns of ``TileMap.blocks``."""


@dataclass(frozen=True, eq=False)
class TileMap:
    """The tiles of a plan by blocks of query rows, or of keys (*transposed*). Positions are absolute, tensors int32.

    Attributes:
        rows: BM, query rows per tile.
        keys: BN, keys per tile.
        parts: the number of parts.
        band: ``(low, width)`` of virtual columns; None if ids are written.
        blocks: ``[maps, NB, 9]``, :data:`FIELDS` of each block; maps is B if batch rows differ, else 1. A block owns
            ``own_start:own_stop`` (empty for surplus blocks) of a graph whose other side ends at ``other_stop``; pair
            (i, j) has distance ``j - i - shift`` (in the first part), and causal order shows it if ``j - i <= limit``.
        runs: ``[N, 2 + parts]``, start and stop on the other side, whole tiles, and the column of each part.
        tiles: ``[T, 2]``, start on the other side, slot in ``ids`` (-1 with a band).
        ids: ``[slots, parts, BM, BN]``, uint8, int16 or int32: column of each pair; C if it does not attend. None with
            a band.
        order: uint8, shape of ``ids``: each row's keys by column within a step, stable. This and the following are
            None unless asked for.
        bounds: uint8 ``[slots, parts, steps, BM, C + 1]``: how many pairs of the row and step have a lower column.
        order_t: uint8, shape of ``ids``: each key's rows by column within a step, along the rows' axis.
        bounds_t: uint8 ``[slots, parts, steps, C + 1, BN]``: how many pairs of the key and step have a lower column.
    """

    rows: int
    keys: int
    parts: int
    band: tuple[int, int] | None
    blocks: Tensor
    runs: Tensor
    tiles: Tensor
    ids: Tensor | None
    order: Tensor | None = None
    bounds: Tensor | None = None
    order_t: Tensor | None = None
    bounds_t: Tensor | None = None


def tile_map(
    plan: LabelPlan,
    rows: int,
    keys: int,
    *,
    batch: int,
    causal: int | Tensor | None,
    device: torch.device,
    transposed: bool = False,
    sort: int = 0,
    sort_transposed: int = 0,
    memo: Memory | None = None,
) -> TileMap:
    """The tile map of a plan.

    Affine plans (:func:`is_affine`) are mapped without waiting for the device. All others wait for it, once per
    combination of sizes and offsets in ``memo`` (and in each call to read offsets that are tensors).

    Args:
        plan: the labels, on ``device``; no part has several labels on one pair.
        rows: BM, query rows per tile.
        keys: BN, keys per tile.
        batch: B of the call.
        causal: keys j <= i + causal are seen; one offset, or one per batch row (per graph when packed); None for all.
        device: the device of the map.
        transposed: by blocks of keys instead of query rows.
        sort: fill ``order`` and ``bounds``, for steps of this many keys; 0 leaves them empty.
        sort_transposed: fill ``order_t`` and ``bounds_t``, for steps of this many rows.
        memo: earlier maps of this plan, whose borders and ids must not change. Affine maps with an offset that is a
            tensor are made anew in each call.
    """
    offsets = causal, *(part.offset for part in plan.parts)
    moving = any(isinstance(x, Tensor) for x in offsets)
    shortcut = None
    if memo is not None and not moving:  # nearly every call ends here
        own_batch = batch if plan.batch > 1 else 1
        shortcut = device, rows, keys, own_batch, causal, transposed, sort, sort_transposed
        if (found := memo.found.get(shortcut)) is not None:
            return found
    assert not any(part.csr is not None and part.csr.parallel for part in plan.parts)  # refused by the rule
    maps = 1 if plan.q_ptr is not None else max(plan.batch, *map(_length, offsets))
    affine = is_affine(plan)
    if memo is None or (affine and moving):
        memo = Memory()
    where = device, rows, keys, () if affine else tuple(map(_value, offsets)), causal if affine else None
    grid = partial(_grid, plan, rows, keys, maps, causal, device)  # not kept in memo: it refers to the plan
    if affine:
        made = memo.once(("affine", *where, transposed), lambda: _affine(grid(), transposed))
        return made if shortcut is None else memo.once(shortcut, lambda: made)
    written = memo.once(("written", *where), lambda: write(grid()))
    made = memo.once(("map", *where, transposed), lambda: _of_written(grid(), written, transposed))
    if sort:
        order, bounds = memo.once(("by row", sort, *where), lambda: sort_columns(plan, written.ids, -1, sort))
        made = replace(made, order=order, bounds=bounds)
    if sort_transposed:
        order, bounds = memo.once(
            ("by key", sort_transposed, *where), lambda: sort_columns(plan, written.ids, -2, sort_transposed)
        )
        made = replace(made, order_t=order, bounds_t=bounds)
    return made if shortcut is None else memo.once(shortcut, lambda: made)


def _value(offset: int | Tensor | None) -> Hashable:
    """The values of an offset, hashable; those of a tensor may change between calls."""
    return (tuple(offset.shape), *offset.reshape(-1).tolist()) if isinstance(offset, Tensor) else offset


def _length(offset: int | Tensor | None) -> int:
    """The number of batch rows that an offset tells apart."""
    return offset.shape[0] if isinstance(offset, Tensor) and offset.dim() == 1 else 1


def _grid(plan: LabelPlan, rows: int, keys: int, maps: int, causal: int | Tensor | None, device: torch.device) -> Grid:
    queries = Axis.cut(plan.q_len, rows, plan.q_ptr, device)
    packed = plan.q_ptr is not None
    limit = None if causal is None else offset_table(causal, packed=packed, axis=queries)
    return Grid(plan, queries, Axis.cut(plan.k_len, keys, plan.k_ptr, device), maps, limit)


def _sides(grid: Grid, transposed: bool) -> tuple[Axis, Axis]:
    """The axis whose blocks programs own, and the one they loop over."""
    return (grid.keys, grid.rows) if transposed else (grid.rows, grid.keys)


def _shift_and_limit(grid: Grid, own: Axis) -> tuple[Tensor, Tensor]:
    """Shift and limit of every block, ``[maps, NB]`` each; see ``TileMap.blocks``."""
    apart = (grid.keys.begin - grid.rows.begin)[own.graph]
    offset = offset_table(grid.plan.parts[0].offset, packed=grid.plan.q_ptr is not None, axis=grid.rows)
    size = grid.maps, own.blocks
    shift = apart + (offset if offset.shape[1] == 1 else offset[:, own.graph])
    shift = shift.clamp(-NO_LIMIT, NO_LIMIT)  # beyond, all pairs are on one side of any band, and 32 bits overflow
    if grid.causal is None:
        return shift.expand(size), torch.full_like(apart, NO_LIMIT).expand(size)
    limit = apart + (grid.causal if grid.causal.shape[1] == 1 else grid.causal[:, own.graph])
    return shift.expand(size), limit.clamp(-NO_LIMIT, NO_LIMIT).expand(size)


def _map(
    grid: Grid, transposed: bool, band: tuple[int, int] | None, spans: tuple[Tensor, ...], runs: Tensor, tiles: Tensor,
    ids: Tensor | None,
) -> TileMap:  # fmt: skip
    """A map of these runs and tiles; spans are run_begin, run_end, tile_begin, tile_end, one number per block."""
    own, other = _sides(grid, transposed)
    size = grid.maps, own.blocks
    fields = own.start, own.stop, other.end[own.graph], *_shift_and_limit(grid, own), *(x.view(size) for x in spans)
    blocks = torch.stack([x.expand(size) for x in fields], -1).to(torch.int32)
    runs, tiles = runs.to(torch.int32), tiles.to(torch.int32)
    parts = len(grid.plan.parts)
    return TileMap(grid.rows.size, grid.keys.size, parts, band, blocks, runs, tiles, ids)


def _of_written(grid: Grid, written: SortedTiles, transposed: bool) -> TileMap:
    """The map of sorted tiles; both directions share the ids."""
    own, other = _sides(grid, transposed)

    def by_owner(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Owning block and start on the other side of each tile, sorted by both, and the order."""
        tiles = grid.at(numbers)
        mine, theirs = (tiles.key_block, tiles.row_block) if transposed else (tiles.row_block, tiles.key_block)
        owner = tiles.map * own.blocks + mine
        order = (owner * other.blocks + theirs).argsort()
        return owner[order], other.start[theirs][order], order

    def spans(owner: Tensor) -> tuple[Tensor, Tensor]:
        block = torch.arange(grid.maps * own.blocks, device=owner.device)
        return torch.searchsorted(owner, block), torch.searchsorted(owner, block, right=True)

    owner, start, order = by_owner(written.one)
    columns = written.columns[order]
    fresh = torch.ones_like(owner, dtype=torch.bool)
    fresh[1:] = (owner[1:] != owner[:-1]) | (start[1:] != start[:-1] + other.size)
    fresh[1:] |= (columns[1:] != columns[:-1]).any(1)
    first, last = fresh.nonzero()[:, 0], fresh.roll(-1).nonzero()[:, 0]
    runs = torch.cat([torch.stack([start[first], start[last] + other.size], 1), columns[first]], 1)
    tile_owner, tile_start, slot = by_owner(written.mixed)
    tiles = torch.stack([tile_start, slot], 1)
    return _map(grid, transposed, None, (*spans(owner[first]), *spans(tile_owner)), runs, tiles, written.ids)


@dataclass(frozen=True, eq=False)
class _Walk:
    """The tiles along each block's other side, by their distances.

    Distances are ``j - i - shift``, negated when transposed, so that they grow along the walk. Below ``low`` all pairs
    have one column, and so from ``high`` on; tensors are ``[maps, NB]``.
    """

    own: Axis
    other: Axis
    low: int
    high: int
    dead: tuple[bool, bool]
    columns: tuple[int, int]
    stretches: list[tuple[int, int]]
    lean: Tensor
    seen_from: Tensor
    seen_to: Tensor

    @classmethod
    def of(cls, grid: Grid, labels: Virtual, transposed: bool) -> _Walk:
        own, other = _sides(grid, transposed)
        shift, limit = _shift_and_limit(grid, own)
        stop = limit - shift + 1 if grid.causal is not None else torch.full_like(shift, BEYOND)
        open_end = torch.full_like(shift, -BEYOND)
        low, high, stretches, width = labels.low, labels.low + labels.width, labels.stretches(), labels.width
        if not transposed:
            return cls(own, other, low, high, labels.dead, (0, width + 1), stretches, shift, open_end, stop)
        stretches = [(1 - stop, 1 - start) for start, stop in stretches]
        dead, columns = (labels.dead[1], labels.dead[0]), (width + 1, 0)
        return cls(own, other, 1 - high, 1 - low, dead, columns, stretches, -shift, 1 - stop, -open_end)

    @property
    def start(self) -> Tensor:
        """``[NB]``, where the other side of each block's graph begins."""
        return self.other.begin[self.own.graph]

    def first_tile(self, distance: Tensor, tiles: Tensor, *, nearest: bool) -> Tensor:
        """The first of ``tiles`` tiles whose nearest (or farthest) pair has at least this distance."""
        at = self.start - self.lean - (self.own.stop - 1 if nearest else self.own.start - (self.other.size - 1))
        return torch.minimum(((distance - at + (self.other.size - 1)) // self.other.size).clamp(min=0), tiles)

    def runs(self) -> Tensor:
        """First tile and one past the last of the run on either side of the band, ``[maps, NB, 2, 2]``."""
        length = self.other.end[self.own.graph] - self.start
        whole = length // self.other.size * (self.own.stop - self.own.start == self.own.size)
        left = self.first_tile(self.seen_from, whole, nearest=True)
        left_end = self.first_tile(self.seen_to.clamp(max=self.low), whole, nearest=False)
        right = self.first_tile(self.seen_from.clamp(min=self.high), whole, nearest=True)
        right_end = self.first_tile(self.seen_to, whole, nearest=False)
        spans = [
            torch.stack([begin, begin if dead else torch.maximum(begin, end)], -1)
            for begin, end, dead in zip((left, right), (left_end, right_end), self.dead, strict=True)
        ]
        return torch.stack(spans, -2)

    def span(self) -> tuple[Tensor, Tensor]:
        """First tile and one past the last of those that may attend."""
        tiles = self.other.tiles[self.own.graph] * (self.own.stop > self.own.start)
        live_from = self.seen_from.clamp(min=self.low) if self.dead[0] else self.seen_from
        live_to = self.seen_to.clamp(max=self.high) if self.dead[1] else self.seen_to
        begin = self.first_tile(live_from, tiles, nearest=False)
        return begin, torch.maximum(begin, self.first_tile(live_to, tiles, nearest=True))

    def most_mixed(self, causal: bool) -> int:
        """The most mixed tiles of a block: in the band, on the causal diagonal, at the graph's end."""
        across = self.own.size + self.other.size - 2
        band = 0 if FAR_LEFT in (self.low, 1 - self.low) else -(-(self.high - self.low + across) // self.other.size)
        return band + (-(-across // self.other.size) if causal else 0) + 1

    def look(self, block: Tensor, tile: Tensor) -> tuple[Tensor, Tensor]:
        """Start of each tile on the other side, and whether any of its pairs attends; each ``[T]``."""
        number, lean = block % self.own.blocks, self.lean.reshape(-1)[block]
        start = self.start[number] + tile * self.other.size
        stop = torch.minimum(start + self.other.size, self.other.end[self.own.graph[number]])
        nearest = torch.maximum(start - self.own.stop[number] + 1 - lean, self.seen_from.reshape(-1)[block])
        farthest = torch.minimum(stop - self.own.start[number] - lean, self.seen_to.reshape(-1)[block])
        attends = torch.zeros_like(start, dtype=torch.bool)
        for begin, end in self.stretches:
            attends |= nearest.clamp(min=begin) < farthest.clamp(max=end)
        return start, attends


def _affine(grid: Grid, transposed: bool) -> TileMap:
    """The map of labels by distance, in shapes that do not depend on data."""
    labels = virtual(grid.plan.parts[0])
    walk = _Walk.of(grid, labels, transposed)
    runs = walk.runs()
    begin, end = (x.reshape(-1) for x in walk.span())
    lines, held = runs.view(-1, 2, 2), (runs[..., 1] - runs[..., 0]).view(-1, 2)
    count = end - begin - held.sum(-1)
    upto = count.cumsum(0)
    most = grid.maps * (walk.own.blocks * walk.most_mixed(grid.causal is not None) + walk.other.blocks)
    line = torch.arange(most, device=upto.device)
    block = torch.searchsorted(upto, line, right=True).clamp(max=count.shape[0] - 1)
    tile = begin[block] + line - (upto - count)[block]
    for side in range(2):
        tile = tile + torch.where(tile >= lines[block, side, 0], held[block, side], 0)
    start, attends = walk.look(block, tile)
    kept = (attends & (line < upto[-1])).cumsum(0)
    source = torch.searchsorted(kept, line + 1).clamp(max=most - 1)  # tiles that attend move up
    tiles = torch.stack([start[source], torch.full_like(line, -1)], 1)
    before = torch.cat([kept.new_zeros(1), kept])
    number = 2 * torch.arange(count.shape[0], device=upto.device)
    spans = number, number + 2, before[upto - count], before[upto]
    positions = walk.start[:, None, None] + runs * walk.other.size
    column = torch.full_like(positions[..., :1], walk.columns[0])
    column[..., 1, :] = walk.columns[1]
    runs = torch.cat([positions, column], -1).view(-1, 3)
    return _map(grid, transposed, (labels.low, labels.width), spans, runs, tiles, None)
