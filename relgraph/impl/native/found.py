"""Functions that the kernels take from torch's libraries: products of matrices, and threads.

The kernels do not link to torch. They look up addresses by name among the libraries that torch has loaded. So one
compiled library serves every version of torch, and products are as fast as torch's on this processor.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

GEMM = {4: ("SGEMM", "sgemm_"), 8: ("DGEMM", "dgemm_")}
"""By the bytes of a number: names of the BLAS function, MKL's first, then those of OpenBLAS and others."""

BLOCKED = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
"""at::native::cpublas::brgemm of oneDNN, for float32: faster than BLAS where one matrix meets many."""

BLOCKED_HALF = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"
"""The same for bfloat16, by the processor's matrix unit if it has one."""

RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"
"""at::native::cpublas::brgemm_release, which hands the matrix unit back.

Until a thread calls it, torch assumes that the unit is still set up for its last product of this kind, even if other
operators have changed the unit since.
"""

PARALLEL = "GOMP_parallel"
"""Runs a function on all threads of the pool that torch's operators use."""


@dataclass(frozen=True)
class Found:
    """Addresses of functions; None where this build of torch does not have one.

    Attributes:
        gemm: by the bytes of a number, the product of matrices of BLAS. Missing sizes are left out.
        blocked: oneDNN's product for float32.
        blocked_half: oneDNN's product for bfloat16.
        release: gives back the state of the matrix unit after products in bfloat16, once per thread.
        parallel: runs a function on all threads.
    """

    gemm: dict[int, int]
    blocked: int | None
    blocked_half: int | None
    release: int | None
    parallel: int | None


def find() -> Found:
    """Look the functions up."""
    # its dependencies are searched too: libtorch_cpu, BLAS and the OpenMP library, wherever they are installed
    libraries = ctypes.CDLL(torch._C.__file__)
    gemm = {size: _address(libraries, *names) for size, names in GEMM.items()}
    return Found(
        {size: address for size, address in gemm.items() if address is not None},
        *(_address(libraries, name) for name in (BLOCKED, BLOCKED_HALF, RELEASE, PARALLEL)),
    )


def _address(libraries: Any, *names: str) -> int | None:
    """The address of the first of these functions that exists."""
    for name in names:
        function = getattr(libraries, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None
