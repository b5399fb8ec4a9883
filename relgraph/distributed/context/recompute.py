"""Checkpointing computes forward again in backward: in the region of the forward, wherever backward runs.

Backward may run after the block of the region, or in a thread of torch that is outside of all regions. torch has no
public hook for both kinds of checkpointing, so the two classes that keep the function for backward get it bound to its
region, when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils import checkpoint

from relgraph.functional.region import active, entered


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which runs in the region of this call, or outside of regions if this call is."""
    region = active()

    def within(*args: Any, **kwargs: Any) -> Any:
        with entered(region):
            return function(*args, **kwargs)

    return within


def bind_checkpoints() -> None:
    """Bind what torch computes again to the region of its forward, from now on."""
    reentrant: Any = checkpoint.CheckpointFunction
    other: Any = checkpoint._CheckpointFrame
    forward, begin = reentrant.forward, other.__init__

    @staticmethod
    @wraps(forward)
    def forward_bound(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
        return forward(ctx, bound(run_function), *args)

    @wraps(begin)
    def begin_bound(self: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        begin(self, bound(recompute_fn), *args, **kwargs)

    reentrant.forward, other.__init__ = forward_bound, begin_bound
