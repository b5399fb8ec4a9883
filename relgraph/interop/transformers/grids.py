"""Code that families of vision models share: labels of grids and tables of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.labels import Labels
from relgraph.labels.memory import Memory

MOST_GRIDS = 16
"""How many labels of grids are remembered: each has an id for every pair of its cells."""

_grids = Memory(MOST_GRIDS)


def labels_of_grid(labeler: Any, height: int, width: int, device: torch.device) -> Labels:
    """The labels of a grid of this size; remembered, so that all layers share their plan."""
    if torch.compiler.is_compiling():
        return labeler(height, width).to(device)
    return _grids.once((labeler, height, width, device), lambda: labeler(height, width).to(device))


def resized(table: Tensor, size: int | Sequence[int], mode: str) -> Tensor:
    """A table ``[R, D]`` or ``[R_rows, R_columns, D]``, interpolated to another number of differences."""
    wanted = (size,) if isinstance(size, int) else tuple(size)
    if table.shape[:-1] == wanted:
        return table
    return functional.interpolate(table.movedim(-1, 0)[None], size=wanted, mode=mode)[0].movedim(0, -1)
