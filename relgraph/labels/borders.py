"""Borders of the graphs in a packed batch: checked, cut, and the graph of each position."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check


def check_ptr(name: str, ptr: Any, total: int) -> Tensor:
    """Return ``ptr`` as int64; raise ValueError unless it starts at 0, never falls and ends at ``total``."""
    ptr = check.integer_tensor(name, ptr, dim=1).to(torch.int64, copy=True)
    check.unmapped(name, ptr)
    if ptr.shape[0] < 1:
        raise ValueError(f"{name} must hold at least one border, [0], got an empty tensor")
    if check.can_look_at_data(ptr):
        values = ptr.tolist()
        falls = any(b < a for a, b in pairwise(values))
        if values[0] != 0 or values[-1] != total or falls:
            got = values if len(values) <= 8 else f"[{', '.join(map(str, values[:4]))}, ..., {values[-1]}]"
            raise ValueError(f"{name} must start at 0, never fall and end at {total}, got {got}")
    return ptr


def check_ptrs(ptr: Any, q_ptr: Any, q_len: int, k_len: int) -> tuple[Tensor | None, Tensor | None]:
    """The checked borders of queries and keys; without ``q_ptr``, ``ptr`` serves both."""
    if ptr is None:
        if q_ptr is not None:
            raise ValueError("q_ptr needs ptr, the borders of the keys; got ptr=None")
        return None, None
    k_ptr = check_ptr("ptr", ptr, k_len)
    q_ptr = k_ptr if q_ptr is None or (q_ptr is ptr and q_len == k_len) else check_ptr("q_ptr", q_ptr, q_len)
    if q_ptr is k_ptr and q_len != k_len:
        raise ValueError(f"q_ptr must be given when q_len and k_len differ, got q_len={q_len}, k_len={k_len}")
    if q_ptr.shape != k_ptr.shape:
        raise ValueError(f"q_ptr must name as many graphs as ptr, {k_ptr.shape[0] - 1}, got {q_ptr.shape[0] - 1}")
    check.same_device(ptr=k_ptr, q_ptr=q_ptr)
    return q_ptr, k_ptr


def cut_borders(ptr: Tensor, start: int, stop: int) -> Tensor:
    """The borders of the graphs among positions ``start:stop``."""
    return ptr.clamp(start, stop) - start


def positions_before(ptr: Tensor, start: int) -> Tensor:
    """How far ``start`` is behind the first position of each graph, ``[G]``; 0 for graphs that begin later."""
    return (start - ptr[:-1]).clamp(min=0)


def graph_of(ptr: Tensor, length: int) -> Tensor:
    """The graph of each of ``length`` packed positions, ``[length]``."""
    return graph_at(ptr, torch.arange(length, device=ptr.device))


def graph_at(ptr: Tensor, positions: Tensor) -> Tensor:
    """The graph of each packed position; shaped like ``positions``."""
    return torch.searchsorted(ptr[1:].contiguous(), positions.contiguous(), right=True)
