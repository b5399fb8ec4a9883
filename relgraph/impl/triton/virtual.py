"""Labels that depend on the distance alone, as kernels take them: a *virtual* column for every distance of a band.

A label that several distances share then has several columns, and a pair's column is found by subtraction.
"""

from __future__ import annotations

from typing import NamedTuple

from relgraph.plan import NOT_ATTENDING, DistanceIds, LabelPlan, Part

MAX_BAND = 512
"""The widest band of distances that is not written out."""

FAR_LEFT = -(1 << 29)
"""Where the band begins when there is none: every pair lies right of it."""

BEYOND = 1 << 40
"""Farther than any distance."""


class Virtual(NamedTuple):
    """Columns by distance: 0 left of ``low``, then one a distance ``low .. low + width - 1``, and one for the rest.

    ``dead`` says of the first and the last whether its pairs do not attend at all; ``columns``, width + 2 of them, name
    the part's real column of each: an id, R for no label, -2 where pairs do not attend.
    """

    low: int
    width: int
    dead: tuple[bool, bool]
    columns: tuple[int, ...]

    def stretches(self) -> list[tuple[int, int]]:
        """The distances that attend, as ``start, stop``."""
        found: list[tuple[int, int]] = []
        for at, column in enumerate(self.columns):
            start = self.low + at - 1 if at else -BEYOND
            stop = self.low + at if at <= self.width else BEYOND
            if column != NOT_ATTENDING and found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            elif column != NOT_ATTENDING:
                found.append((start, stop))
        return found


def is_affine(plan: LabelPlan) -> bool:
    """Whether labels depend on the distance alone, in a band that is no wider than MAX_BAND or twice their number."""
    part = plan.parts[0]
    if len(plan.parts) > 1 or part.csr is not None or not isinstance(part.ids, DistanceIds):
        return False
    return len(part.ids.lookup) - 2 <= max(MAX_BAND, 2 * part.num_labels)


def virtual(part: Part) -> Virtual:
    """The virtual columns of the part of an affine plan."""
    assert isinstance(part.ids, DistanceIds)
    first, lookup = part.ids.first, part.ids.lookup
    if len(lookup) == 1:
        first, lookup = FAR_LEFT - 1, (lookup[0],) * 2
    columns = tuple(part.num_labels if label == -1 else label for label in lookup)
    dead = columns[0] == NOT_ATTENDING, columns[-1] == NOT_ATTENDING
    return Virtual(first + 1, len(lookup) - 2, dead, columns)
