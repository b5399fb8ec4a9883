"""The tiles of a launch: how many rows and keys, warps and stages, by head size, dtype and GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Tiling:
    """Rows and keys of a tile, warps of a program, stages of its pipeline, keys (rows) of a step in a mixed tile."""

    rows: int
    keys: int
    warps: int
    stages: int
    step: int = 16


@lru_cache(maxsize=256)
def tiling(
    kernel: str, size: int, value_size: int, dtype: torch.dtype, capability: tuple[int, int], *, by_distance: bool,
) -> Tiling:  # fmt: skip
    """The tiles for heads of this size on GPUs of this compute capability, (8, 0) or more.

    Chosen by spilled registers and cycles of half types without options: ``python -m docs.kernels``.

    Args:
        kernel: ``"forward"``, ``"backward_rows"`` or ``"backward_keys"``.
        size: numbers of a query and of a key.
        value_size: numbers of a value.
        dtype: of the query.
        capability: compute capability of the GPU.
        by_distance: whether labels are a function of the distance; sums by label of all others take registers.
    """
    wide = product_size(max(size, value_size))
    backward = kernel != "forward"
    if dtype == torch.float32:
        return Tiling(16, 16, 8, 1, 16) if backward or wide > 64 else Tiling(32, 32, 8, 2, 32)
    if wide > 128:
        return Tiling(16, 32, 8, 2, 16) if backward else Tiling(32, 32, 8, 2, 32)
    if wide > 32:
        usual, written = _BY_GENERATION.get(capability[0], _BY_GENERATION[8])
        own = None if by_distance else written.get((kernel, wide))
        return own or usual[kernel, wide]
    return Tiling(64, 32, 8, 1, 32) if backward and wide == 16 else Tiling(32, 32, 8, 2, 32)


_OF_WARPS = {
    ("forward", 64): Tiling(64, 64, 4, 2, 32),
    ("backward_rows", 64): Tiling(64, 32, 4, 2, 32),
    ("backward_keys", 64): Tiling(32, 64, 4, 2, 16),
    ("forward", 128): Tiling(128, 32, 8, 2, 16),
    ("backward_rows", 128): Tiling(32, 32, 4, 1, 16),
    ("backward_keys", 128): Tiling(32, 32, 4, 1, 16),
}
"""For sm_80 to sm_89 and sm_120, where each warp multiplies by itself."""

_OF_WARP_GROUPS = {
    ("forward", 64): Tiling(64, 64, 4, 2, 64),
    ("backward_rows", 64): Tiling(64, 32, 4, 2, 32),
    ("backward_keys", 64): Tiling(32, 64, 4, 2, 16),
    ("forward", 128): Tiling(64, 64, 4, 2, 64),
    ("backward_rows", 128): Tiling(64, 32, 4, 2, 16),
    ("backward_keys", 128): Tiling(32, 128, 8, 2, 16),
}
"""For sm_90: the products of whole warp groups need 64 own rows or keys for every four warps."""

_WITH_TENSOR_MEMORY = _OF_WARP_GROUPS | {
    ("backward_keys", 64): Tiling(32, 64, 4, 2, 32),
    ("forward", 128): Tiling(64, 64, 4, 1, 64),
    ("backward_rows", 128): Tiling(64, 32, 4, 2, 16),
    ("backward_keys", 128): Tiling(32, 64, 4, 2, 16),
}
"""For sm_100, whose products use a separate memory."""

_BY_GENERATION = {
    8: (
        _OF_WARPS,
        {
            ("forward", 64): Tiling(64, 64, 4, 3, 32),
            ("backward_rows", 64): Tiling(64, 32, 4, 2, 16),
        },
    ),
    9: (
        _OF_WARP_GROUPS,
        {
            ("forward", 64): Tiling(64, 64, 4, 2, 32),
            ("forward", 128): Tiling(64, 64, 4, 2, 32),
            ("backward_rows", 128): Tiling(64, 16, 4, 2, 16),
        },
    ),
    10: (
        _WITH_TENSOR_MEMORY,
        {
            ("forward", 64): Tiling(64, 64, 4, 2, 32),
            ("forward", 128): Tiling(64, 64, 4, 1, 32),
            ("backward_rows", 128): Tiling(64, 32, 4, 1, 16),
        },
    ),
}
"""By major compute capability: the tiles, and what differs for written-out labels, whose sums take registers."""

ELEMENTS_A_THREAD = 16
"""Elements of a tile of listed pairs per thread. More let fewer programs run at once and slow the final sums."""


def edge_tiling(size: int, value_size: int, labels: int, degree: float) -> dict[str, int]:
    """Tile sizes and warps for head sizes D and D_v, R labels and ``degree`` listed pairs per program."""
    DP, VP, RP = (max(1 << (x - 1).bit_length(), 8) if x else 8 for x in (size, value_size, labels))
    E = 8 if degree <= 32 else 16 if degree <= 128 else 32
    warps = E * max(DP, VP, RP // 2) // (32 * ELEMENTS_A_THREAD)
    return {"D": size, "DV": value_size, "DP": DP, "VP": VP, "RP": RP, "E": E, "num_warps": min(max(warps, 1), 8)}


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; (10, 0) for the interpreter.

    AMD's GPUs count otherwise and have 64 KiB of shared memory: they get the tiles of (8, 0).
    """
    if torch.version.hip is not None:
        return 8, 0
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (10, 0)


def product_size(size: int) -> int:
    """The next power of two that matrix products accept."""
    return max(16, 1 << (size - 1).bit_length())
