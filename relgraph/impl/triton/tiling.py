"""The tiles of a launch: how many rows and keys, warps and stages, by head size, dtype and GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch


class Tiling(NamedTuple):
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
        return _TILINGS.get(capability[0], _TILINGS[8])[kernel, wide][not by_distance]
    return Tiling(64, 32, 8, 1, 32) if backward and wide == 16 else Tiling(32, 32, 8, 2, 32)


_TILINGS = {
    8: {  # sm_80 to sm_89 and sm_120, where each warp multiplies by itself
        ("forward", 64): (Tiling(64, 64, 4, 2, 32), Tiling(64, 64, 4, 3, 32)),
        ("backward_rows", 64): (Tiling(64, 32, 4, 2, 32), Tiling(64, 32, 4, 2, 16)),
        ("backward_keys", 64): (Tiling(32, 64, 4, 2, 16),) * 2,
        ("forward", 128): (Tiling(128, 32, 8, 2, 16),) * 2,
        ("backward_rows", 128): (Tiling(32, 32, 4, 1, 16),) * 2,
        ("backward_keys", 128): (Tiling(32, 32, 4, 1, 16),) * 2,
    },
    9: {  # the products of whole warp groups need 64 own rows or keys for every four warps
        ("forward", 64): (Tiling(64, 64, 4, 2, 64), Tiling(64, 64, 4, 2, 32)),
        ("backward_rows", 64): (Tiling(64, 32, 4, 2, 32),) * 2,
        ("backward_keys", 64): (Tiling(32, 64, 4, 2, 16),) * 2,
        ("forward", 128): (Tiling(64, 64, 4, 2, 64), Tiling(64, 64, 4, 2, 32)),
        ("backward_rows", 128): (Tiling(64, 32, 4, 2, 16), Tiling(64, 16, 4, 2, 16)),
        ("backward_keys", 128): (Tiling(32, 128, 8, 2, 16),) * 2,
    },
    10: {  # products use a separate memory
        ("forward", 64): (Tiling(64, 64, 4, 2, 64), Tiling(64, 64, 4, 2, 32)),
        ("backward_rows", 64): (Tiling(64, 32, 4, 2, 32),) * 2,
        ("backward_keys", 64): (Tiling(32, 64, 4, 2, 32),) * 2,
        ("forward", 128): (Tiling(64, 64, 4, 1, 64), Tiling(64, 64, 4, 1, 32)),
        ("backward_rows", 128): (Tiling(64, 32, 4, 2, 16), Tiling(64, 32, 4, 1, 16)),
        ("backward_keys", 128): (Tiling(32, 64, 4, 2, 16),) * 2,
    },
}
"""By major compute capability: for labels by distance, and for written-out labels, whose sums take registers."""

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
