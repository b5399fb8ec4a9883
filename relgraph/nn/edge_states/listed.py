"""The edges of a call in the order of their targets, the reverse of each edge, and blocks of whole targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.impl.listed import Pattern, inverse
from relgraph.labels import EdgeLabels
from relgraph.labels.memory import Memory, plain_code
from relgraph.plan import lower


class Block(NamedTuple):
    """Some targets and all their edges: rows ``first`` to ``last``, edges ``begin`` to ``end``."""

    first: int
    last: int
    begin: int
    end: int


class Listed(NamedTuple):
    """E edges sorted by target.

    Attributes:
        row_ptr: ``[N_q + 1]``, where the edges of each target begin.
        row: ``[E]``, targets, rising.
        col: ``[E]``, sources.
        order: ``[E]``, the place of each sorted edge among the edges as given.
        keys: the number of sources.
        memory: keeps what is derived from these edges.
    """

    row_ptr: Tensor
    row: Tensor
    col: Tensor
    order: Tensor
    keys: int
    memory: Memory

    @classmethod
    def of(cls, labels: EdgeLabels) -> Listed:
        """The edges of labels; batch rows are put end to end."""
        csr = lower(labels).parts[0].csr
        assert csr is not None
        col = csr.col
        if csr.batch != 1:
            col = col + csr.row.div(max(labels.q_len, 1), rounding_mode="floor") * labels.k_len
        return cls(csr.row_ptr, csr.row, col, csr.order, csr.batch * labels.k_len, csr.memory)

    @property
    def queries(self) -> int:
        """The number of targets."""
        return self.row_ptr.shape[0] - 1

    def reverse(self) -> Tensor:
        """``[E]``, the place of the first edge (i → j) for each edge (j → i), sorted by target; E if there is none."""

        def find() -> Tensor:
            mine, edges = self.row * self.keys + self.col, self.row.shape[0]
            if edges == 0:
                return self.order
            at = torch.searchsorted(mine, wanted := self.col * self.keys + self.row).clamp(max=edges - 1)
            return torch.where(mine[at] == wanted, at, edges)

        return self.memory.once("reverse edges", find)

    def pattern(self) -> Pattern:
        """The edges for sparse products."""
        return self.memory.once("pairs", lambda: Pattern.of(self.row_ptr, self.row, self.col, self.keys))

    def by_edge(self) -> Pattern:
        """The edges for sparse products in which every edge is a column of its own."""

        def make() -> Pattern:
            here = torch.arange(self.row.shape[0], device=self.row.device)
            ends = torch.arange(here.shape[0] + 1, device=here.device)
            return Pattern(self.row_ptr, self.row, here, ends, here, self.row, here, here)

        return self.memory.once("pairs as columns", make)

    def sort(self, x: Tensor) -> Tensor:
        """A row per edge as given, ``[E, ...]``, sorted by target; backward reads rows, which is faster than adding."""
        return x if self._is_sorted() else x.new_empty(x.shape).index_copy(0, self._places(), x)

    def unsort(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`sort`."""
        return x if self._is_sorted() else x.new_empty(x.shape).index_copy(0, self.order, x)

    def _places(self) -> Tensor:
        return self.memory.once("places", lambda: inverse(self.order))

    def _is_sorted(self) -> bool:
        """Whether the edges were given by target; False where nobody may look at data."""

        def look() -> bool:
            return bool((self.order == torch.arange(self.order.shape[0], device=self.order.device)).all())

        return plain_code() and self.memory.once("sorted by target", look)

    def blocks(self, edges: int) -> list[Block]:
        """Blocks of about so many edges; a target with more is a block of its own."""

        def cut() -> list[Block]:
            ptr = self.row_ptr.tolist()
            found, first, last = [], 0, 0
            while last < self.queries:
                last += 1
                if last == self.queries or ptr[last + 1] - ptr[first] > edges:
                    found.append(Block(first, last, ptr[first], ptr[last]))
                    first = last
            return found

        return self.memory.once(("blocks of edges", edges), cut)
