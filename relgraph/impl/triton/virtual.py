"""Labels by distance as kernels see them: a *virtual* column for each distance of a band.

A label of several distances then has several columns, and subtraction gives the column of a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.labels.memory import Memory
from relgraph.plan import DistanceIds, LabelPlan, Part

MAX_BAND = 512
"""The widest band of distances with virtual columns."""

FAR_LEFT = -(1 << 29)
"""First distance of an empty band: every pair is on its right."""


class Virtual(NamedTuple):
    """Columns by distance: 0 left of ``low``, one for each of ``low .. low + width - 1``, and one for the rest.

    ``columns``, width + 2 of them, are the real columns of the part: an id, R for no label, -2 if pairs do not attend.
    """

    low: int
    width: int
    columns: tuple[int, ...]

    def at(self, distance: Tensor) -> Tensor:
        """The number of the column of each distance."""
        return (distance - self.low).clamp(-1, self.width) + 1


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
    return Virtual(first + 1, len(lookup) - 2, columns)


def virtual_of(plan: LabelPlan) -> Virtual | None:
    """The virtual columns of a plan, None unless it is affine; found again without reading its labels."""
    if torch.compiler.is_compiling():
        return virtual(plan.parts[0]) if is_affine(plan) else None
    return plan.memory.once("virtual", lambda: virtual(plan.parts[0]) if is_affine(plan) else None)


_constants = Memory()


def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """These values as a tensor; cached, because copying them to a GPU synchronizes."""
    if torch.compiler.is_compiling():
        return torch.tensor(values, device=device)
    return _constants.once((values, device), lambda: torch.tensor(values, device=device))
