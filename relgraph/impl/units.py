"""Units of rows: some batch rows of a padded batch, or one graph of a packed batch; and offsets inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from relgraph.labels.memory import Memory
from relgraph.plan import LabelPlan


@dataclass(frozen=True, eq=False)
class Unit:
    """Some batch rows of a padded batch, or one graph of a packed batch.

    ``queries`` and ``keys`` are ranges of positions. Inside the unit both count from 0.
    """

    batch: range
    queries: range
    keys: range
    graph: int | None = None


def borders(plan: LabelPlan, memo: Memory) -> tuple[list[int], list[int]]:
    """Where the graphs begin among the queries and among the keys, and where the last one ends.

    A plan that is not packed counts as one graph. The borders are read once for these labels: reading them makes the
    host wait for a GPU.
    """
    if plan.q_ptr is None or plan.k_ptr is None:
        return [0, plan.q_len], [0, plan.k_len]
    q_ptr, k_ptr = plan.q_ptr, plan.k_ptr
    return memo.once("borders", lambda: (q_ptr.tolist(), k_ptr.tolist()))


def lengths(borders: Sequence[int]) -> list[int]:
    """The size of each graph."""
    return [stop - start for start, stop in pairwise(borders)]


def units(plan: LabelPlan, memo: Memory, batch: int, together: int) -> list[Unit]:
    """The whole call as units of at most ``together`` batch rows."""
    q_ptr, k_ptr = borders(plan, memo)
    if plan.q_ptr is not None:
        return [
            Unit(range(batch), range(q_ptr[g], q_ptr[g + 1]), range(k_ptr[g], k_ptr[g + 1]), g)
            for g in range(len(q_ptr) - 1)
        ]
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
    """The unit's share of an offset that may differ per batch row or per graph; a tensor is read."""
    if not isinstance(offset, Tensor):
        return Offset(offset, offset, offset)
    if offset.dim() == 0 or unit.graph is not None:
        one = int(offset if offset.dim() == 0 else offset[unit.graph])
        return Offset(one, one, one)
    mine = offset[unit.batch.start : unit.batch.stop] if offset.shape[0] > 1 else offset
    low, high = (int(x) for x in torch.aminmax(mine))
    return Offset(low, high, low if low == high else mine.reshape(-1, 1, 1))
