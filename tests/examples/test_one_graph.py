"""Tests the example of one graph on several processes: every mode has the losses of one process."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

import one_graph as example
from translation.processes import Processes

from tests.distributed.worlds import caught, run_world

MODES = [(model, mode) for model, modes in example.MODES.items() for mode in modes]
# 61 people: no number of processes divides them
SMALL = ["--people", "61", "--steps", "3"]


def losses(model, mode, mine):
    """The losses of a small run in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        given = [] if mode is None else ["--parallel", mode]
        return example.run(example.parse_arguments([*SMALL, "--model", model, *given]), mine)
    finally:
        torch.set_default_dtype(torch.float32)


def all_modes(mesh):
    mine = Processes(mesh.get_local_rank(), mesh.size(), torch.device("cpu"))
    for model, mode in MODES:
        yield (model, mode), caught(lambda: losses(model, mode, mine))  # noqa: B023


def test_every_mode_has_the_losses_of_one_process(tmp_path):
    alone = Processes(0, 1, torch.device("cpu"))
    wanted = {model: losses(model, None, alone) for model in example.MODES}
    of_two = run_world(2, tmp_path, all_modes)
    for model, mode in MODES:
        for found in of_two[model, mode]:
            assert not isinstance(found, str), found
            assert found == pytest.approx(wanted[model], rel=1e-10)


def test_kinds_of_edges_tell_camps_and_edges_themselves_do_not():
    network = example.Network.draw(400, 0)
    (source, target), kind = network.graph.edge_index, network.graph.edge_type
    same = network.camp[source] == network.camp[target]
    assert 0.47 < same.double().mean() < 0.53
    assert 0.87 < (same == (kind == 0)).double().mean() < 0.93
    assert not (network.trained & network.tested).any()
    assert bool((network.x[network.trained | network.tested, 2] == 1).all())
    pairs = source * 400 + target
    assert pairs.unique().numel() == pairs.numel()
