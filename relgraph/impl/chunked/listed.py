"""Listed pairs in a block: they are written over the ids of other pairs, or correct the results of their tile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.units import FAR, Unit
from relgraph.labels.memory import Memory
from relgraph.plan import EXTRA, FIRST, Csr, LabelPlan


@dataclass(frozen=True, eq=False)
class Listed:
    """Listed pairs of a block: their places and columns, and the places (rows, keys) that they take from their tile.

    They take none from a tile that has the first id of each: only further ids of these pairs are listed then.
    """

    row: Tensor
    col: Tensor
    column: Tensor
    taken: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, eq=False)
class PairsOver:
    """The listed pairs of a unit if blocks are as large as memory allows: ids to write over those of other pairs.

    No mask selects pairs, because the host would wait for their number. Instead, pairs outside a block are written to
    entries that are never read.

    Attributes:
        rows: number of batch rows of the unit, if their pairs differ; 1 if all share them.
        batch: ``[P]`` batch row of each pair in the unit, or None if all share them.
        query: ``[P]`` query in the unit.
        first: ``[P]`` the same for the first of each pair, far before the unit for all others.
        col: ``[P]`` key in the unit.
        ids: ``[P]`` label; -1 without a label.
        role: ``[P]`` FIRST, EXTRA or DEAD.
    """

    rows: int
    batch: Tensor | None
    query: Tensor
    first: Tensor
    col: Tensor
    ids: Tensor
    role: Tensor

    @classmethod
    def of(cls, plan: LabelPlan, csr: Csr, unit: Unit, memo: Memory, index: int) -> PairsOver:
        """The pairs of the unit; where they begin is read once for these labels."""
        here = slice(None)
        if unit.graph is not None or csr.batch > 1:
            at = slice(None, None, plan.q_len) if plan.q_ptr is None else plan.q_ptr
            begins = memo.once(("pairs", index), lambda: csr.row_ptr[at].tolist())
            first, stop = (unit.batch.start, unit.batch.stop) if unit.graph is None else (unit.graph, unit.graph + 1)
            here = slice(begins[first], begins[stop])
        query, batch, batch_rows = csr.row[here], None, 1
        if csr.batch > 1:
            batch_rows = len(unit.batch)
            batch = torch.div(query, plan.q_len, rounding_mode="floor") - unit.batch.start
            query = query % plan.q_len
        if unit.queries.start:
            query = query - unit.queries.start
        col, role = csr.col[here], csr.role[here]
        if unit.keys.start:
            col = col - unit.keys.start
        return cls(batch_rows, batch, query, query.masked_fill(role != FIRST, -FAR), col, csr.ids[here], role)

    def room(self, batch: int, rows: range, keys: int) -> Tensor:
        """Ids for these rows of ``batch`` batch rows or more, and for a row before and one after: all other pairs."""
        return torch.empty(max(batch, self.rows), len(rows) + 2, keys, dtype=torch.int64, device=self.ids.device)

    def written(self, room: Tensor, rows: range) -> Tensor:
        """The ids in ``room`` with these pairs over them, ``[batch or 1, rows, keys]``."""
        row = (self.first - (rows.start - 1)).clamp_(0, len(rows) + 1)
        room[slice(None) if self.batch is None else self.batch, row, self.col] = self.ids
        return room[:, 1:-1]

    def further(self, rows: range, start: int, stop: int, first_column: int, zero_column: int) -> Listed:
        """The further labels of parallel pairs; pairs outside the block look up the column of zeros."""
        row, col = self.query - rows.start, self.col - start
        inside = (row >= 0) & (row < len(rows)) & (col >= 0) & (col < stop - start)
        other = ~inside | (self.role != EXTRA) | (self.ids < 0)
        column = self.ids.add(first_column).masked_fill_(other, zero_column)
        return Listed(row.clamp_(0, len(rows) - 1), col.clamp_(0, stop - start - 1), column, None)
