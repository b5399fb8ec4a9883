"""What families of vision models share: labels of grids, tables of another size, and whether weights are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.labels import Labels

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # older versions have none
    _active_collector = None
_collector: Any = _active_collector

KEPT_GRIDS = 16
"""How many labels of grids are kept: each holds a number for every pair of its cells."""

_grids: dict[tuple[Any, int, int, torch.device], Labels] = {}


def labels_of_grid(labeler: Any, height: int, width: int, device: torch.device) -> Labels:
    """The labels of a grid of this size; kept, so that all layers share what is worked out for them once.

    Args:
        labeler: a labeler of grids, or a sum of some.
        height: how many rows of cells there are.
        width: how many columns.
        device: where the labels are wanted.
    """
    if torch.compiler.is_compiling():
        return labeler(height, width).to(device)
    found = _grids.get((labeler, height, width, device))
    if found is None:
        while len(_grids) >= KEPT_GRIDS:
            _grids.pop(next(iter(_grids)))
        # made outside inference mode, whose tensors could not take part in training later
        with torch.inference_mode(False):
            found = _grids[labeler, height, width, device] = labeler(height, width).to(device)
    return found


def resized(table: Tensor, size: int | Sequence[int], mode: str) -> Tensor:
    """A table by differences along some axes, interpolated to another number of differences.

    Args:
        table: ``[R, D]``, or ``[R_rows, R_columns, D]``.
        size: the numbers of rows that are wanted.
        mode: as in :func:`torch.nn.functional.interpolate`.
    """
    wanted = (size,) if isinstance(size, int) else tuple(size)
    if table.shape[:-1] == wanted:
        return table
    return functional.interpolate(table.movedim(-1, 0)[None], size=wanted, mode=mode)[0].movedim(0, -1)


def is_recorded(module: nn.Module) -> bool:
    """Whether transformers records the attention weights that this module returns.

    Some models do not hand ``output_attentions`` to their attention but record what its forward returns: by a function
    in the place of the forward, or, in later versions, by a hook that asks a collector.
    """
    replaced = vars(module).get("forward")
    if replaced is not None and not isinstance(replaced, MethodType):
        return True
    if _collector is None:
        return False
    # compiled code cannot ask a context variable; while it is made the collector is a plain attribute
    collected = _collector.global_var if torch.compiler.is_compiling() else _collector.get()
    return collected is not None and "attentions" in collected
