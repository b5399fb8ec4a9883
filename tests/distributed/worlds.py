"""Worlds of a few processes that run many cases at once: to load what a process needs takes seconds."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import traceback

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from relgraph.impl.native import build

BY_PLACE = "native" if build.missing() is None else "chunked"
"""Both draw dropout by place in every call, so that one process has the mask that parts have."""

LOADED = [
    "relgraph.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
]
"""What takes seconds to load."""

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
    start(size, _one, size, str(folder), cases, args)
    per_process = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    assert all(found.keys() == per_process[0].keys() for found in per_process)
    return {name: [found[name] for found in per_process] for name in per_process[0]}


def start(size, function, *args):
    """Run ``function(rank, *args)`` in ``size`` processes; an error of one is raised here.

    They are copies of a process that has loaded what takes seconds, once for all worlds. It does nothing else, so
    copies are safe.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(LOADED)
    torch.multiprocessing.start_processes(function, args, nprocs=size, start_method=method)


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
