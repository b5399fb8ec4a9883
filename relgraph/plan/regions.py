"""The few shapes that every labeling lowers to: tensors and ints only, so that a kernel never meets a Labels.

The pairs of a part are split into disjoint regions. Inside a graph (or a batch row) query i and key j are counted
from 0 and the distance is ``j - i - offset``; pairs of different graphs belong to no region. Listed pairs (``Csr``)
are cut out of the other regions. A pair in no region does not attend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from relgraph.labels.base import NOT_ATTENDING

FIRST, EXTRA, DEAD = 1, 2, 0
"""What a listed pair is: the one that stands for its pair, a further label of it, or overruled."""


@dataclass(frozen=True, eq=False)
class Uniform:
    """One label for every pair with ``low <= distance < high``: a rectangle or a triangle of pairs.

    ``None`` is no bound on that side; ``label`` -1 attends without a label.
    """

    label: int
    low: int | None = None
    high: int | None = None

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The distances it spans, ``low <= distance < high``."""
        return self.low, self.high


@dataclass(frozen=True, eq=False)
class Band:
    """A label by distance: distance ``low + s`` carries ``lookup[s]``; -1 no label, -2 does not attend."""

    low: int
    lookup: tuple[int, ...]

    @property
    def bounds(self) -> tuple[int, int]:
        """The distances it spans, ``low <= distance < high``."""
        return self.low, self.low + len(self.lookup)


@dataclass(frozen=True, eq=False)
class Block:
    """Ids written out: ``[B or 1, N_q, N_k]``, or flat, graph after graph, in a packed plan.

    -2 does not attend; ``full`` promises that there is none.
    """

    ids: Tensor
    full: bool = False


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


Region = Uniform | Band | Block


@dataclass(frozen=True, eq=False)
class Part:
    """One summand: a split of all pairs into regions, with its own tables.

    Attributes:
        num_labels: R of this part.
        offset: where query row 0 stands among the keys: an int, or one a batch row (a graph, when packed).
        regions: where the pairs that are not listed find their label.
        csr: the listed pairs, or None.
        edges_only: parallel pairs each attend on their own (edges-only attention).
    """

    num_labels: int
    offset: int | Tensor
    regions: tuple[Region, ...]
    csr: Csr | None = None
    edges_only: bool = False

    @property
    def labeled(self) -> bool:
        """Whether every pair of a graph is known to carry a label."""
        ids = [i for r in self.regions for i in (r.lookup if isinstance(r, Band) else (getattr(r, "label", -1),))]
        return self.complete and self.csr is None and min(ids) >= 0

    @property
    def complete(self) -> bool:
        """Whether the regions alone are known to make every pair of a graph attend."""
        reach, open_end = None, False
        for region in self.regions:
            if isinstance(region, Block):
                return region.full
            low, high = region.bounds
            if low != reach or (isinstance(region, Band) and NOT_ATTENDING in region.lookup):
                return False
            reach, open_end = high, high is None
        return open_end


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
