"""What every labeling lowers to: tensors and ints only, so that a kernel never meets a Labels.

A part of a plan is ids by distance or ids written out, with listed pairs (``Csr``) over either. Inside a graph (or a
batch row) query i and key j count from 0 and the distance is ``j - i - offset``. Pairs of different graphs do not
attend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from relgraph.labels.base import NOT_ATTENDING

FIRST, EXTRA, DEAD = 1, 2, 0
"""What a listed pair is: the one that stands for its pair, a further label of it, or overruled."""


@dataclass(frozen=True, eq=False)
class DistanceIds:
    """Ids by distance: distance ``first + s`` has id ``lookup[s]``, and both ends reach on without bound.

    -1 is no label, -2 does not attend. No end repeats itself: ``lookup[1] != lookup[0]``, and the same on the right.
    """

    first: int
    lookup: tuple[int, ...]

    @property
    def last(self) -> int:
        """The distance of the last entry."""
        return self.first + len(self.lookup) - 1

    @property
    def full(self) -> bool:
        """Whether every pair of a graph attends."""
        return NOT_ATTENDING not in self.lookup


@dataclass(frozen=True, eq=False)
class WrittenIds:
    """Ids written out: ``[B or 1, N_q, N_k]``; in a packed plan flat, block after block.

    -2 does not attend; ``full`` promises that there is none. ``starts`` ``[G+1]`` is where each graph's block begins.
    """

    ids: Tensor
    full: bool = False
    starts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Csr:
    """Listed pairs, sorted by query row.

    Attributes:
        row_ptr: ``[batch · N_q + 1]`` where each query row's pairs begin.
        row: ``[P]`` query row of each pair, counted through the batch rows.
        col: ``[P]`` key of each pair.
        ids: ``[P]`` label; -1 no label.
        role: ``[P]`` int8; FIRST stands for its pair, EXTRA adds one more label to it, DEAD is overruled.
        order: ``[P]`` position of each pair among the edges as they were given.
        batch: how many batch rows the rows count through; 1 serves every batch row.
        parallel: whether several pairs that count may name the same query and key.
        memo: what an implementation works out from these pairs and wants again in the next layer.
    """

    row_ptr: Tensor
    row: Tensor
    col: Tensor
    ids: Tensor
    role: Tensor
    order: Tensor
    batch: int
    parallel: bool
    memo: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Part:
    """One summand: an id for every pair, with its own tables.

    Attributes:
        num_labels: R of this part.
        offset: key position of query row 0: an int, or one per batch row (per graph, when packed).
        ids: the ids of pairs that are not listed.
        csr: the listed pairs, or None.
        edges_only: listed pairs are all that attends, and parallel ones attend each on its own.
    """

    num_labels: int
    offset: int | Tensor
    ids: DistanceIds | WrittenIds
    csr: Csr | None = None
    edges_only: bool = False

    @property
    def complete(self) -> bool:
        """Whether every pair of a graph is known to attend, listed or not."""
        return self.ids.full

    @property
    def labeled(self) -> bool:
        """Whether every pair of a graph is known to carry a label."""
        return self.csr is None and isinstance(self.ids, DistanceIds) and min(self.ids.lookup) >= 0


@dataclass(frozen=True, eq=False)
class LabelPlan:
    """What an implementation sees of the labels.

    Attributes:
        q_len: number of query rows N_q (of all graphs together when packed).
        k_len: number of keys N_k.
        batch: B when labels differ between batch rows, else 1.
        parts: the sum axis.
        q_ptr: ``[G+1]`` borders of the queries in a packed plan, else None.
        k_ptr: ``[G+1]`` borders of the keys.
    """

    q_len: int
    k_len: int
    batch: int
    parts: tuple[Part, ...]
    q_ptr: Tensor | None = None
    k_ptr: Tensor | None = None

    @property
    def num_labels(self) -> tuple[int, ...]:
        """R of every part."""
        return tuple(part.num_labels for part in self.parts)

    @property
    def total_labels(self) -> int:
        """All parts' labels side by side."""
        return sum(self.num_labels)

    @property
    def edges_only(self) -> bool:
        """Whether listed pairs are all that attends."""
        return len(self.parts) == 1 and self.parts[0].edges_only

    @property
    def columns(self) -> int:
        """Columns of the tables B and C: all labels of all parts, and one column of zeros per part."""
        return self.total_labels + len(self.parts)

    @property
    def starts(self) -> list[int]:
        """The first column of each part."""
        sizes = self.num_labels
        return [sum(sizes[:p]) + p for p in range(len(sizes))]
