"""The form that all labels lower to: only tensors and ints, so that kernels see no Labels.

A part of a plan is ids by distance, ids written out or ids by function, with listed pairs (``Csr``) over any of them.
Inside a graph (or a batch row) query i and key j count from 0 and the distance is ``j - i - offset``. Pairs across
graphs do not attend. Kernels never see ids by function: to cut some rows out of a plan writes their ids out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from relgraph.labels.base import NOT_ATTENDING
from relgraph.labels.contents import Contents
from relgraph.labels.function import FunctionIds
from relgraph.labels.memory import Memory

FIRST, EXTRA, DEAD = 1, 2, 0
"""Roles of a listed entry: the first for its (query, key), a further label for it, or overruled (ignored).

If only listed pairs attend, every entry is a first.
"""


def _memory() -> Memory:
    return Memory()  # torch.compile traces a function here but not the class itself


@dataclass(frozen=True, eq=False)
class DistanceIds:
    """Ids by distance: distance ``first + s`` has id ``lookup[s]``, and the first and the last id also hold
    for all distances beyond.

    -1 is without a label, -2 does not attend. Ends are not repeated: ``lookup[1] != lookup[0]``, same on the right.
    ``memory`` keeps the lookup as tensors; ``dataclasses.replace`` makes a new one.
    """

    first: int
    lookup: tuple[int, ...]
    memory: Memory = field(default_factory=_memory, repr=False, init=False)

    def with_memory(self, memory: Memory) -> DistanceIds:
        """The same ids with a memory that outlives them."""
        same = DistanceIds(self.first, self.lookup)
        object.__setattr__(same, "memory", memory)
        return same

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
    """Ids written out: ``[B or 1, N_q, N_k]``. In a packed plan they are flat: graph g's block begins at ``starts[g]``.

    -2 does not attend; ``full`` promises that there is none.
    """

    ids: Tensor
    full: bool = False
    starts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Csr:
    """Listed pairs, sorted by query row.

    Attributes:
        row_ptr: ``[batch · N_q + 1]`` where each query row's pairs begin.
        row: ``[P]`` batch row · N_q + query of each pair; if ``batch`` is 1, query, and all batch rows share the pairs.
        col: ``[P]`` key of each pair.
        ids: ``[P]`` label; -1 without a label.
        role: ``[P]`` int8; FIRST, EXTRA or DEAD.
        order: ``[P]`` position of each pair among the edges as given.
        batch: how many batch rows ``row`` counts through; 1 serves every batch row.
        parallel: whether several pairs that count may have the same query and key.
        memory: what implementations derive from these pairs; no result leads back to this object.
    """

    row_ptr: Tensor
    row: Tensor
    col: Tensor
    ids: Tensor
    role: Tensor
    order: Tensor
    batch: int
    parallel: bool
    memory: Memory = field(default_factory=_memory, repr=False)


@dataclass(frozen=True, eq=False)
class Part:
    """One summand: an id for every pair, with its own tables.

    Attributes:
        num_labels: R of this part.
        offset: key position of query row 0: an int, or one per batch row (per graph, when packed).
        ids: the ids of pairs that are not listed.
        csr: the listed pairs, or None.
        edges_only: only listed pairs attend, and each parallel one separately.
    """

    num_labels: int
    offset: int | Tensor
    ids: DistanceIds | WrittenIds | FunctionIds
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
    """Labels as an implementation sees them.

    Attributes:
        q_len: number of query rows N_q (of all graphs together when packed).
        k_len: number of keys N_k.
        batch: B when labels differ between batch rows, else 1.
        parts: the parts of the sum.
        q_ptr: ``[G+1]`` borders of the queries in a packed plan, else None.
        k_ptr: ``[G+1]`` borders of the keys.
        by_function: whether some part has ids by function.
        source: the labels' tensors, some of which are the plan's, and what they held; None of other plans.
        memory: results that are needed often for this plan, which do not lead back to it; ``dataclasses.replace`` makes
            a new one.
    """

    q_len: int
    k_len: int
    batch: int
    parts: tuple[Part, ...]
    q_ptr: Tensor | None = None
    k_ptr: Tensor | None = None
    by_function: bool = False
    source: Contents | None = field(default=None, repr=False)
    memory: Memory = field(default_factory=_memory, repr=False, init=False)

    def check_unchanged(self) -> None:
        """Raise RuntimeError in backward if labels changed since forward; listed pairs are copies."""
        if self.source is not None and self.source.tensors and not self.edges_only and not self.source.same():
            raise RuntimeError("labels must stay as they are until backward is done, got labels changed in place")

    @property
    def num_labels(self) -> tuple[int, ...]:
        """R of every part."""
        if len(self.parts) == 1:  # without a loop, which is a call of Python
            return (self.parts[0].num_labels,)
        return tuple([part.num_labels for part in self.parts])

    @property
    def total_labels(self) -> int:
        """The number of labels of all parts together."""
        return sum(self.num_labels)

    @property
    def edges_only(self) -> bool:
        """Whether only listed pairs attend."""
        return len(self.parts) == 1 and self.parts[0].edges_only

    @property
    def columns(self) -> int:
        """Columns of the tables B and C: all labels, and one column of zeros per part."""
        return self.total_labels + len(self.parts)

    @property
    def starts(self) -> list[int]:
        """The first column of each part."""
        sizes = self.num_labels
        return [sum(sizes[:p]) + p for p in range(len(sizes))]
