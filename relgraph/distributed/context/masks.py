"""What a process was given of a mask, on the axis of rows and on that of keys: its own, all, or one for all.

With one row (key) on a process, a size of 1 may be its own or one for all: the processes with other numbers of rows
decide. If each holds one, it is its own, because joining equal masks of one for all gives the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from relgraph.distributed.layout import Layout

ONE, OWN, ALL = 1, 2, 4
"""What a size may mean, as bits."""


class Axes(NamedTuple):
    """What the sizes of a mask on its last two axes may mean, as bits; 0 if nothing fits."""

    rows: int
    keys: int

    @classmethod
    def of(cls, mask: Tensor, queries: Layout, keys: Layout, rank: int) -> Axes:
        """What the sizes may mean, as far as this process can tell."""
        rows, width = [1, 1, *mask.shape][-2:]
        may_rows = ONE * (rows == 1) | OWN * (mask.dim() > 1 and rows == queries.lengths[rank])
        own, every = mask.dim() > 0 and width == keys.lengths[rank], mask.dim() > 0 and width == keys.length
        return cls(may_rows, ONE * (width == 1) | OWN * own | ALL * every)

    def settled(self) -> Axes:
        """The meaning, of those that all processes allow."""
        rows = OWN if self.rows & OWN else self.rows
        may = self.keys & ~OWN if self.rows == OWN else self.keys  # a mask of pairs has all keys
        return Axes(rows, next((bit for bit in (ALL, OWN, ONE) if may & bit), 0))


def clear(*layouts: Layout) -> bool:
    """Whether each process can tell its own rows from one for all and from all, or all conclude the same."""
    return all(len(set(layout.lengths)) == 1 or not {1, layout.length} & set(layout.lengths) for layout in layouts)
