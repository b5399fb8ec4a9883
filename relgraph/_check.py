"""Checks at the door: each names the argument, what it must be and what came instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)

from relgraph._hints import in_place_of_graph

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def can_look_at_data(*tensors: Tensor | None) -> bool:
    """Whether values may be inspected: not while compiling or exporting, nor on fake or meta tensors."""
    if torch.compiler.is_compiling():
        return False
    return all(t is None or (type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta) for t in tensors)


def outside_compiled_code(what: str) -> None:
    """What has to look at data is not traced: refused with the way out, where torch would say what it cannot guard."""
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{what} looks at data, which torch.compile and torch.export cannot follow: make the labels outside of the "
            "compiled function, labels = labeler(graph), and pass them to it as an argument"
        )


def unmapped(name: str, tensor: Tensor) -> None:
    """``torch.func.vmap`` does not map over this tensor, whose values could not be looked at then."""
    while not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise NotImplementedError(
                f"{name} must not be mapped over by torch.func.vmap: give labels a batch axis of their own, ids "
                "[B, N_q, N_k] (or batch= of EdgeLabels), and map over inputs and tables alone, with "
                "impl='reference' or 'dense'"
            )
        tensor = get_unwrapped(tensor)


def has_autocast(device_type: str) -> bool:
    """Whether there is autocast for this kind of device; the usual ones are not asked, which dynamo could not trace."""
    return device_type in ("cpu", "cuda") or torch.amp.is_autocast_available(device_type)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast computes in on this kind of device; None when it is off, or there is no such thing."""
    if not has_autocast(device_type) or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def integer(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """``value`` itself when it is an int (not a bool) within the bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {in_place_of_graph(value)}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")
    return value  # pyright: ignore[reportReturnType]


def probability(name: str, value: Any) -> float:
    """``value`` as a float in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {value}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """``value`` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")
    if not isinstance(value, torch.SymFloat) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value  # pyright: ignore[reportReturnType]


def boolean(name: str, value: Any) -> bool:
    """``value`` itself when it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def tensor(name: str, value: Any) -> Tensor:
    """``value`` itself when it is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")
    return value


def integer_tensor(name: str, value: Any, *, dim: int | tuple[int, ...]) -> Tensor:
    """``value`` itself when it is an integer tensor with (one of) that many dimensions."""
    tensor(name, value)
    if value.dtype not in INTEGER_DTYPES:
        raise ValueError(f"{name} must have an integer dtype, got {value.dtype}")
    dims = (dim,) if isinstance(dim, int) else dim
    if value.dim() not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ValueError(f"{name} must have {wanted} dimensions, got shape {list(value.shape)}")
    return value


def shaped(tensor: Tensor, *allowed: Sequence[Any]) -> bool:
    """Whether a tensor has one of these shapes; unlike ``in`` right for sizes that dynamo keeps open too."""
    return any(tensor.dim() == len(shape) and tensor.shape == torch.Size(shape) for shape in allowed)


def among(size: Any, *allowed: Any) -> bool:
    """Whether a size is one of these; unlike ``in`` right where dynamo keeps one of them open and knows the other."""
    return any(size == other for other in allowed)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """``value`` itself when it is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; expected one of {list(allowed)}")
    return value


def id_range(name: str, ids: Tensor, num_labels: int, *, minimum: int = -1) -> None:
    """Every id lies in ``[minimum, num_labels)``; -1 is the pair without a label."""
    unmapped(name, ids)
    if ids.numel() == 0 or not can_look_at_data(ids):
        return
    low, high = (int(v) for v in torch.aminmax(ids))
    if low < minimum or high >= num_labels:
        raise ValueError(f"{name} must lie in [{minimum}, {num_labels}), got values from {low} to {high}")


def same_device(**tensors: Tensor | None) -> None:
    """All given tensors live on one device."""
    first_name, first = "", None
    for name, value in tensors.items():
        if value is None:
            continue
        if first is None:
            first_name, first = name, value
        elif value.device != first.device:
            raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {value.device}")
