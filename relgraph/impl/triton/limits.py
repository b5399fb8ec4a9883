"""Requirements and limits of the Triton kernels; nothing here loads triton."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

HAS_TRITON = find_spec("triton") is not None
"""Whether triton is installed; it is loaded on first use."""

SWITCH = "RELGRAPH_TRITON"
DEFAULT = "0"
"""What ``RELGRAPH_TRITON`` is where it is not set. It becomes "1" once the kernels have run on GPUs."""

_switch = os.environ.get(SWITCH, DEFAULT)
ASKED = _switch == "1"
"""Whether ``impl=None`` takes the kernels on a GPU; read when relgraph is imported."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of query, key and value."""

MOST_SIZE = 256
"""The largest head size."""

MOST_COLUMNS = 128
"""Largest number of written-out columns that a program sums in registers."""

LEAST_CAPABILITY = (8, 0)
"""The oldest compute capability of NVIDIA that the kernels run on: bfloat16 on tensor cores, asynchronous copies."""

_age: dict[torch.device, str | None] = {}


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU (``TRITON_INTERPRET=1``, set before triton is loaded)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def uses_tf32(dtype: torch.dtype) -> bool:
    """Whether torch permits products of this dtype in TF32."""
    return dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"


def is_gpu(device: torch.device) -> bool:
    """Whether the kernels are meant for this device."""
    return device.type == "cuda"


def is_recording(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def unfit(tensor: Tensor) -> str | None:
    """Why the GPU of a tensor is too old; a fake tensor means a GPU that is new enough."""
    fake = not torch.compiler.is_dynamo_compiling() and isinstance(tensor, FakeTensor)
    return None if fake else too_old(tensor.device)


def too_old(device: torch.device) -> str | None:
    """Why a GPU of this machine is too old for the kernels; None if it is not, or if there is no such GPU here."""
    if device not in _age:
        _age[device] = _too_old(device)
    return _age[device]


def _too_old(device: torch.device) -> str | None:
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_capability(device)
    if found >= LEAST_CAPABILITY:
        return None
    wanted, got = (".".join(map(str, numbers)) for numbers in (LEAST_CAPABILITY, found))
    return f"needs compute capability {wanted} or newer, got {got} ({torch.cuda.get_device_name(device)})"


_log = logging.getLogger("relgraph")
if _switch not in ("0", "1"):
    _log.warning("%s must be 0 or 1, got %r; set %s", SWITCH, _switch, SWITCH)
if ASKED and not HAS_TRITON:
    _log.warning("%s=1 has no effect without triton: pip install triton", SWITCH)


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
too_old._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
