"""The attention itself, once a strategy, all with one meaning; and the rule that picks one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]
from torch.autograd import forward_ad

from relgraph import _check
from relgraph.impl import chunked, dense, edges, fused, reference
from relgraph.impl.common import Answer, Call, Tables
from relgraph.impl.merging import merge

__all__ = ["IMPLEMENTATIONS", "Answer", "Call", "Tables", "choose", "merge"]

IMPLEMENTATIONS: dict[str, Callable[[Call], Answer]] = {
    "reference": reference.attend,
    "dense": dense.attend,
    "chunked": chunked.attend,
    "edges": edges.attend,
    "triton": fused.attend,
}

DENSE_SCORES = 1 << 18
"""Up to this many scores (B · H · N_q · N_k) one pass over all of them beats blocks; see docs/learn/implementations.md."""


def choose(call: Call, impl: str | None) -> str:
    """The implementation that answers ``call``: the one asked for, or the first row of the documented table that fits.

    Raises:
        ValueError: an unknown name.
        NotImplementedError: the one asked for cannot do this call, or torch.func is at work.
    """
    if impl is not None:
        _check.choice("impl", impl, tuple(IMPLEMENTATIONS))
    _check_transforms(call, impl)
    mask_grad = _learns(call.mask)
    alone = len(call.plan.parts) == 1 and call.plan.parts[0].alone
    parallel = any(part.alone and part.csr is not None and part.csr.parallel for part in call.plan.parts)
    if impl is not None:
        _check_able(call, impl, alone=alone, parallel=parallel, mask_grad=mask_grad)
        return impl
    if call.need_weights:
        return "reference" if parallel else "dense"
    if alone:
        return "edges"
    if mask_grad:
        return "dense"
    if torch.compiler.is_exporting():
        return "chunked"  # a rule on sizes would fix the exported lengths
    if call.plan.q_len == 1:
        return "dense"  # decoding: one row a head, however long the past
    scores = call.query.shape[0] * call.query.shape[1] * call.plan.q_len * call.plan.k_len
    return "dense" if scores <= DENSE_SCORES else "chunked"


def _check_able(call: Call, impl: str, *, alone: bool, parallel: bool, mask_grad: bool) -> None:
    """The implementation that was asked for can answer this call."""
    if impl in ("chunked", "edges") and call.need_weights:
        raise NotImplementedError(f"impl={impl!r} never holds all attention weights; use impl='dense' for need_weights")
    if impl == "chunked" and mask_grad:
        raise NotImplementedError("impl='chunked' gives no gradient to attn_mask; use impl='dense' or 'reference'")
    if impl in ("chunked", "dense") and parallel:
        raise NotImplementedError(
            f"impl={impl!r} has one score a pair and cannot let parallel edges attend each on its own; use impl='edges'"
        )
    if impl == "edges" and not alone:
        raise NotImplementedError(
            "impl='edges' attends over listed pairs alone and needs EdgeLabels with default=None; use impl='chunked'"
        )
    if impl == "triton":
        reason = fused.why_not(call)
        if reason is not None:
            raise NotImplementedError(f"impl='triton' {reason}")
        if mask_grad:
            raise NotImplementedError("impl='triton' gives no gradient to attn_mask; use impl='dense' or 'reference'")


def _learns(mask: Tensor | None) -> bool:
    return mask is not None and mask.requires_grad and torch.is_grad_enabled()


def _check_transforms(call: Call, impl: str | None) -> None:
    """Neither torch.func nor forward-mode derivatives reach an implementation with a backward of its own."""
    if torch.compiler.is_compiling() or impl in ("reference", "dense"):
        return
    if peek_interpreter_stack() is not None:
        what = "torch.func transforms (grad, vmap, jvp, ...)"
    elif forward_ad._current_level >= 0 and any(_has_tangent(t) for t in _learnable(call)):
        what = "forward-mode derivatives"
    else:
        return
    raise NotImplementedError(
        f"{what} need impl='reference' or 'dense', got impl={impl!r}: "
        "the other implementations have a backward of their own"
    )


def _learnable(call: Call) -> list[Tensor]:
    tables = [table for part in call.tables for table in part if table is not None]
    return [call.query, call.key, call.value, *tables]


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None
