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
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from relgraph.impl.triton.tile_ids import NO_LIMIT, Axis, Grid, SortedTiles, sort_columns, write
from relgraph.impl.triton.virtual import FAR_LEFT, constant, is_affine, virtual
from relgraph.labels.memory import Memory
from relgraph.plan import NOT_ATTENDING, LabelPlan

BEYOND = 1 << 40
"""A number larger than any distance."""

FIELDS = (
    "own_start", "own_stop", "other_stop", "shift", "limit", "run_begin", "run_end", "tile_begin", "tile_end",
)  # fmt: skip
"""The columns of ``TileMap.blocks``."""


@dataclass(frozen=True, eq=False)
class TileMap:
    """The tiles of a plan by blocks of query rows, or of keys (*transposed*). Positions are absolute, tensors int32.

    Attributes:
        blocks: ``[maps, NB, 9]``, :data:`FIELDS` of each block; maps is B if batch rows differ, else 1. A block owns
            ``own_start:own_stop`` (empty for surplus blocks) of a graph whose other side ends at ``other_stop``; pair
            (i, j) has distance ``j - i - shift`` (in the first part), and causal order shows it if ``j - i <= limit``.
        runs: ``[N, 2 + parts]``, start and stop on the other side, whole tiles, and the column of each part.
        tiles: ``[T, 2]``, start on the other side, slot in ``ids`` (-1 without).
        ids: ``[slots, parts, BM, BN]``, uint8, int16 or int32: column of each pair; C if it does not attend. None if
            labels depend on the distance only.
        order: uint8, shape of ``ids``: the pairs of each row by column within a step of keys, stable (transposed: of
            each key, within a step of rows). This and the following are None unless asked for.
        bounds: uint8 ``[slots, parts, steps, BM, C + 1]`` (transposed ``[slots, parts, steps, C + 1, BN]``): how many
            pairs of the row (key) and step have a lower column.
    """

    blocks: Tensor
    runs: Tensor
    tiles: Tensor
    ids: Tensor | None = None
    order: Tensor | None = None
    bounds: Tensor | None = None


def tile_map(
    plan: LabelPlan, rows: int, keys: int, *, causal: int | Tensor | None, device: torch.device, memo: Memory,
    transposed: bool = False, sort: int = 0,
) -> TileMap:  # fmt: skip
    """The tile map of a plan.

    Affine plans (:func:`is_affine`) are mapped without waiting for the device, anew in each call if an offset is a
    tensor. All others wait for it, once per combination of sizes and offsets in ``memo`` (and in each call to read
    offsets that are tensors).

    Args:
        plan: the labels, on ``device``; no part has several labels on one pair.
        rows: BM, query rows per tile.
        keys: BN, keys per tile.
        causal: keys j <= i + causal are seen; one offset, or one per batch row (per graph when packed); None for all.
        device: the device of the map.
        memo: earlier maps of this plan, whose borders and ids must not change.
        transposed: by blocks of keys instead of query rows.
        sort: fill ``order`` and ``bounds``, for steps of this many keys (transposed: rows); 0 leaves them empty.
    """
    affine, offsets = is_affine(plan), (causal, *(part.offset for part in plan.parts))
    if affine and any(isinstance(x, Tensor) for x in offsets):
        return _affine(Grid.of(plan, rows, keys, causal, device), transposed)
    where = device, rows, keys, *map(_value, offsets)

    def make() -> TileMap:
        grid = Grid.of(plan, rows, keys, causal, device)
        if affine:
            return _affine(grid, transposed)
        return _of_written(grid, memo.once(where, lambda: write(grid)), transposed, sort)

    return memo.once((*where, transposed, sort), make)


def _value(offset: int | Tensor | None) -> Hashable:
    """The values of an offset, hashable; those of a tensor may change between calls."""
    return (tuple(offset.shape), *offset.reshape(-1).tolist()) if isinstance(offset, Tensor) else offset


def _sides(grid: Grid, transposed: bool) -> tuple[Axis, Axis]:
    """The axis whose blocks programs own, and the one they loop over."""
    return (grid.keys, grid.rows) if transposed else (grid.rows, grid.keys)


def _shift_and_limit(grid: Grid, own: Axis) -> tuple[Tensor, Tensor]:
    """Shift and limit of every block, ``[maps, NB]`` each; see ``TileMap.blocks``."""
    # beyond NO_LIMIT, all pairs are on one side of any band, and 32 bits overflow
    shift = grid.apart(grid.plan.parts[0].offset)[:, own.graph].clamp(-NO_LIMIT, NO_LIMIT)
    limit = torch.full_like(shift, NO_LIMIT) if grid.limit is None else grid.limit[:, own.graph]
    return shift, limit.clamp(-NO_LIMIT, NO_LIMIT)


def _blocks(grid: Grid, transposed: bool, *spans: Tensor) -> Tensor:
    """All fields of the blocks; spans are run_begin, run_end, tile_begin, tile_end, one number per block."""
    own, other = _sides(grid, transposed)
    size = grid.maps, own.blocks
    fields = own.start, own.stop, other.end[own.graph], *_shift_and_limit(grid, own), *(x.view(size) for x in spans)
    return torch.stack([x.expand(size) for x in fields], -1).to(torch.int32)


def _of_written(grid: Grid, written: SortedTiles, transposed: bool, sort: int) -> TileMap:
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

    owner, start, order = by_owner(written.one)  # [u]
    columns = written.columns[order]  # [u, parts]
    fresh = torch.ones_like(owner, dtype=torch.bool)
    fresh[1:] = (owner[1:] != owner[:-1]) | (start[1:] != start[:-1] + other.size)
    fresh[1:] |= (columns[1:] != columns[:-1]).any(1)
    first, last = fresh.nonzero()[:, 0], fresh.roll(-1).nonzero()[:, 0]  # [N]
    runs = torch.cat([torch.stack([start[first], start[last] + other.size], 1), columns[first]], 1)  # [N, 2 + parts]
    tile_owner, tile_start, slot = by_owner(written.mixed)
    tiles = torch.stack([tile_start, slot], 1)  # [T, 2]
    order, bounds = sort_columns(grid.plan, written.ids, -2 if transposed else -1, sort) if sort else (None, None)
    blocks = _blocks(grid, transposed, *spans(owner[first]), *spans(tile_owner))
    return TileMap(blocks, runs.to(torch.int32), tiles.to(torch.int32), written.ids, order, bounds)


def _affine(grid: Grid, transposed: bool) -> TileMap:
    """The map of labels by distance, in shapes that do not depend on data.

    Distances are ``j - i - shift``, negated when transposed, so that they grow along the tiles of a block. All pairs
    below ``low`` have one column, and so all from ``high`` on; those from ``seen_from`` to before ``seen_to`` are seen.
    """
    labels, (own, other) = virtual(grid.plan.parts[0]), _sides(grid, transposed)
    low, high, outer = labels.low, labels.low + labels.width, (0, labels.width + 1)
    shift, limit = _shift_and_limit(grid, own)
    seen_from, seen_to = torch.full_like(shift, -BEYOND), limit - shift + 1  # [maps, NB]
    if transposed:
        low, high, outer = 1 - high, 1 - low, outer[::-1]
        shift, seen_from, seen_to = -shift, 1 - seen_to, -seen_from
    dead = [labels.columns[column] == NOT_ATTENDING for column in outer]
    start, end, size = other.begin[own.graph], other.end[own.graph], other.size

    def first(distance: Tensor, tiles: Tensor, *, nearest: bool) -> Tensor:
        """The first of a block's tiles whose nearest (or farthest) pair has at least this distance, ``[maps, NB]``."""
        at = start - shift - (own.stop - 1 if nearest else own.start - (size - 1))
        return torch.minimum(((distance - at + (size - 1)) // size).clamp(min=0), tiles)

    # on either side of the band a run of whole tiles
    whole, sides = (end - start) // size * (own.stop - own.start == own.size), []
    for side, since, until in ((0, seen_from, seen_to.clamp(max=low)), (1, seen_from.clamp(min=high), seen_to)):
        begin = first(since, whole, nearest=True)
        stop = begin if dead[side] else torch.maximum(begin, first(until, whole, nearest=False))
        sides.append(torch.stack([begin, stop], -1))
    runs = torch.stack(sides, -2).view(-1, 2, 2)  # [maps · NB, side, begin and stop]
    held = runs[..., 1] - runs[..., 0]
    # the other tiles from the first to the last that may attend are mixed
    tiles = other.tiles[own.graph] * (own.stop > own.start)
    begin = first(seen_from.clamp(min=low) if dead[0] else seen_from, tiles, nearest=False)
    stop = torch.maximum(begin, first(seen_to.clamp(max=high) if dead[1] else seen_to, tiles, nearest=True))
    count = (stop - begin).reshape(-1) - held.sum(-1)
    upto = count.cumsum(0)
    # at most: those of the band, on the causal diagonal and at the graph's end; all of a block that its graph cuts off
    across = own.size + size - 2
    most = 1 if labels.low == FAR_LEFT else 1 - (-(high - low + across) // size)
    most += 0 if grid.limit is None else -(-across // size)
    line = torch.arange(grid.maps * (own.blocks * most + other.blocks), device=upto.device)  # [T]
    block = torch.searchsorted(upto, line, right=True).clamp(max=count.shape[0] - 1)
    tile = begin.reshape(-1)[block] + line - (upto - count)[block]
    for side in range(2):
        tile = tile + torch.where(tile >= runs[block, side, 0], held[block, side], 0)

    def of_block(x: Tensor) -> Tensor:
        return x.expand(grid.maps, own.blocks).reshape(-1)[block]

    # tiles of the band with a pair that attends move up
    at = of_block(start) + tile * size
    nearest = torch.maximum(at - of_block(own.stop - 1 + shift), of_block(seen_from))
    farthest = torch.minimum(torch.minimum(at + size, of_block(end)) - of_block(own.start + shift), of_block(seen_to))
    least, greatest = (1 - farthest, -nearest) if transposed else (nearest, farthest - 1)
    live = constant(tuple(accumulate((x != NOT_ATTENDING for x in labels.columns), initial=0)), line.device)
    lives = (live[labels.at(greatest) + 1] > live[labels.at(least)]) & (least <= greatest) & (line < upto[-1])
    kept = lives.cumsum(0)
    source = torch.searchsorted(kept, line + 1).clamp(max=line.shape[0] - 1)
    tiles = torch.stack([at[source], torch.full_like(line, -1)], 1)
    before = torch.cat([kept.new_zeros(1), kept])
    number = 2 * torch.arange(count.shape[0], device=upto.device)
    blocks = _blocks(grid, transposed, number, number + 2, before[upto - count], before[upto])
    positions = start.repeat(grid.maps)[:, None, None] + runs * size
    column = torch.full_like(positions[..., :1], outer[0])
    column[..., 1, :] = outer[1]
    runs = torch.cat([positions, column], -1).view(-1, 3)
    return TileMap(blocks, runs.to(torch.int32), tiles.to(torch.int32))
