"""Labels of queries and keys at given positions: checks of the positions, and distances from queries to keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels import NOT_ATTENDING, UNLABELED, DenseLabels
from relgraph.labels.base import smallest_dtype
from relgraph.labels.distance import FARTHEST


def checked_positions(q_positions: Any, k_positions: Any, *, axes: int) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys as int64, ``[B or 1, N]``, or ``[B or 1, N, axes]`` with more than one axis.

    ``k_positions`` is ``q_positions`` if None. Raises an error unless all pairs can be written out.
    """
    query = _checked("q_positions", q_positions, axes)
    key = query if k_positions is None else _checked("k_positions", k_positions, axes)
    check.same_device(q_positions=query, k_positions=key)
    if query.shape[0] != key.shape[0] and not check.among(1, query.shape[0], key.shape[0]):
        raise ValueError(f"k_positions must have {query.shape[0]} batch rows like q_positions, got {key.shape[0]}")
    rows = max(query.shape[0], key.shape[0])
    check.written("q_positions and k_positions", rows, query.shape[1], key.shape[1])
    return query, key


def _checked(name: str, positions: Any, axes: int) -> Tensor:
    extra = 0 if axes == 1 else 1
    positions = check.integer_tensor(name, positions, dim=(1 + extra, 2 + extra))
    if extra and positions.shape[-1] != axes:
        raise ValueError(f"{name} must have shape [N, {axes}] or [B, N, {axes}], got {list(positions.shape)}")
    check.unmapped(name, positions)
    if positions.numel() and positions.device.type == "cpu" and check.can_look_at_data(positions):
        least, most = (int(x) for x in torch.aminmax(positions))
        if least < -FARTHEST or most > FARTHEST:
            raise ValueError(f"{name} must lie in [-2**31, 2**31], got values from {least} to {most}")
    positions = positions.to(torch.int64)
    return positions if positions.dim() == 2 + extra else positions[None]


def distances(query: Tensor, key: Tensor) -> Tensor:
    """Key position minus query position of every pair, ``[B or 1, N_q, N_k]``."""
    return key[:, None, :] - query[:, :, None]


def labels_by_distance(distance: Tensor, lookup: tuple[int, ...], left: int, num_labels: int) -> DenseLabels:
    """Labels of written-out distances ``[B or 1, N_q, N_k]``, as :class:`~relgraph.DenseLabels`."""
    table = torch.tensor(lookup, dtype=smallest_dtype(num_labels), device=distance.device)
    ids = table[distance.clamp(-left, len(lookup) - 1 - left) + left]
    if NOT_ATTENDING not in lookup:
        return DenseLabels(ids, num_labels)
    attend = ids != NOT_ATTENDING
    return DenseLabels(ids.clamp(min=UNLABELED), num_labels, attend=attend)
