"""A graph whose nodes are split over processes: outputs, losses and gradients are those of one process.

Starting processes takes seconds, so one world of each size runs all cases, and a test reads what came of its case.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.nodes_world import CASES, REAL, of, one_of_many
from tests.distributed.worlds import start


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def world(request, tmp_path_factory):
    """A world's size, and for each process what came of each case."""
    size, path = request.param, tmp_path_factory.mktemp("world")
    start(size, one_of_many, size, str(path))
    return size, [json.loads(Path(path, f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("case", [*CASES, "a real graph", "compiled"])
def test_a_split_graph(world, case):
    size, outcomes = world
    if case not in of(size):
        pytest.skip(f"there is no {REAL[size]}" if case == "a real graph" else "runs in the world of 4")
    faults = [outcome.get(case, "did not come that far") for outcome in outcomes]
    assert not any(faults), "\n".join(f"process {rank}: {fault}" for rank, fault in enumerate(faults))
