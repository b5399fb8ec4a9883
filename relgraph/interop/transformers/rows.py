"""Which rows of a table models read by distance: tables that count i − j, and tables cut to the rows that are read."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from relgraph.labelers.sequence.distance import DistanceLabeler
from relgraph.labels.base import NOT_ATTENDING, UNLABELED
from relgraph.labels.memory import Memory


@dataclass(frozen=True)
class Rows(DistanceLabeler):
    """The row of each distance j − i from ``-reach`` up, of ``count`` rows; see :class:`DistanceLabeler`."""

    lookup: tuple[int, ...]
    reach: int
    count: int

    @property
    def num_labels(self) -> int:
        """``count``."""
        return self.count

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers of the rows: a distance may be clipped or in a bucket."""
        return tuple(f"row {row}" for row in range(self.count))


@functools.lru_cache(maxsize=64)
def rows_by_query_minus_key(least: int, most: int) -> Rows:
    """Row ``i − j − least`` of a table that counts i − j from ``least`` to ``most`` and clips it there."""
    count = most - least + 1
    return Rows(tuple(reversed(range(count))), most, count)


@functools.lru_cache(maxsize=64)
def rows_before(count: int, *, near_only: bool) -> Rows:
    """Row ``i − j`` of a table for keys up to the query; farther ones have no row, or are not seen (``near_only``)."""
    farther = NOT_ATTENDING if near_only else UNLABELED
    return Rows((farther, *reversed(range(count)), NOT_ATTENDING), count, count)


def cut_to_length(labeler: DistanceLabeler, q_len: int, k_len: int) -> tuple[slice, DistanceLabeler]:
    """The rows of a table that these lengths read, and a labeler that counts from the first of them.

    It pays to cut a table that every layer projects: 1,024 rows cost more than a sentence.
    """
    if torch.compiler.is_compiling():  # a labeler for each length would be compiled for each length
        return slice(None), labeler
    return _rows.once((labeler, q_len, k_len), lambda: _cut(labeler, q_len, k_len))


_rows = Memory()


def _cut(labeler: DistanceLabeler, q_len: int, k_len: int) -> tuple[slice, DistanceLabeler]:
    lookup, reach = labeler.lookup, labeler.reach
    distances = range(-(q_len - 1), k_len)
    read = tuple(lookup[min(max(distance + reach, 0), len(lookup) - 1)] for distance in distances)
    first, last = min(read, default=0), max(read, default=0)
    count = last - first + 1
    if count == labeler.num_labels or q_len == 0 or k_len == 0:
        return slice(None), labeler
    return slice(first, last + 1), Rows(tuple(row - first for row in read), q_len - 1, count)
