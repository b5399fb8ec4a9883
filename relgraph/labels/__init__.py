"""Labels: what label each (query, key) pair carries."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels
from relgraph.labels.block import BlockLabels
from relgraph.labels.dense import DenseLabels
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.edge import EdgeLabels
from relgraph.labels.padding import padded
from relgraph.labels.sum import SumLabels

__all__ = [
    "NOT_ATTENDING",
    "UNLABELED",
    "BlockLabels",
    "DenseLabels",
    "DistanceLabels",
    "EdgeLabels",
    "Labels",
    "SumLabels",
    "padded",
]


def _with_keys(labels: Labels) -> tuple[list[tuple[Any, Tensor]], Any]:
    tensors, context = labels._flatten()
    return [(pytree.SequenceKey(index), tensor) for index, tensor in enumerate(tensors)], context


for _kind in (BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, SumLabels):
    pytree.register_pytree_node(
        _kind,
        lambda labels: labels._flatten(),
        lambda tensors, context, kind=_kind: kind._unflatten(list(tensors), context),
        serialized_type_name=f"relgraph.{_kind.__name__}",
        flatten_with_keys_fn=_with_keys,
    )
