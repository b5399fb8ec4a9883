"""The work of each process in ``test_parallel``, and of one process for comparison."""

from __future__ import annotations

import warnings

import torch

import relgraph as rg
from examples.translation import checkpoints
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.training import Training
from tests.distributed.worlds import caught

TINY = {"width": 16, "heads": 4, "layers": 1, "hidden": 32, "per_head": True, "positions": "both", "dropout": 0.0}
SETTINGS = {"batch_tokens": 256, "precision": "float32", "warm_up": 4, "clip": 0.5}
BATCHES = 4
"""Batches per update, for any number of processes."""
UPDATES = 1
IMPL = "native"
"""An implementation whose dropout depends only on the seed and the place of a pair."""
WRITTEN = {"log_every": 1, "validate_every": 4, "save_every": 1000}


def build(data, run, mode="data", rank=0, world=1, model=None, **settings):
    """A training run in float64, which keeps differences by rounding tiny."""
    torch.set_default_dtype(torch.float64)
    try:
        processes = Processes(rank, world, torch.device("cpu"))
        values = {**SETTINGS, "accumulate": BATCHES // world, **settings}
        sizes = ModelSettings(**{**TINY, **(model or {})})
        some = Training(data, run, sizes, TrainingSettings(**values), processes, parallel=mode)
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
        tokens = some.update()[0]
        found.append((tokens, *some.take_window()))
    found.append(some.validate())
    model = checkpoints.whole_state(some.trained, some.optimizer)["model"]
    torch.set_default_dtype(torch.float32)
    return found, model


def train(data, run, mode, steps, rank=0, world=1, **settings):
    """Train to a step and save; return a description of the run at its start."""
    torch.set_default_dtype(torch.float64)
    some = build(data, run, mode, rank, world, steps=steps, **{**WRITTEN, **settings})
    torch.set_default_dtype(torch.float64)
    begun = some.position.step
    some.train(quiet=True)
    torch.set_default_dtype(torch.float32)
    return begun


def cases(mesh, data, folder, modes, parts):
    """Run some modes, and heads with dropout; check a refusal; and continue one run in ``parts``.

    Args:
        mesh: the processes.
        data: the folder that ``prepare`` wrote.
        folder: contains ``run``, which one process started.
        modes: names of modes.
        parts: modes, and the step that each takes the run to.
    """
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
    rank, world, none = mesh.get_local_rank(), mesh.size(), folder / "none"

    def begin(mode, model=None, **settings):
        return build(data, none, mode, rank, world, model, **settings)

    for mode in modes:
        yield mode, caught(lambda: learned(begin(mode)))  # noqa: B023
    yield ("heads", "dropout"), caught(lambda: learned(begin("heads", {"dropout": 0.3})))
    yield "refused", caught(lambda: begin("heads", {"heads": 1}))
    for mode, steps in parts:
        yield (mode, steps), caught(lambda: train(data, folder / "run", mode, steps, rank, world))  # noqa: B023
