"""Requirements and limits of the Triton kernels; nothing here loads triton."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None
"""Whether triton is installed; it is loaded on first use."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of query, key and value."""

MOST_SIZE = 256
"""The largest head size."""

MOST_COLUMNS = 128
"""Largest number of written-out columns that a program sums in registers."""


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU (``TRITON_INTERPRET=1``, set before triton is loaded)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")
