"""Which pairs a call has: a padded batch, or packed graphs; and where query rows stand among the keys."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

LONGEST = 20
"""The longest sequence of a padded batch."""

LONGEST_GRAPH = 8
"""The longest graph of a packed batch."""


@dataclass(frozen=True)
class Frame:
    """The pairs of a call, described in plain numbers.

    Attributes:
        packed: whether ``q_sizes`` and ``k_sizes`` are those of packed graphs; else they hold one length.
        batch: B of the call; 1 when packed.
        q_sizes: number of queries, of each graph when packed.
        k_sizes: number of keys, likewise.
        offsets: the key position of query row 0, for each batch row (graph, when packed).
    """

    packed: bool
    batch: int
    q_sizes: tuple[int, ...]
    k_sizes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def q_len(self) -> int:
        """All queries."""
        return sum(self.q_sizes)

    @property
    def k_len(self) -> int:
        """All keys."""
        return sum(self.k_sizes)

    @property
    def groups(self) -> int:
        """Batch rows, or graphs."""
        return len(self.q_sizes) if self.packed else self.batch

    @property
    def q_starts(self) -> list[int]:
        """The first query of each graph, and the end."""
        return [0, *accumulate(self.q_sizes)]

    @property
    def k_starts(self) -> list[int]:
        """The first key of each graph, and the end."""
        return [0, *accumulate(self.k_sizes)]

    def locate(self, b: int, i: int, j: int) -> tuple[int, int, int] | None:
        """The batch row or graph of a pair, and the positions in it; None for a pair across graphs."""
        if not self.packed:
            return b, i, j
        q_starts, k_starts = self.q_starts, self.k_starts
        for g in range(len(self.q_sizes)):
            if q_starts[g] <= i < q_starts[g + 1]:
                inside = k_starts[g] <= j < k_starts[g + 1]
                return (g, i - q_starts[g], j - k_starts[g]) if inside else None
        raise AssertionError(f"query {i} lies in no graph")

    def distance(self, b: int, i: int, j: int) -> int | None:
        """Key position less query position; None for a pair across graphs."""
        found = self.locate(b, i, j)
        if found is None:
            return None
        group, row, col = found
        return col - row - self.offsets[group]


def draw_frame(rng: Random) -> Frame:
    """A frame: half of them packed, lengths from 0 on, offsets before and beyond the keys."""
    packed = rng.random() < 0.4
    cross = rng.random() < 0.4

    def length(most: int) -> int:
        return rng.choice([0, 1, 2, 3, rng.randint(0, most), rng.randint(0, most), rng.randint(most // 2, most)])

    if packed:
        graphs = rng.choice([0, 1, 2, 3, 3, 4, 5])
        q_sizes = tuple(length(LONGEST_GRAPH) for _ in range(graphs))
        k_sizes = tuple(length(LONGEST_GRAPH) for _ in range(graphs)) if cross else q_sizes
        batch, groups = 1, graphs
    else:
        batch = groups = rng.choice([0, 1, 1, 2, 2, 3])
        q_sizes = (length(LONGEST),)
        k_sizes = (length(LONGEST),) if cross else q_sizes
    one = rng.choice([0, 0, 0, rng.randint(-4, 4), rng.randint(-25, 25)])
    offsets = (one,) * groups
    if rng.random() < 0.3:
        offsets = tuple(rng.randint(-5, 9) for _ in range(groups))
    return Frame(packed, batch, q_sizes, k_sizes, offsets)
