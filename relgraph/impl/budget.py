"""How much memory a block of scores may take, by device.

On a CPU, caches decide how large blocks are, not memory. On any other device every operator costs a launch, so a block
is as large as memory allows: all heads and batch rows together, and as many query rows as fit.
"""

from __future__ import annotations

import torch

DEVICE_BYTES = 1 << 30
"""Bytes of all tensors of one block together, on a device that is not a CPU."""

CPU_BYTES = 0
"""The same on a CPU; 0 means that its caches decide how large blocks are.

Tests and ``docs/benchmarks/launches.py`` put a number here to run a GPU's blocks without a GPU.
"""


def block_bytes(device: torch.device) -> int:
    """Bytes that a block may take on this device; 0 if the caches of a CPU decide."""
    return CPU_BYTES if device.type in ("cpu", "meta") else DEVICE_BYTES
