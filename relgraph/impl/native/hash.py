"""Numbers for the bytes of tensors by the compiled kernels of ``hash.cpp``."""

from __future__ import annotations

from relgraph.impl.native import build
from relgraph.labels.contents import HASHES, hash_of_bytes


def first_hash(address: int, count: int) -> int:
    """The number for so many bytes at this address; from now on kernels are asked, if there are any."""
    kernels = build.load()
    HASHES["cpu"] = hash_of_bytes if isinstance(kernels, build.Missing) else kernels.library.relgraph_hash
    return HASHES["cpu"](address, count)

