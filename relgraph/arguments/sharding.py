"""What torch's ways of sharing out one sequence would make wrong, refused at the door."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def check_context() -> None:
    """The whole sequence is here: not so within torch's ``context_parallel``, where each rank holds a part of it.

    That block replaces ``scaled_dot_product_attention`` by a function of its own, which is what shows it: nothing of
    ``torch.distributed`` is loaded here, and compiled code is traced afresh where it runs within the block.

    Raises:
        NotImplementedError: within the block.
    """
    attention: Any = functional.scaled_dot_product_attention
    if isinstance(attention, types.FunctionType) and (attention.__module__ or "").startswith("torch.distributed."):
        raise NotImplementedError(
            "relgraph attends to the keys that it is given, and within torch's context_parallel each rank holds only "
            "its part of them: call it outside of that block with whole sequences, share out the batch or the heads, "
            "or attend to the parts one by one and join the results by rg.merge"
        )


def check_local(**tensors: Tensor | None) -> None:
    """No tensor is a DTensor; compiled code is left to torch, which refuses those it cannot share out.

    Raises:
        NotImplementedError: one of them is.
    """
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        if type(tensor) is not Tensor and any(_is_dtensor(base) for base in type(tensor).__mro__):
            raise NotImplementedError(
                f"{name} must be a Tensor of this rank, got a DTensor, for which relgraph has no rules of sharding: "
                "wrap the call in torch.distributed.tensor.experimental.local_map, which hands on each rank's part, "
                "with whole sequences on every rank (parts of the batch or of the heads)"
            )


def check_gathered(rows: Tensor) -> None:
    """The rows of a table are whole while a layer reads them.

    Raises:
        NotImplementedError: they are a DTensor, each rank holding some of them.
    """
    if not torch.compiler.is_compiling() and any(_is_dtensor(base) for base in type(rows).__mro__):
        raise NotImplementedError(
            "the rows of a table must be whole when a layer reads them, got a DTensor: tables that several layers "
            "share are sharded once and before these, fully_shard(tables), or with the root alone, fully_shard(model)"
        )


def kept(module: nn.Module, rows: Tensor) -> Tensor:
    """The rows that a module returns, a copy where ``fully_shard`` frees the module's parameters when it is done."""
    return rows.clone() if hasattr(module, "reshard") else rows  # what fully_shard adds to the module's class


def _is_dtensor(kind: type) -> bool:
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.")
