"""Labels of some rows of a batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.distributed.parts import part_of
from relgraph.labels import Labels


def cut_batch(labels: Any, batch: int, start: int, stop: int) -> Any:
    """Labels, or raw ids, of batch rows ``start:stop``; unchanged if all rows of the batch share them.

    Args:
        labels: :class:`~relgraph.Labels`, raw ids or None.
        batch: B, the number of batch rows.
        start: the first row.
        stop: the row after the last.
    """
    if isinstance(labels, Tensor):
        return labels[start:stop] if labels.dim() == 3 and labels.shape[0] == batch else labels
    if not isinstance(labels, Labels) or labels.packed or labels.batch_size == 1 or (start, stop) == (0, batch):
        return labels
    return part_of(labels, ("batch", start, stop), lambda: labels._batch_rows(start, stop))
