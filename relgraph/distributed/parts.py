"""Parts of labels: each is made once, because to cut edges takes time and each part has a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from relgraph.labels import Labels
from relgraph.labels.memory import memory_of

MOST_PARTS = 256
"""How many parts of the same labels are remembered."""


def part_of(labels: Labels, which: Hashable, cut: Callable[[Labels], Labels]) -> Labels:
    """The part that ``which`` identifies; ``cut`` makes it from labels of all rows, and it must not refer to them."""
    return memory_of([labels], "parts", MOST_PARTS).once(which, lambda: cut(labels))
