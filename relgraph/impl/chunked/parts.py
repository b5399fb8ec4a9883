"""Which ids the blocks of a unit carry: one part of the labels, cut by key into tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.chunked.tiles import DistanceTile, IdTile, Stripe, Tile, UniformTile
from relgraph.plan import DEAD, FIRST, NOT_ATTENDING, DistanceIds, LabelPlan, Part, ids_by_distance, written_block


@dataclass(frozen=True, eq=False)
class Unit:
    """Some batch rows of a padded batch, or one graph of a packed batch.

    ``queries`` and ``keys`` are ranges of positions. Inside the unit both count from 0.
    """

    batch: range
    queries: range
    keys: range
    graph: int | None = None


def units(plan: LabelPlan, batch: int, together: int) -> list[Unit]:
    """The whole call as units of at most ``together`` batch rows."""
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
    """Key position of query row 0 of a unit: bounds for cutting tiles, and the value."""

    low: int
    high: int
    value: int | Tensor  # broadcasts over [batch, rows, keys]

    @property
    def fixed(self) -> bool:
        """Whether all batch rows of the unit share the offset."""
        return self.low == self.high


def offset_in(offset: int | Tensor, unit: Unit) -> Offset:
    """The unit's share of an offset that may differ per batch row or per graph."""
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
    """Listed pairs of a block: their places and columns, and the places that they take from their tile."""

    row: Tensor
    col: Tensor
    column: Tensor
    taken_row: Tensor
    taken_col: Tensor


class PartInUnit:
    """One part of the labels in one unit."""

    def __init__(self, plan: LabelPlan, part: Part, unit: Unit, first_column: int, device: torch.device) -> None:
        self.part, self.unit, self.device = part, unit, device
        self.first_column, self.zero_column = first_column, first_column + part.num_labels
        self.offset = offset_in(part.offset, unit)
        self.by_distance = part.ids if isinstance(part.ids, DistanceIds) else None
        self.ids = None
        if not isinstance(part.ids, DistanceIds):
            self.ids = written_block(part.ids, unit.batch, unit.queries, unit.keys, unit.graph)
        self.row_ptr = None if part.csr is None else part.csr.row_ptr
        self.q_len = plan.q_len
        self.complete = part.complete
        self.light = self.ids is None and part.csr is None and self.offset.fixed  # tiles of such parts hold few numbers

    def hull(self, rows: range) -> tuple[int, int]:
        """A range of keys that holds every pair of these rows that attends."""
        keys, ids = len(self.unit.keys), self.by_distance
        if ids is None or self.part.csr is not None or self.complete:
            return 0, keys
        start = rows.start + self.offset.low + ids.first + 1 if ids.lookup[0] == NOT_ATTENDING else 0
        stop = rows.stop - 1 + self.offset.high + ids.last if ids.lookup[-1] == NOT_ATTENDING else keys
        return max(start, 0), min(stop, keys)

    def tiles(self, rows: range, start: int, stop: int) -> tuple[list[Tile], list[tuple[int, Tensor]]]:
        """Keys ``start:stop`` as tiles; masks ``(first key, mask)`` of pairs in mixed tiles that do not attend."""
        tiles, masks, at = [], [], start
        for c0, c1, label in self._uniform(rows, start, stop):
            if at < c0:
                tiles.append(self._mixed(rows, at, c0, masks))
            tiles.append(UniformTile(c0, c1, self._column(label)))
            at = c1
        if at < stop:
            tiles.append(self._mixed(rows, at, stop, masks))
        return tiles, masks

    def _uniform(self, rows: range, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Ranges of keys in which all rows carry one label, in order: those beyond either end of the lookup."""
        ids = self.by_distance
        if ids is None:
            return []
        left, right = ids.lookup[0], ids.lookup[-1]
        if len(ids.lookup) == 1:
            return [(start, stop, left)] if left != NOT_ATTENDING and start < stop else []
        left_stop = min(stop, rows.start + self.offset.low + ids.first + 1)
        right_start = max(start, rows.stop - 1 + self.offset.high + ids.last)
        found = [(start, left_stop, left), (right_start, stop, right)]
        return [(c0, c1, label) for c0, c1, label in found if c0 < c1 and label != NOT_ATTENDING]

    def _mixed(self, rows: range, start: int, stop: int, masks: list[tuple[int, Tensor]]) -> Tile:
        by_distance = self.ids is None and self.offset.fixed
        ids = self._ids(rows, start, stop) if not (by_distance and self.complete) else None
        if ids is not None and not self.complete:
            masks.append((start, ids == NOT_ATTENDING))
        if by_distance:
            return DistanceTile(start, stop, self._stripes(rows, start, stop))
        assert ids is not None
        columns = torch.where(ids < 0, self.part.num_labels, ids)
        return IdTile(start, stop, columns + self.first_column if self.first_column else columns)

    def _column(self, label: int) -> int:
        return self.zero_column if label < 0 else self.first_column + label

    def _stripes(self, rows: range, start: int, stop: int) -> list[Stripe]:
        """The distances between these rows and keys as stripes: both ends of the lookup and what is between."""
        ids = self.by_distance
        assert ids is not None
        least, count = start - (rows.stop - 1) - self.offset.low, len(rows) + stop - start - 1
        first, last = (min(max(at - least, 0), count) for at in (ids.first + 1, ids.last))
        if len(ids.lookup) == 1:
            first = last = count
        stripes = [Stripe(0, first, self._column(ids.lookup[0]))] if first else []
        if first < last:
            between = ids.lookup[first + least - ids.first : last + least - ids.first]
            stripes.append(Stripe.of(first, [self._column(label) for label in between], self.device))
        if last < count:
            stripes.append(Stripe(last, count, self._column(ids.lookup[-1])))
        return stripes

    def _ids(self, rows: range, start: int, stop: int) -> Tensor:
        if self.ids is not None:
            return self.ids[:, rows.start : rows.stop, start:stop].to(torch.int64)
        i = torch.arange(rows.start, rows.stop, device=self.device)[:, None]
        j = torch.arange(start, stop, device=self.device)
        assert self.by_distance is not None
        return ids_by_distance(self.by_distance, (j - i)[None] - self.offset.value)

    def listed(self, rows: range, start: int, stop: int) -> Listed | None:
        """The listed pairs of these rows with a key in ``start:stop``, counted from the corner of the block."""
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
