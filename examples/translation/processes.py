"""The processes of a training run: a single one, or those that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed


@dataclass(frozen=True)
class Processes:
    """This process's rank, the number of processes, and this process's device."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all processes."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()


def find_device() -> torch.device:
    """This process's GPU if there is one, else the CPU."""
    return torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu").device


@contextmanager
def processes() -> Iterator[Processes]:
    """Join the processes that torchrun started, each on its own GPU; without torchrun, use this process only."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(0, 1, find_device())
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    here = find_device()
    distributed.init_process_group("nccl" if here.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), world, here)
        distributed.barrier()  # all have read what the first process wrote before one of them ends
    finally:
        distributed.destroy_process_group()
