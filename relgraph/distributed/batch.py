"""Labels of some rows of a batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.distributed.parts import part_of
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels


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
    if not isinstance(labels, Labels) or not _by_row(labels) or (start, stop) == (0, batch):
        return labels
    return part_of(labels, ("batch", start, stop), lambda: _cut(labels, start, stop))


def _by_row(labels: Labels) -> bool:
    """Whether each row of a batch has its own labels or offsets."""
    if labels.packed:
        return False
    if isinstance(labels, SumLabels):
        return any(_by_row(part) for part in labels.parts)
    if isinstance(labels, DistanceLabels):
        return isinstance(labels.q_offset, Tensor) and labels.q_offset.numel() > 1
    inner = labels.default if isinstance(labels, EdgeLabels) else None
    return labels.batch_size > 1 or (isinstance(inner, Labels) and _by_row(inner))


def _cut(labels: Labels, start: int, stop: int) -> Labels:
    """Cut labels that differ between batch rows to these batch rows."""
    if not _by_row(labels):
        return labels
    if isinstance(labels, SumLabels):
        return SumLabels(*(_cut(part, start, stop) for part in labels.parts))
    if isinstance(labels, DenseLabels):
        fields = {**labels.__getstate__(), "ids": labels.ids[start:stop], "batch_size": stop - start}
        return DenseLabels._make(**fields)
    if isinstance(labels, DistanceLabels):
        assert isinstance(labels.q_offset, Tensor)
        return DistanceLabels(
            labels.q_len, labels.k_len, lookup=labels.lookup, left=labels.left, num_labels=labels.num_labels,
            q_offset=labels.q_offset[start:stop],
        )  # fmt: skip
    assert isinstance(labels, EdgeLabels)
    default = _cut(labels.default, start, stop) if isinstance(labels.default, Labels) else labels.default
    edges, ids, batch, size = labels.edge_index, labels.ids, labels.batch, 1
    if batch is not None:
        keep = (batch >= start) & (batch < stop)
        edges, ids, batch, size = edges[:, keep], ids[keep], batch[keep] - start, stop - start
    return EdgeLabels(
        edges, ids, labels.num_labels, q_len=labels.q_len, k_len=labels.k_len, default=default,
        duplicates=labels.duplicates, batch=batch, batch_size=size,
    )  # fmt: skip
