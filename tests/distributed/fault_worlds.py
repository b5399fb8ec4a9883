"""Worlds of two processes in which one comes to harm; ``python -m tests.distributed.fault_worlds FOLDER`` runs some,
and with a further word ``full`` all.

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

METHODS = ("allgather", "ring", "ulysses")
MODES = (*METHODS, "TP", "FSDP2")
STEPS, EVERY, BROKEN = 5, 2, 3
"""How many steps a run has, after how many there is a checkpoint, and the one that a fault breaks, counted from 0."""

LIMIT = 10
"""The time limit of a collective, in seconds."""

HOPELESS = 90
"""After so many seconds a process that has not ended hangs."""

ROWS, WIDTH, HEADS, BATCH = 8, 16, 4, 2


class World(NamedTuple):
    """One run of two processes.

    Attributes:
        mode: how work is split.
        fault: what happens to one process: one of ``FAULTS``, ``SHORTENS`` or None.
        place: where in the step: ``"forward"`` or ``"backward"``, between the layers, or ``"inside"`` attention.
        folder: where checkpoints are; a run goes on from the last one.
    """

    mode: str
    fault: str | None
    place: str
    folder: str

    @property
    def name(self):
        return f"{self.mode} {self.fault} {self.place} {self.folder}"


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def frozen():
    os.kill(os.getpid(), signal.SIGSTOP)


def raises():
    raise ZeroDivisionError("what the code of a user raises")


FAULTS = {"killed": killed, "frozen": frozen, "raises": raises}
SHORTENS = "shortens"
"""A further fault: the second layer gets fewer rows on one process, in a region that has compared lengths before."""


def model_of(mode, mesh):
    """The module that is called, and the one that learns."""
    torch.manual_seed(0)
    layer = rg.RelationEncoderLayer(WIDTH, HEADS, 32, 0.2, labeler=rg.ClippedDistance(2), per_head=True, impl="chunked")
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
    model = model_of(world.mode, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    begins = last_checkpoint(folder)
    if begins:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        checkpoint.load(state, checkpoint_id=folder / str(begins))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    layers = (model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model).layers
    for step in range(begins, STEPS):
        if world.fault and step == BROKEN and rank == 1:
            break_between(layers, world)
        torch.manual_seed(step)
        optimizer.zero_grad()
        x, y = data_of(step)
        block = nullcontext()
        if world.mode in METHODS:
            block = rg.distributed.context_parallel(mesh, method=world.mode)
            x, y = (rg.distributed.Layout.even(ROWS, mesh.size()).shard(part, rank) for part in (x, y))
        elif world.mode == "FSDP2":
            x, y = (part.chunk(mesh.size())[rank] for part in (x, y))
        with block:
            (model(x) - y).square().mean().backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(step + 1))
    return begins, [whole_of(p.detach()) for p in model.parameters()]


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
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=limit)
        found = train(world, init_device_mesh("cpu", (2,)), root)
        torch.save(found, place.with_suffix(".pt"))
        distributed.barrier()
        distributed.destroy_process_group()
    except BaseException as error:
        place.with_suffix(".txt").write_text(f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
        return 1
    return 0


def start(world, root):
    """The ids of two processes, copies of this one."""
    found = []
    for rank in range(2):
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
        statuses = [end_of(processes[0], until)]
        statuses.append(end_of(processes[1], 0 if world.fault == "frozen" else until))
        texts = [root / f"{world.name} {rank}.txt" for rank in range(2)]
        errors = [text.read_text() if text.exists() else "" for text in texts]
        found[world.name] = {"statuses": statuses, "errors": errors}
    return found


def phases(full):
    """Worlds that run side by side, phase after phase; each way to split rows with one fault of a kind, or all."""
    modes = MODES if full else METHODS

    def broken(fault, *places):
        split = {place: modes if full else modes[at :: len(places)] for at, place in enumerate(places)}
        return [World(mode, fault, place, f"{fault} {place} {mode}") for place in places for mode in split[place]]

    killed = broken("killed", "forward", "backward")
    yield [World(mode, None, "", f"whole {mode}") for mode in modes]
    yield killed
    yield [world._replace(fault=None, place="") for world in killed]
    unequal = [World(method, SHORTENS, "forward", f"{SHORTENS} {method}") for method in METHODS]
    yield [*broken("frozen", "forward"), *unequal, *broken("raises", "forward", "inside", "backward")]


def main(root, full):
    """Run all worlds."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("error")
    for name in LOADED:  # before there are copies
        importlib.import_module(name)
    found = {}
    for worlds in phases(full):
        found |= run(worlds, root)
    (root / "outcomes.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["full"])
