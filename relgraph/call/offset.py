"""The key position of query row 0: what the caller gives, what the labels count from, and whether they agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels import Labels
from relgraph.labels.distance import check_offset
from relgraph.labels.join import same_offset
from relgraph.labels.naming import KINDS
from relgraph.plan import LabelPlan


def offset_of(q_offset: Any, labels: Labels | None, plan: LabelPlan, is_causal: bool, query: Tensor) -> int | Tensor:
    """The key position of query row 0, from the caller or the labels."""
    own = () if labels is None else labels.offsets
    if q_offset is None and not is_causal:
        for offset in own:
            if offset is not None:
                break
        else:
            return 0
    if q_offset is None and len(own) == 1 and own[0] is not None:
        return own[0]
    graphs = None if plan.k_ptr is None else plan.k_ptr.shape[0] - 1
    check_offset(q_offset, graphs)
    if isinstance(q_offset, Tensor) and q_offset.dim() == 1 and graphs is None and q_offset.shape[0] != query.shape[0]:
        raise ValueError(f"q_offset must hold one number per batch row, {query.shape[0]}, got {q_offset.shape[0]}")
    if q_offset is None:
        q_offset = next((offset for offset in own if offset is not None), None)
    for offset in own:
        if q_offset is not None and not _agree(0 if offset is None else offset, q_offset):
            raise ValueError(
                f"q_offset must be that of the labels, which count distances from {offset or 0}, got {q_offset}: "
                "give it to the labeler"
            )
    if q_offset is not None:
        return q_offset
    if is_causal and not _aligned(plan):
        raise ValueError(
            "q_offset must be given with is_causal when queries and keys differ in length "
            f"({plan.q_len} and {plan.k_len}): query i sees keys up to i + q_offset"
        )
    return 0


def _aligned(plan: LabelPlan) -> bool:
    """Whether queries and keys have the same length, in each graph when packed."""
    if plan.q_ptr is None or plan.k_ptr is None:
        return plan.q_len == plan.k_len
    if plan.q_ptr is plan.k_ptr:
        return True
    return check.can_look_at_data(plan.q_ptr, plan.k_ptr) and torch.equal(plan.q_ptr, plan.k_ptr)


def sees_all_keys(offset: int | Tensor, plan: LabelPlan) -> bool:
    """Whether query row 0 already sees every key, as in a decoding step."""
    if isinstance(offset, Tensor) or plan.k_ptr is not None or torch.compiler.is_compiling():
        return False
    return offset >= plan.k_len - 1


def offsets_of(labels: Any) -> tuple[int | Tensor | None, ...]:
    """The offsets of labels; none for raw ids and without labels."""
    return labels.offsets if type(labels) in KINDS else ()


def _agree(one: int | Tensor, other: int | Tensor) -> bool:
    """Whether two offsets are equal; True when that cannot be seen without waiting for a device."""
    if one is other or any(isinstance(x, Tensor) and x.device.type != "cpu" for x in (one, other)):
        return True
    return same_offset(one, other)
