"""The tiles of a launch: how many rows and keys, warps and stages, by head size, dtype and GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True)
class Tiling:
    """Rows and keys of a tile, warps of a program, and stages of its pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


def tiling(size: int, value_size: int, dtype: torch.dtype, capability: int, *, backward: bool) -> Tiling:
    """The tiles for heads of this size on GPUs of this compute capability, 8 or more.

    Chosen so that no register spills with half types, without options: ``python -m docs.kernels``.
    """
    wide = product_size(max(size, value_size))
    if dtype == torch.float32:
        return Tiling(16, 16, 8, 1) if backward or wide > 64 else Tiling(32, 32, 8, 2)
    if wide > 128:
        return Tiling(16, 32, 8, 2) if backward else Tiling(32, 32, 8, 2)
    if wide > 64:
        return Tiling(32, 32, 8, 1) if backward else Tiling(32, 64, 8, 1)
    if wide > 32 and capability >= 9:
        return Tiling(64, 32, 8, 2) if backward else Tiling(64, 64, 8, 2)
    return Tiling(64, 32, 8, 1) if backward and wide == 16 else Tiling(32, 32, 8, 2)


def capability(device: torch.device) -> int:
    """The major compute capability of a GPU; 10 for the interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 10


def product_size(size: int) -> int:
    """The next power of two that matrix products accept."""
    return max(16, triton.next_power_of_2(size))
