"""The rule that picks an implementation, with its reasons, and what each implementation refuses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.impl import fused
from relgraph.impl.common import Call

DENSE_SCORES = 1 << 18
"""Up to this many scores (B · H · N_q · N_k) one pass over all beats blocks; see docs/learn/implementations.md."""


class Rule(NamedTuple):
    """One row of the documented table: what ``impl=None`` takes, and when; ``{scores}`` is B · H · N_q · N_k."""

    impl: str
    when: str


WEIGHTS_OF_PARALLEL = Rule("reference", "attention weights are asked for, and parallel edges attend each on its own")
WEIGHTS = Rule("dense", "attention weights are asked for")
LISTED = Rule("edges", "edges-only labels: EdgeLabels with default=None")
MASK_GRADIENT = Rule("dense", "a floating attn_mask needs a gradient")
EXPORT = Rule("chunked", "inside torch.export, where a rule on sizes would fix the exported lengths")
ONE_ROW = Rule("dense", "there is one query row (a decoding step)")
FEW_SCORES = Rule("dense", f"B · H · N_q · N_k = {{scores:,}} is at most {DENSE_SCORES:,} scores")
OTHERWISE = Rule("chunked", f"B · H · N_q · N_k = {{scores:,}} is more than {DENSE_SCORES:,} scores")

RULES = (WEIGHTS_OF_PARALLEL, WEIGHTS, LISTED, MASK_GRADIENT, EXPORT, ONE_ROW, FEW_SCORES, OTHERWISE)
"""The table, top to bottom; the first row that fits is taken."""


def rule_for(call: Call) -> Rule:
    """The first row of the table that fits ``call``."""
    if call.need_weights:
        return WEIGHTS_OF_PARALLEL if _parallel(call) else WEIGHTS
    if _alone(call):
        return LISTED
    if _learns(call.mask):
        return MASK_GRADIENT
    if torch.compiler.is_exporting():
        return EXPORT
    if call.plan.q_len == 1:
        return ONE_ROW
    return FEW_SCORES if scores(call) <= DENSE_SCORES else OTHERWISE


def scores(call: Call) -> int:
    """B · H · N_q · N_k."""
    return call.query.shape[0] * call.query.shape[1] * call.plan.q_len * call.plan.k_len


def refusal(call: Call, impl: str) -> str | None:
    """Why the implementation cannot answer ``call``, and what can; None when it can."""
    if impl in ("chunked", "edges") and call.need_weights:
        return f"impl={impl!r} never holds all attention weights; use impl='dense' for need_weights"
    if impl == "chunked" and _learns(call.mask):
        return "impl='chunked' gives no gradient to attn_mask; use impl='dense' or 'reference'"
    if impl in ("chunked", "dense") and _parallel(call):
        return (
            f"impl={impl!r} has one score a pair and cannot let parallel edges attend each on its own; use impl='edges'"
        )
    if impl == "edges" and not _alone(call):
        return "impl='edges' attends over listed pairs alone and needs EdgeLabels with default=None; use impl='chunked'"
    if impl == "triton":
        reason = fused.why_not(call)
        if reason is not None:
            return f"impl='triton' {reason}"
        if _learns(call.mask):
            return "impl='triton' gives no gradient to attn_mask; use impl='dense' or 'reference'"
    return None


def _alone(call: Call) -> bool:
    """Whether listed pairs alone attend."""
    return len(call.plan.parts) == 1 and call.plan.parts[0].alone


def _parallel(call: Call) -> bool:
    """Whether parallel pairs may attend each on its own."""
    return any(part.alone and part.csr is not None and part.csr.parallel for part in call.plan.parts)


def _learns(mask: Tensor | None) -> bool:
    return mask is not None and mask.requires_grad and torch.is_grad_enabled()
