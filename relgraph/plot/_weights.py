"""Prepare attention weights for a picture: check them, average over heads, move them to the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.plot._names import strings


def checked_values(name: str, value: Any, dim: tuple[int, ...], shapes: str) -> Tensor:
    """A floating tensor that is not empty, without its gradients."""
    check.data(name, check.floating(name, value))
    if value.dim() not in dim:
        raise ValueError(f"{name} must have shape {shapes}, got {list(value.shape)}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {list(value.shape)}")
    return value.detach()


def finite_values(name: str, value: Any, dim: tuple[int, ...], shapes: str) -> np.ndarray:
    """A floating tensor of finite values as float64."""
    out = checked_values(name, value, dim, shapes).to("cpu", torch.float64).numpy()
    if not np.isfinite(out).all():
        raise ValueError(f"{name} must be finite, got {int((~np.isfinite(out)).sum())} values that are not")
    return out


def pair_weights(value: Any) -> np.ndarray:
    """Attention weights ``[N_q, N_k]``, the mean over heads of ``[H, N_q, N_k]``."""
    out = finite_values("weights", value, (2, 3), "[N_q, N_k] or [H, N_q, N_k]")
    if out.min() < 0:
        raise ValueError(f"weights must not be negative, got values down to {out.min():.3g}")
    return out.mean(0) if out.ndim == 3 else out


def query_row(query: Any, count: int) -> int | None:
    """The query to draw, or None."""
    return None if query is None else check.integer("query", query, minimum=0, maximum=count - 1)


def named_nodes(names: Any, known: Sequence[Any] | None, count: int) -> tuple[str, ...]:
    """A name for every node: those given, else the nodes of a networkx graph, else numbers."""
    if names is None:
        return tuple(map(str, range(count) if known is None else known))
    names = strings("node_names", names)
    if len(names) != count:
        raise ValueError(f"node_names must be one for each of the {count} nodes, got {len(names)}")
    return names
