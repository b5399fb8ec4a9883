"""Parts of labels, kept for the next call, because cutting edges takes time and each part keeps its plan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from relgraph.labels import Labels

KEPT_PARTS = 256
"""How many parts are kept, of all labels together."""

_parts: OrderedDict[tuple[int, Hashable], tuple[Labels, Labels]] = OrderedDict()


def part_of(labels: Labels, which: Hashable, cut: Callable[[], Labels]) -> Labels:
    """A part of labels that ``cut`` makes once; later calls return the same object.

    Args:
        labels: the labels of all rows.
        which: a key that identifies the part.
        cut: makes the part.
    """
    known = id(labels), which
    found = _parts.get(known)
    if found is None:
        found = labels, cut()  # the labels are kept too, so that no other labels get their id
        _parts[known] = found
        while len(_parts) > KEPT_PARTS:
            _parts.popitem(last=False)
    _parts.move_to_end(known)
    return found[1]
