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
from relgraph.impl.rule import DENSE_SCORES, refusal, rule_for

__all__ = ["DENSE_SCORES", "IMPLEMENTATIONS", "Answer", "Call", "Tables", "choose", "merge"]

IMPLEMENTATIONS: dict[str, Callable[[Call], Answer]] = {
    "reference": reference.attend,
    "dense": dense.attend,
    "chunked": chunked.attend,
    "edges": edges.attend,
    "triton": fused.attend,
}


def choose(call: Call, impl: str | None) -> str:
    """The implementation that answers ``call``: the one asked for, or the first row of the documented table that fits.

    Raises:
        ValueError: an unknown name.
        NotImplementedError: the one asked for cannot do this call, or torch.func is at work.
    """
    if impl is not None:
        _check.choice("impl", impl, tuple(IMPLEMENTATIONS))
    _check_transforms(call, impl)
    if impl is None:
        return rule_for(call).impl
    reason = refusal(call, impl)
    if reason is not None:
        raise NotImplementedError(reason)
    return impl


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
