"""Worlds of a few processes that run many cases at once: to start a process takes seconds."""

from __future__ import annotations

import datetime
import os
import traceback

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

SECONDS = 60
"""The time limit of a collective."""


def run_world(size, folder, cases, *args):
    """Run ``cases(mesh, *args)``, an iterator of (name, value) or (name, exception), in a world of ``size`` processes.

    Args:
        size: how many processes.
        folder: an empty folder.
        cases: a function at the top of a module.
        args: its further arguments.

    Returns:
        For each name a list, the value of each process; of an exception, it is that.
    """
    context = torch.multiprocessing.get_context("spawn")
    torch.multiprocessing.start_processes(
        _one, (size, str(folder), cases, args), nprocs=size, start_method=context.get_start_method()
    )
    per_process = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    assert all(found.keys() == per_process[0].keys() for found in per_process)
    return {name: [found[name] for found in per_process] for name in per_process[0]}


def _one(rank, size, folder, cases, args):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = datetime.timedelta(seconds=SECONDS)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=limit
    )
    found = dict(cases(init_device_mesh("cpu", (size,)), *args))
    distributed.barrier()
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def caught(call):
    """What a call gives, or its exception as text."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
