"""Numbers for the bytes of tensors by the compiled kernels of ``hash.cpp``."""

from __future__ import annotations

from ctypes import c_int64, c_uint64, c_void_p
from typing import Any

from relgraph.impl.native import build
from relgraph.labels.contents import HASHES, hash_of_bytes


def first_hash(address: int, count: int) -> int:
    """The number for so many bytes at this address; from now on kernels are asked, if there are any."""
    kernels = build.load()
    found: Any = hash_of_bytes
    if isinstance(kernels, build.Kernels):
        found = kernels.library["relgraph_hash"]  # an object of its own, which looks for no exceptions
        found.restype, found.argtypes = c_uint64, [c_void_p, c_int64]
    HASHES["cpu"] = found
    return found(address, count)

