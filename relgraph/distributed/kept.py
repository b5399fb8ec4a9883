"""Parts of labels, kept with them for the next call, because cutting edges takes time and each part keeps its plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from relgraph.labels import Labels
from relgraph.labels.memory import memory_of

KEPT_PARTS = 256
"""How many parts of the same labels are kept."""


def part_of(labels: Labels, which: Hashable, cut: Callable[[], Labels]) -> Labels:
    """A part of labels that ``cut`` makes once; later calls return the same object.

    Args:
        labels: the labels of all rows.
        which: a key that identifies the part.
        cut: makes the part, other labels that do not refer to these.
    """
    return memory_of([labels], "parts", KEPT_PARTS).once(which, cut)
