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
SWITCHED = os.environ.get(SWITCH, "1")
"""``RELGRAPH_TRITON`` when relgraph was imported: "0" turns the kernels off."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of query, key and value."""

MOST_SIZE = 256
"""The largest head size."""

MOST_COLUMNS = 128
"""Largest number of written-out columns that a program sums in registers."""

LEAST_CAPABILITY = (8, 0)
"""The oldest compute capability of NVIDIA that the kernels run on: bfloat16 on tensor cores, asynchronous copies."""

NOT_RECORDED = (
    "impl='triton' cannot be recorded in a CUDA graph with labels that are written out or listed over others: the size "
    "of their tile map depends on them, and a replay would not see that they changed. Record it with labels by "
    "distance, or with edges only; use impl='chunked'; or leave the call out of the graph"
)
"""A graph repeats its launches on new labels, so the launches must compute all that depends on labels."""

CHECKED_WHEN_RUN = " (checked when run)"
"""The end of the names of kernels that a traced call takes; see :mod:`relgraph.impl.triton.selfcheck`."""

_said: list[str] = []
_age: dict[torch.device, str | None] = {}


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU (``TRITON_INTERPRET=1``, set before triton is loaded)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def uses_tf32(dtype: torch.dtype) -> bool:
    """Whether torch permits products of this dtype in TF32."""
    return dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"


def is_gpu(device: torch.device) -> bool:
    """Whether the kernels are meant for this device, so that ``impl=None`` takes them."""
    return device.type == "cuda"


def is_recording(device: torch.device) -> bool:
    """Whether a CUDA graph is being recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def not_run_now(tensor: Tensor) -> bool:
    """Whether a call on this tensor is traced or only shapes are asked for: no kernel runs before this returns.

    ``torch.compiler.is_compiling`` would also be True in an eager call while another thread compiles anything.
    """
    return torch.compiler.is_dynamo_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta


def unfit(tensor: Tensor) -> str | None:
    """Why the GPU of a tensor is too old; a fake tensor means a GPU that is new enough."""
    fake = not torch.compiler.is_dynamo_compiling() and isinstance(tensor, FakeTensor)
    return None if fake else too_old(tensor.device)


def kernels(name: str, tensor: Tensor) -> str:
    """The name under which the primitive finds the kernels; a traced call takes those that are checked when run."""
    return name + CHECKED_WHEN_RUN if not_run_now(tensor) else name


def turned_off() -> str | None:
    """Why the environment turns the kernels off; None if it does not."""
    if SWITCHED == "1":
        return None
    return f"{SWITCH}=0 turns it off" if SWITCHED == "0" else f"{SWITCH} must be 0 or 1, got {SWITCHED!r}"


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


def say_missing() -> None:
    """Log once per process that a GPU cannot use the kernels because triton is not installed."""
    if not _said:
        _said.append("triton")
        line = "no fused GPU kernels, impl=None takes 'dense', 'chunked' or 'edges': triton is not installed"
        logging.getLogger("relgraph").warning("relgraph has %s; pip install triton (%s=0 ends this line)", line, SWITCH)


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
too_old._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
say_missing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
