"""Worlds of a few gloo processes on this machine."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

MINUTES = 30
"""The time limit of a collective: a process that computes is waited for."""

PROMPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
"""Options of glibc with which freed memory goes back to the system at once, so that a peak is what is held."""


def run_world(
    size: int, function: Callable[..., Any], *given: Any, environment: dict[str, str] | None = None
) -> list[Any]:
    """What ``function(mesh, *given)`` gives on each of ``size`` new processes.

    Args:
        size: how many processes.
        function: a function at the top of a module.
        given: its further arguments.
        environment: variables that the processes find set before they start.
    """
    kept = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **(environment or {})})
        try:
            torch.multiprocessing.start_processes(
                _one, (size, folder, torch.get_num_threads(), function, given), nprocs=size, start_method="spawn"
            )
        finally:
            os.environ.clear()
            os.environ.update(kept)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(size)]


def _one(rank: int, size: int, folder: str, threads: int, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size,
        timeout=datetime.timedelta(minutes=MINUTES),
    )  # fmt: skip
    mesh: DeviceMesh = init_device_mesh("cpu", (size,))
    torch.save(function(mesh, *given), Path(folder, f"{rank}.pt"))
    distributed.barrier()
    distributed.destroy_process_group()
