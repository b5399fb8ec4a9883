"""The two moves of the split term for one block of query rows: spread a small table over pairs, collect pairs by label.

A block is cut by key into tiles. In a *uniform* tile every pair carries one label: spreading adds a scalar a row,
collecting is a row sum. Only *mixed* tiles gather and scatter. Listed pairs then correct what their tile did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.plan import DEAD, FIRST, NOT_ATTENDING, Block, LabelPlan, Part, Region, Uniform, ids_by_distance


@dataclass(frozen=True, eq=False)
class Unit:
    """Rows that are worked on together: some batch rows of a padded batch, or one graph of a packed one.

    ``queries`` and ``keys`` are ranges of positions; inside the unit both count from 0.
    """

    batch: range
    queries: range
    keys: range
    graph: int | None = None


def units(plan: LabelPlan, batch: int, together: int) -> list[Unit]:
    """The whole call as units; ``together`` bounds how many batch rows share one."""
    if plan.q_ptr is not None and plan.k_ptr is not None:
        q_ptr, k_ptr = plan.q_ptr.tolist(), plan.k_ptr.tolist()
        return [
            Unit(range(batch), range(q_ptr[g], q_ptr[g + 1]), range(k_ptr[g], k_ptr[g + 1]), g)
            for g in range(len(q_ptr) - 1)
        ]
    if any(part.csr is not None for part in plan.parts):
        together = 1
    queries, keys = range(plan.q_len), range(plan.k_len)
    return [Unit(range(b, min(b + together, batch)), queries, keys) for b in range(0, batch, together)]


@dataclass(frozen=True, eq=False)
class Offset:
    """Where query row 0 of a unit stands among its keys: bounds for cutting tiles, and the value itself."""

    low: int
    high: int
    value: int | Tensor  # broadcasts over [batch, rows, keys]

    @property
    def fixed(self) -> bool:
        """Whether all batch rows of the unit share it."""
        return self.low == self.high


def offset_in(offset: int | Tensor, unit: Unit) -> Offset:
    """The unit's share of an offset that may differ from batch row to batch row, or from graph to graph."""
    if not isinstance(offset, Tensor):
        return Offset(offset, offset, offset)
    if offset.dim() == 0 or unit.graph is not None:
        one = int(offset if offset.dim() == 0 else offset[unit.graph])
        return Offset(one, one, one)
    mine = offset[unit.batch.start : unit.batch.stop] if offset.shape[0] > 1 else offset
    low, high = (int(x) for x in torch.aminmax(mine))
    return Offset(low, high, low if low == high else mine.reshape(-1, 1, 1))


@dataclass(frozen=True, eq=False)
class _Tile:
    """Keys ``start:stop`` of a block: one ``column`` for all, or one a pair ``[batch or 1, rows, keys]``."""

    start: int
    stop: int
    column: int | Tensor


@dataclass(frozen=True, eq=False)
class _Listed:
    """Listed pairs of a block: where they stand and the column they add, and the pairs they take from their tile."""

    row: Tensor
    col: Tensor
    column: Tensor
    taken_row: Tensor
    taken_col: Tensor


class PartInUnit:
    """One part of the labels within one unit: which ids its blocks carry."""

    def __init__(self, plan: LabelPlan, part: Part, unit: Unit, first_column: int, device: torch.device) -> None:
        self.part, self.unit, self.device = part, unit, device
        self.first_column, self.zero_column = first_column, first_column + part.num_labels
        self.offset = offset_in(part.offset, unit)
        self.regions: tuple[Region, ...] = part.regions
        self.ids = self._block_ids(plan)
        self.row_ptr = None if part.csr is None else part.csr.row_ptr
        self.q_len = plan.q_len
        self.complete = part.complete
        self.light = self.ids is None and part.csr is None and self.offset.fixed  # its tiles are small or uniform

    def _block_ids(self, plan: LabelPlan) -> Tensor | None:
        """Written ids of the unit, ``[batch or 1, rows, keys]``."""
        blocks = [region for region in self.regions if isinstance(region, Block)]
        if not blocks:
            return None
        ids, unit = blocks[0].ids, self.unit
        if unit.graph is None:
            return ids[unit.batch.start : unit.batch.stop] if ids.shape[0] > 1 else ids
        assert plan.q_ptr is not None and plan.k_ptr is not None
        g, sizes = unit.graph, plan.q_ptr.diff() * plan.k_ptr.diff()
        begin, count = int(sizes[:g].sum()), len(unit.queries) * len(unit.keys)
        return ids[begin : begin + count].view(1, len(unit.queries), len(unit.keys))

    def hull(self, rows: range) -> tuple[int, int]:
        """A range of keys outside of which no pair of these rows attends."""
        keys = len(self.unit.keys)
        if self.ids is not None or self.part.csr is not None or self.complete:
            return 0, keys
        start, stop = keys, 0
        for region in self.regions:
            assert not isinstance(region, Block)
            low, high = region.bounds
            start = min(start, 0 if low is None else rows.start + self.offset.low + low)
            stop = max(stop, keys if high is None else rows.stop - 1 + self.offset.high + high)
        return max(start, 0), min(stop, keys)

    def tiles(self, rows: range, start: int, stop: int) -> tuple[list[_Tile], list[tuple[int, Tensor]]]:
        """Keys ``start:stop`` cut into tiles, and the pairs in mixed tiles that do not attend ``(first key, mask)``."""
        tiles, masks, at = [], [], start
        for c0, c1, label in self._uniform(rows, start, stop):
            if at < c0:
                tiles.append(self._mixed(rows, at, c0, masks))
            tiles.append(_Tile(c0, c1, self.zero_column if label < 0 else self.first_column + label))
            at = c1
        if at < stop:
            tiles.append(self._mixed(rows, at, stop, masks))
        return tiles, masks

    def _uniform(self, rows: range, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Ranges of keys that lie in one uniform region for every row, in order."""
        found = []
        for region in self.regions:
            if isinstance(region, Uniform):
                c0 = start if region.low is None else max(start, rows.stop - 1 + self.offset.high + region.low)
                c1 = stop if region.high is None else min(stop, rows.start + self.offset.low + region.high)
                if c0 < c1:
                    found.append((c0, c1, region.label))
        return sorted(found)

    def _mixed(self, rows: range, start: int, stop: int, masks: list[tuple[int, Tensor]]) -> _Tile:
        ids = self._ids(rows, start, stop)
        if not self.complete:
            masks.append((start, ids == NOT_ATTENDING))
        columns = torch.where(ids < 0, self.part.num_labels, ids)
        return _Tile(start, stop, columns + self.first_column if self.first_column else columns)

    def _ids(self, rows: range, start: int, stop: int) -> Tensor:
        if self.ids is not None:
            return self.ids[:, rows.start : rows.stop, start:stop].to(torch.int64)
        i = torch.arange(rows.start, rows.stop, device=self.device)[:, None]
        j = torch.arange(start, stop, device=self.device)
        return ids_by_distance(self.regions, (j - i)[None] - self.offset.value)

    def listed(self, rows: range, start: int, stop: int) -> _Listed | None:
        """The listed pairs of these rows with a key in ``start:stop``, counted from the block's corner."""
        csr = self.part.csr
        if csr is None:
            return None
        assert self.row_ptr is not None
        batch_row = self.unit.batch.start if csr.batch > 1 else 0
        corner = batch_row * self.q_len + self.unit.queries.start + rows.start
        begin, end = (int(x) for x in self.row_ptr[[corner, corner + len(rows)]])
        col = csr.col[begin:end] - self.unit.keys.start
        row, ids, role = csr.row[begin:end] - corner, csr.ids[begin:end], csr.role[begin:end]
        inside = (col >= start) & (col < stop)
        live, first = inside & (role != DEAD), inside & (role == FIRST)
        column = torch.where(ids < 0, self.part.num_labels, ids) + self.first_column
        return _Listed(row[live], col[live] - start, column[live], row[first], col[first] - start)


class BlockMoves:
    """Both moves for the pairs of one block of rows, all parts together; keys outside ``start:stop`` do not attend."""

    def __init__(self, parts: Sequence[PartInUnit], rows: range, causal: Offset | None) -> None:
        self.rows = rows
        hulls = [part.hull(rows) for part in parts]
        start, stop = max(h[0] for h in hulls), min(h[1] for h in hulls)
        if causal is not None:
            stop = min(stop, rows.stop + causal.high)
        self.start, self.stop = start, max(stop, start)
        self._masks: list[tuple[int, Tensor]] = []
        self._tiles: list[list[_Tile]] = []
        self._listed: list[_Listed | None] = []
        for part in parts if self.stop > self.start else ():
            tiles, masks = part.tiles(rows, self.start, self.stop)
            listed = part.listed(rows, self.start, self.stop)
            if listed is not None and not part.complete:
                masks = [self._not_listed(part, masks, listed)]
            self._tiles.append(tiles)
            self._listed.append(listed)
            self._masks += masks
        if causal is not None and self.stop > self.start:
            self._mask_future(causal, parts[0].device)

    @property
    def width(self) -> int:
        """How many keys the block covers."""
        return self.stop - self.start

    @property
    def masked(self) -> bool:
        """Whether some pair within the block may not attend."""
        return bool(self._masks)

    def _not_listed(self, part: PartInUnit, masks: list[tuple[int, Tensor]], listed: _Listed) -> tuple[int, Tensor]:
        """One mask for a part with listed pairs: what its regions leave out, less what is listed."""
        left_out = torch.zeros(1, len(self.rows), self.width, dtype=torch.bool, device=part.device)
        for first, mask in masks:
            left_out[..., first - self.start : first - self.start + mask.shape[-1]] = mask
        left_out[0, listed.taken_row, listed.taken_col] = False
        return self.start, left_out

    def _mask_future(self, causal: Offset, device: torch.device) -> None:
        first = max(self.start, self.rows.start + causal.low + 1)
        if first >= self.stop:
            return
        i = torch.arange(self.rows.start, self.rows.stop, device=device)[:, None]
        j = torch.arange(first, self.stop, device=device)
        future = j - i - causal.value > 0
        self._masks.append((first, future if future.dim() == 3 else future[None]))

    def hide(self, scores: Tensor) -> None:
        """-inf in place for every pair of ``[batch, H, rows, width]`` that does not attend."""
        for first, mask in self._masks:
            at = first - self.start
            scores[..., at : at + mask.shape[-1]].masked_fill_(mask[:, None], float("-inf"))

    def spread(self, out: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Writes table entries over pairs: ``out[i, j] = by_query[i, l_ij] + by_key[j, l_ij]``.

        Shapes: ``out`` ``[batch, H, rows, width]``, ``by_query`` ``[batch, H, rows, columns]``, ``by_key``
        ``[batch, H, keys, columns]``.
        """
        if by_query is None:
            out.zero_()
        for index, (tiles, listed) in enumerate(zip(self._tiles, self._listed, strict=True)):
            fresh = index == 0 and by_query is not None
            before = None if listed is None or fresh else out[..., listed.taken_row, listed.taken_col]
            for tile in tiles:
                piece = out[..., tile.start - self.start : tile.stop - self.start]
                if by_query is not None:
                    _spread_rows(piece, by_query, tile.column, add=not fresh)
                if by_key is not None:
                    _spread_keys(piece, by_key[..., tile.start : tile.stop, :], tile.column)
            if listed is not None:
                out[..., listed.taken_row, listed.taken_col] = 0.0 if before is None else before
                self._spread_listed(out, listed, by_query, by_key)

    def collect(self, pairs: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Adds pairs up by label: ``by_query[i, l_ij] += pairs[i, j]`` and ``by_key[j, l_ij] += pairs[i, j]``."""
        for tiles, listed in zip(self._tiles, self._listed, strict=True):
            taken = None
            if listed is not None:  # what is listed is no part of its tile's sums
                taken = pairs[..., listed.taken_row, listed.taken_col]
                pairs[..., listed.taken_row, listed.taken_col] = 0.0
            for tile in tiles:
                piece = pairs[..., tile.start - self.start : tile.stop - self.start]
                if by_query is not None:
                    _collect_rows(piece, by_query, tile.column)
                if by_key is not None:
                    _collect_keys(piece, by_key[..., tile.start : tile.stop, :], tile.column)
            if listed is not None and taken is not None:
                pairs[..., listed.taken_row, listed.taken_col] = taken
                self._collect_listed(pairs, listed, by_query, by_key)

    def _spread_listed(self, out: Tensor, listed: _Listed, by_query: Tensor | None, by_key: Tensor | None) -> None:
        flat, at = out.flatten(-2), listed.row * self.width + listed.col
        for table, position in ((by_query, listed.row), (by_key, listed.col + self.start)):
            if table is not None:
                entries = table[..., position, listed.column]
                flat.scatter_add_(-1, at.expand(entries.shape), entries)

    def _collect_listed(self, pairs: Tensor, listed: _Listed, by_query: Tensor | None, by_key: Tensor | None) -> None:
        weights = pairs[..., listed.row, listed.col]
        for table, position in ((by_query, listed.row), (by_key, listed.col + self.start)):
            if table is not None:
                table.index_put_((*_grid(table), position, listed.column), weights, accumulate=True)


def _grid(table: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.arange(table.shape[0], device=table.device)[:, None, None]
    return batch, torch.arange(table.shape[1], device=table.device)[None, :, None]


def _per_head(columns: Tensor, table: Tensor) -> Tensor:
    return columns[:, None].expand(table.shape[0], table.shape[1], -1, -1)


def _spread_rows(piece: Tensor, table: Tensor, column: int | Tensor, *, add: bool) -> None:
    if isinstance(column, int):
        entries = table[..., column : column + 1]
        piece.add_(entries) if add else piece.copy_(entries.expand(piece.shape))
    elif add:
        piece.add_(torch.gather(table, -1, _per_head(column, table)))
    else:
        torch.gather(table, -1, _per_head(column, table), out=piece)


def _spread_keys(piece: Tensor, table: Tensor, column: int | Tensor) -> None:
    if isinstance(column, int):
        piece.add_(table[..., column][..., None, :])
    else:
        piece.add_(torch.gather(table, -1, _per_head(column, table).transpose(-1, -2)).transpose(-1, -2))


def _collect_rows(piece: Tensor, table: Tensor, column: int | Tensor) -> None:
    if isinstance(column, int):
        table[..., column].add_(piece.sum(-1))
    else:
        table.scatter_add_(-1, _per_head(column, table), piece)


def _collect_keys(piece: Tensor, table: Tensor, column: int | Tensor) -> None:
    if isinstance(column, int):
        table[..., column].add_(piece.sum(-2))
    else:
        table.scatter_add_(-1, _per_head(column, table).transpose(-1, -2), piece.transpose(-1, -2))
