"""Worlds of processes in which one comes to harm; ``python -m tests.distributed.fault_worlds FOLDER`` runs them.

Processes are copies of one that has loaded everything, so a world starts at once. What became of each is written to
``FOLDER/outcomes.json``.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import relgraph as rg
from tests.distributed.worlds import LOADED
from tests.layers import encoder_layer

MODES = ("CP", "TP", "FSDP2")
"""How work is split."""

STEPS, EVERY, BROKEN = 5, 2, 3
"""How many steps a run has, after how many there is a checkpoint, and the one that a fault breaks, counted from 0."""

LIMIT = 10
"""The time limit of a collective, in seconds."""

HOPELESS = 90
"""After so many seconds a process that has not ended hangs."""

ROWS, WIDTH, HEADS, BATCH = 8, 16, 4, 4


class World(NamedTuple):
    """One run of some processes.

    Attributes:
        mode: how work is split.
        fault: what happens to one process: one of ``FAULTS``, ``SHORTENS`` or None.
        place: where in the step: ``"forward"`` or ``"backward"``, between the layers, ``"inside"`` attention, or
            ``"saving"``, when the process has written its part of the second checkpoint.
        folder: where checkpoints are; a run goes on from the last one.
        size: how many processes.
        dropout: what of the weights of attention is dropped.
    """

    mode: str
    fault: str | None
    place: str
    folder: str
    size: int = 2
    dropout: float = 0.2

    @property
    def name(self):
        return f"{self.mode} {self.fault} {self.place} {self.folder} {self.size}"


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def frozen():
    os.kill(os.getpid(), signal.SIGSTOP)


def raises():
    raise ZeroDivisionError("what the code of a user raises")


PLACES = ("forward", "inside", "backward")
FAULTS = {"killed": killed, "frozen": frozen, "raises": raises}
SHORTENS = "shortens"
"""A further fault: the second layer gets fewer rows on one process, in a region that has compared lengths before."""


def model_of(mode, mesh, dropout):
    """A model whose work is split."""
    torch.manual_seed(0)
    layer = encoder_layer(WIDTH, HEADS, 32, dropout, labeler=rg.ClippedDistance(2), per_head=True, impl="chunked")
    model = rg.RelationEncoder(layer, 2).double()
    if mode == "TP":
        plan = {"self_attn": rg.distributed.HeadParallel(), "linear1": ColwiseParallel(), "linear2": RowwiseParallel()}
        for each in model.layers:
            parallelize_module(each, mesh, plan)
        return model
    if mode == "FSDP2":
        for each in model.layers:
            fully_shard(each, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return nn.parallel.DistributedDataParallel(model)


def data_of(step):
    """The whole batch of a step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, BATCH, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def last_checkpoint(folder):
    """The number of steps that the last whole checkpoint has seen, 0 if there is none."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def train(world, mesh, root):
    """Steps from the last checkpoint on; how many steps that had seen, and all parameters at the end."""
    folder, rank = root / world.folder, mesh.get_local_rank()
    model = model_of(world.mode, mesh, world.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    begins = last_checkpoint(folder)
    if begins:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        checkpoint.load(state, checkpoint_id=folder / str(begins))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    layers = (model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model).layers
    for step in range(begins, STEPS):
        broken = world.fault and step == BROKEN and rank == 1
        if broken and world.place != "saving":
            break_between(layers, world)
        torch.manual_seed(step)
        optimizer.zero_grad()
        x, y = data_of(step)
        backward(model, x, y, world.mode, mesh)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            place = folder / str(step + 1)
            writer = (DiesWriting if broken and world.place == "saving" else checkpoint.FileSystemWriter)(place)
            checkpoint.save({"model": weights, "optimizer": moments}, storage_writer=writer)
    return begins, [whole_of(p.detach()) for p in model.parameters()]


def backward(model, x, y, mode, mesh):
    """Forward and backward of what this process has of a batch."""
    block, rank = nullcontext(), mesh.get_local_rank()
    if mode == "CP":
        block = rg.distributed.context_parallel(mesh)
        x, y = (rg.distributed.Layout(ROWS, mesh.size()).shard(part, rank) for part in (x, y))
    elif mode == "FSDP2":
        x, y = (part.chunk(mesh.size())[rank] for part in (x, y))
    with block:
        (model(x) - y).square().mean().backward()


class DiesWriting(checkpoint.FileSystemWriter):
    """A process that is killed when half of its part of a checkpoint is in the folder."""

    def write_data(self, plan, planner):
        super().write_data(plan, planner)
        for file in Path(self.path).glob(f"{plan.storage_data.prefix}*"):
            os.truncate(file, file.stat().st_size // 2)
        killed()


def break_between(layers, world):
    """Let the fault come up between the two layers, or inside the second."""
    if world.fault == SHORTENS:
        layers[0].register_forward_hook(lambda _layer, _inputs, output: output[:, :-1])
        return
    strike = FAULTS[world.fault]
    if world.place == "inside":
        layers[1].self_attn.score = lambda _: strike()
        return

    def reached(_layer, _inputs, output):
        if world.place == "forward":
            strike()
        output.register_hook(lambda _: strike())

    layers[0].register_forward_hook(reached)


def whole_of(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def one_process(world, rank, root):
    """What a process does; its exit status."""
    place = root / f"{world.name} {rank}"
    try:
        limit = datetime.timedelta(seconds=LIMIT if world.fault else HOPELESS)
        store = f"file://{root}/store of {world.name}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world.size, timeout=limit)
        found = train(world, init_device_mesh("cpu", (world.size,)), root)
        torch.save(found, place.with_suffix(".pt"))
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:
        place.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
        return 1
    return 0


def start(world, root):
    """The ids of its processes, copies of this one."""
    found = []
    for rank in range(world.size):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                status = one_process(world, rank, root)
            finally:
                os._exit(status)
        found.append(process)
    return found


def end_of(process, until):
    """The exit status, negative for a signal; None for a process that has to be ended."""
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def run(worlds, root):
    """Run these worlds side by side; for each process of each its exit status and its error."""
    started = [(world, start(world, root)) for world in worlds]
    until, found = time.monotonic() + HOPELESS, {}
    for world, processes in started:
        ends = [0 if world.fault == "frozen" and rank == 1 else until for rank in range(world.size)]
        statuses = [end_of(process, end) for process, end in zip(processes, ends, strict=True)]
        texts = [root / f"{world.name} {rank}.txt" for rank in range(world.size)]
        errors = [text.read_text() if text.exists() else "" for text in texts]
        found[world.name] = {"statuses": statuses, "errors": errors}
    return found


def phases():
    """Worlds that run side by side, phase after phase; each way to split work meets a killed process once."""
    places = "forward", "backward"
    killed = [World(mode, "killed", places[at % 2], f"killed {mode}") for at, mode in enumerate(MODES)]
    saving = [World(mode, "killed", "saving", f"saving {mode}", dropout=0.0) for mode in ("CP", "TP")]
    yield [*map(unbroken, killed), *map(unbroken, saving)]
    yield [*killed, *saving]
    yield [*map(resumed, killed), *map(resumed, saving)]
    raising = [World("CP", "raises", place, f"raises {place}") for place in PLACES]
    yield [World("CP", "frozen", "forward", "frozen"), World("CP", SHORTENS, "forward", SHORTENS), *raising]


def resumed(world):
    """The world that goes on from the checkpoints of a killed one; after a broken one with more processes."""
    return world._replace(fault=None, place="", size=4 if world.place == "saving" else world.size)


def unbroken(world):
    """The world that has what a resumed one must have; without dropout one process has it too."""
    if world.place == "saving":
        return World(world.mode, None, "", f"whole {world.mode} on one", 1, 0.0)
    return World(world.mode, None, "", f"whole {world.mode}")


def main(root):
    """Run all worlds."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in LOADED:  # before there are copies
        importlib.import_module(name)
    warnings.simplefilter("error")
    found = {}
    for worlds in phases():
        found |= run(worlds, root)
    (root / "outcomes.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
