"""Which ids the blocks of a unit carry: one part of the labels, cut by key into tiles of few kinds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.chunked.tiles import Plain, Slanted, Stripe, Tile, Written
from relgraph.plan import DEAD, FIRST, NOT_ATTENDING, Band, Block, LabelPlan, Part, Region, Uniform, ids_by_distance


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
class Listed:
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

    def tiles(self, rows: range, start: int, stop: int) -> tuple[list[Tile], list[tuple[int, Tensor]]]:
        """Keys ``start:stop`` cut into tiles, and the pairs in mixed tiles that do not attend ``(first key, mask)``."""
        tiles, masks, at = [], [], start
        for c0, c1, label in self._uniform(rows, start, stop):
            if at < c0:
                tiles.append(self._mixed(rows, at, c0, masks))
            tiles.append(Plain(c0, c1, self._column(label)))
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

    def _mixed(self, rows: range, start: int, stop: int, masks: list[tuple[int, Tensor]]) -> Tile:
        slanted = self.ids is None and self.offset.fixed
        ids = self._ids(rows, start, stop) if not (slanted and self.complete) else None
        if ids is not None and not self.complete:
            masks.append((start, ids == NOT_ATTENDING))
        if slanted:
            return Slanted(start, stop, self._stripes(rows, start, stop))
        assert ids is not None
        columns = torch.where(ids < 0, self.part.num_labels, ids)
        return Written(start, stop, columns + self.first_column if self.first_column else columns)

    def _column(self, label: int) -> int:
        return self.zero_column if label < 0 else self.first_column + label

    def _stripes(self, rows: range, start: int, stop: int) -> list[Stripe]:
        """The distances between these rows and keys, cut by region; what no region speaks of carries no label."""
        least, count = start - (rows.stop - 1) - self.offset.low, len(rows) + stop - start - 1
        stripes, at = [], 0
        for first, after, region in sorted((_within(r, least, count) for r in self.regions), key=lambda cut: cut[:2]):
            if first >= after:
                continue
            if at < first:
                stripes.append(Stripe(at, first, self.zero_column))
            stripes.append(self._stripe(region, first, after, least))
            at = after
        if at < count:
            stripes.append(Stripe(at, count, self.zero_column))
        return stripes

    def _stripe(self, region: Region, first: int, after: int, least: int) -> Stripe:
        if isinstance(region, Uniform):
            return Stripe(first, after, self._column(region.label))
        assert isinstance(region, Band)
        labels = region.lookup[first + least - region.low : after + least - region.low]
        return Stripe.of(first, [self._column(label) for label in labels], self.device)

    def _ids(self, rows: range, start: int, stop: int) -> Tensor:
        if self.ids is not None:
            return self.ids[:, rows.start : rows.stop, start:stop].to(torch.int64)
        i = torch.arange(rows.start, rows.stop, device=self.device)[:, None]
        j = torch.arange(start, stop, device=self.device)
        return ids_by_distance(self.regions, (j - i)[None] - self.offset.value)

    def listed(self, rows: range, start: int, stop: int) -> Listed | None:
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
        return Listed(row[live], col[live] - start, column[live], row[first], col[first] - start)


def _within(region: Region, least: int, count: int) -> tuple[int, int, Region]:
    """The region's share of ``count`` distances, counted from the ``least`` of them."""
    assert not isinstance(region, Block)
    low, high = region.bounds
    first, after = 0 if low is None else low - least, count if high is None else high - least
    return max(first, 0), min(after, count), region
