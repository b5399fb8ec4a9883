"""What tensors held when something was made of them, so that a change of any kind shows, however it was made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def hash_of_bytes(address: int, count: int) -> int:
    """A number for so many bytes at this address, in their order."""
    return hash(ctypes.string_at(address, count))


HASHES: dict[str, Callable[[int, int], int]] = {"cpu": hash_of_bytes}
"""The function for each kind of device; a module above that has a faster one puts it here."""


def contents(x: Tensor) -> Any:
    """What a tensor holds: on a CPU by its numbers, whoever wrote them; else by its version, which torch counts.

    No version counts changes of ``x.data``, through the storage, DLPack or a NumPy array.
    """
    if type(x) is not Tensor or not x.is_cpu or x.layout is not torch.strided or x.is_nested:
        return None if x.is_inference() else x._version
    address = x.data_ptr()
    if x.is_contiguous():
        return address, x.shape, HASHES["cpu"](address, x.nbytes)
    shape, steps = x.shape, x.stride()
    for axis, step in enumerate(steps):  # an expanded axis counts once
        x = x.narrow(axis, 0, 1) if step == 0 and shape[axis] else x
    x = x.mT if x.dim() > 1 and x.mT.is_contiguous() else x.contiguous()
    return address, shape, steps, HASHES["cpu"](x.data_ptr(), x.nbytes)


class Contents:
    """Tensors of labels, and what they held when this was made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self.shapes = tensors, [x.shape for x in tensors]
        self.held = [contents(x) for x in tensors]

    def same(self) -> bool:
        """Whether they hold the same now."""
        return [contents(x) for x in self.tensors] == self.held
