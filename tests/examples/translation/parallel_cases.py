"""The work of each process in ``test_parallel``, and of one process for comparison."""

from __future__ import annotations

import warnings

import torch

import relgraph as rg
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.training import Training
from tests.distributed.worlds import caught

TINY = {"width": 16, "heads": 4, "layers": 1, "hidden": 32, "per_head": True, "positions": "both", "dropout": 0.0}
SETTINGS = {"batch_tokens": 256, "precision": "float32", "warm_up": 4}
BATCHES = 4
"""Batches per update, for any number of processes."""
UPDATES = 1
IMPL = "native"
"""An implementation whose dropout depends only on the seed and the place of a pair."""
WRITTEN = {"log_every": 1, "validate_every": 4, "save_every": 1000}


def build(data, run, rank=0, world=1, **settings):
    """A training run in float64, which keeps differences by rounding tiny."""
    torch.set_default_dtype(torch.float64)
    try:
        processes = Processes(rank, world, torch.device("cpu"))
        values = {**SETTINGS, "accumulate": BATCHES // world, **settings}
        some = Training(data, run, ModelSettings(**TINY), TrainingSettings(**values), processes)
        for module in some.model.modules():
            if isinstance(module, rg.RelationAttention):
                module.impl = IMPL
        return some
    finally:
        torch.set_default_dtype(torch.float32)


def learned(some):
    """Loss and likelihood of some updates, the validation loss, and the model afterwards."""
    torch.set_default_dtype(torch.float64)
    found = []
    for _ in range(UPDATES):
        tokens = some.update()
        found.append((tokens, *some.take_window()))
    found.append(some.validate())
    torch.set_default_dtype(torch.float32)
    return found, some.model.state_dict()


def train(data, run, steps, rank=0, world=1, **settings):
    """Train to a step and save; return a description of the run at its start."""
    torch.set_default_dtype(torch.float64)
    some = build(data, run, rank, world, steps=steps, **{**WRITTEN, **settings})
    torch.set_default_dtype(torch.float64)
    begun = some.position.step
    some.train()
    torch.set_default_dtype(torch.float32)
    return begun


def cases(mesh, data, folder):
    """Make updates, and continue the run in ``folder`` that one process started, to its second step."""
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
    rank, world = mesh.get_local_rank(), mesh.size()
    yield "learned", caught(lambda: learned(build(data, folder / "none", rank, world)))
    yield "begun", caught(lambda: train(data, folder / "run", 2, rank, world))
