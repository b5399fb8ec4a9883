"""What tensors held when something was made of them, so that a change of any kind shows, however it was made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def hash_of_bytes(address: int, count: int) -> int:
    """A number for so many bytes at this address; the order of all of them counts."""
    return hash(ctypes.string_at(address, count))


HASHES: dict[str, Callable[[int, int], int]] = {"cpu": hash_of_bytes}
"""What is taken in the place of :func:`hash_of_bytes` for each kind of device; a module with a faster one says so."""


def contents(x: Tensor) -> Any:
    """What a tensor holds: on a CPU by its numbers, whoever wrote them; elsewhere by its version, which torch counts.

    No version counts changes of ``x.data``, through the storage, DLPack or a NumPy array.
    """
    if type(x) is not Tensor or not x.is_cpu:
        return None if x.is_inference() else x._version
    address = x.data_ptr()
    if x.is_contiguous():
        return address, x.shape, HASHES["cpu"](address, x.nbytes)
    dense = _dense(x)
    return address, x.shape, x.stride(), HASHES["cpu"](dense.data_ptr(), dense.nbytes)


def _dense(x: Tensor) -> Tensor:
    """The numbers of a tensor, those of an expanded axis once, in an order that follows from its strides."""
    for axis, step in enumerate(x.stride()):
        x = x.narrow(axis, 0, 1) if step == 0 and x.shape[axis] else x
    turned = x.mT if x.dim() > 1 else x
    return turned if turned.is_contiguous() else x.contiguous()


class Contents:
    """Tensors, and what they held when this was made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.held = [contents(x) for x in tensors]

    def same(self) -> bool:
        """Whether they hold the same now."""
        return [contents(x) for x in self.tensors] == self.held
