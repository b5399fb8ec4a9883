"""Errors for tensors that hold only one rank's part, because attention to them would be wrong."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def check_context() -> None:
    """Raise NotImplementedError within torch's ``context_parallel``, where each rank holds a part of a sequence."""
    # That block replaces this function, so this check need not load torch.distributed; compiled code is retraced.
    attention: Any = functional.scaled_dot_product_attention
    if isinstance(attention, types.FunctionType) and (attention.__module__ or "").startswith("torch.distributed."):
        raise NotImplementedError(
            "relgraph attends only to the keys that it is given, and within torch's context_parallel each rank holds "
            "only a part of them: take rg.distributed.context_parallel in place of that block, split the batch or the "
            "heads instead, or attend to the parts one by one and join the results with rg.functional.merge"
        )


def check_local(**tensors: Tensor | None) -> None:
    """Raise NotImplementedError if a tensor is a DTensor; in compiled code torch does that itself."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        if is_dtensor(tensor):
            raise NotImplementedError(
                f"{name} must be a Tensor of this rank, got a DTensor. After `import relgraph.distributed` "
                "rg.relation_attention takes DTensors if query, key and value are DTensors too, and "
                "rg.distributed.HeadParallel makes a layer take them; elsewhere "
                "torch.distributed.tensor.experimental.local_map passes each rank's part of the batch or the heads"
            )


def check_layer_input(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise NotImplementedError for a DTensor unless the layer's weight is one too."""
    if not torch.compiler.is_compiling() and not is_dtensor(weight):
        check_local(**{name: x})


def check_gathered(rows: Tensor, *, by_heads: bool = False) -> None:
    """Raise NotImplementedError if the rows of a table are a DTensor, of which each rank holds only some.

    Args:
        rows: the rows.
        by_heads: whether ``HeadParallel`` split them, by heads or not at all, on a mesh of one axis.
    """
    if type(rows) in (Tensor, nn.Parameter) or torch.compiler.is_compiling() or not is_dtensor(rows):
        return
    placed: Any = rows
    if not by_heads or placed.device_mesh.ndim > 1:  # fully_shard adds an axis to the mesh
        raise NotImplementedError(
            "the rows of a table must be whole when a layer reads them, got a DTensor: shard tables that "
            "several layers share before these layers, fully_shard(tables), or only with the root, fully_shard(model)"
        )


def survives_reshard(module: nn.Module, rows: Tensor) -> Tensor:
    """The rows; copied if ``fully_shard`` frees the module's parameters after its call."""
    return rows.clone() if hasattr(type(module), "reshard") else rows  # fully_shard changes the class


def is_dtensor(x: Tensor | None) -> bool:
    """Whether ``x`` is a DTensor, seen without loading torch.distributed."""
    if type(x) in (Tensor, nn.Parameter):
        return False
    bases = type(x).__mro__
    return any(base.__name__ == "DTensor" and base.__module__.startswith("torch.distributed.") for base in bases)
