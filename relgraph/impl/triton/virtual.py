"""Labels by distance as kernels see them: a *virtual* column for each distance of a band.

A label of several distances then has several columns, and subtraction gives the column of a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from relgraph.plan import NOT_ATTENDING, DistanceIds, LabelPlan, Part

MAX_BAND = 512
"""The widest band of distances with virtual columns."""

FAR_LEFT = -(1 << 29)
"""First distance of an empty band: every pair is on its right."""

BEYOND = 1 << 40
"""A number larger than any distance."""


class Virtual(NamedTuple):
    """Columns by distance: 0 left of ``low``, one for each of ``low .. low + width - 1``, and one for the rest.

    ``dead`` says whether pairs of the first and of the last column do not attend. ``columns``, width + 2 of them, are
    the real columns of the part: an id, R for no label, -2 if pairs do not attend.
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
    """Whether labels depend on the distance only, in a band of at most MAX_BAND or twice their number."""
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


def virtual_of(plan: LabelPlan) -> Virtual | None:
    """The virtual columns of a plan, None unless it is affine; found again without reading its labels."""
    if torch.compiler.is_compiling():
        return virtual(plan.parts[0]) if is_affine(plan) else None
    return plan.memory.once("virtual", lambda: virtual(plan.parts[0]) if is_affine(plan) else None)
