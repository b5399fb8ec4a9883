"""The edges of a call in the order of their targets, the reverse of each edge, and blocks of whole targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.labels import EdgeLabels
from relgraph.labels.memory import Memory
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
        order: ``[E]``, the place of each edge among the edges as given.
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

    def degrees(self) -> Tensor:
        """``[N_q]``, how many edges lead to each target."""
        return self.row_ptr.diff()

    def reverse(self) -> Tensor:
        """``[E]``, the place of the first edge (i → j) among the edges as given for each edge (j → i); E if missing."""

        def find() -> Tensor:
            mine, edges = self.row * self.keys + self.col, self.row.shape[0]
            if edges == 0:
                return self.order
            at = torch.searchsorted(mine, wanted := self.col * self.keys + self.row).clamp(max=edges - 1)
            return torch.where(mine[at] == wanted, self.order[at], edges)

        return self.memory.once("reverse edges", find)

    def whole(self) -> Block:
        """All edges in one block."""
        return Block(0, self.queries, 0, self.row.shape[0])

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
