"""Parts of labels, kept for the next call: to cut edges takes time, and a part has a plan that is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from relgraph.labels import Labels

KEPT_PARTS = 256
"""So many parts are kept, of all labels together."""

_parts: OrderedDict[tuple[int, Hashable], tuple[Labels, Labels]] = OrderedDict()


def part_of(labels: Labels, which: Hashable, cut: Callable[[], Labels]) -> Labels:
    """A part of labels, made by ``cut`` and the same object each time.

    Args:
        labels: the whole.
        which: what tells its parts apart.
        cut: makes the part.
    """
    known = id(labels), which
    found = _parts.get(known)
    if found is None:
        found = labels, cut()  # the whole is kept too, so that no other labels get its id
        _parts[known] = found
        while len(_parts) > KEPT_PARTS:
            _parts.popitem(last=False)
    _parts.move_to_end(known)
    return found[1]
