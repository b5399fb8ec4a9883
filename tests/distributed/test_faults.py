"""Faults: when one process dies, freezes or raises, the others end with an error, and a run goes on from its checkpoint.

All worlds run in one process and its copies: see ``fault_worlds``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("copies of a process are safe on Linux only", allow_module_level=True)

from tests.distributed.fault_worlds import EVERY, main, phases, resumed, unbroken

WORLDS = [world for phase in phases() for world in phase]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The folder of all worlds, and what became of each."""
    folder = tmp_path_factory.mktemp("faults")
    subprocess.run([sys.executable, "-m", main.__module__, str(folder)], check=True)
    return folder, json.loads((folder / "outcomes.json").read_text())


def worlds(fault):
    """The worlds with this fault."""
    found = {f"{world.mode}, {world.place}": world for world in WORLDS if world.fault == fault}
    return pytest.mark.parametrize("world", found.values(), ids=list(found))


def test_without_a_fault_all_end_well(outcomes):
    for world in WORLDS:
        if world.fault is None:
            assert outcomes[1][world.name] == {"statuses": [0] * world.size, "errors": [""] * world.size}


@worlds("killed")
def test_a_killed_process_ends_the_other_and_the_run_resumes(outcomes, world):
    """From the last whole checkpoint; one killed while saving leaves half of one, and twice the processes go on."""
    folder, found = outcomes
    assert found[world.name]["statuses"] == [1, -9]
    assert re.match(r"(RuntimeError|CheckpointException): ", found[world.name]["errors"][0])
    if world.place == "saving":
        assert any((folder / world.folder / str(2 * EVERY)).iterdir())
    after, whole = resumed(world), unbroken(world)
    _, wanted = torch.load(folder / f"{whole.name} 0.pt")
    for rank in range(after.size):
        began, got = torch.load(folder / f"{after.name} {rank}.pt")
        assert began == EVERY
        # a bias of keys has no gradient but rounding, which Adam divides by 1e-8, and which depends on the split
        bound = 1e-12 if after.size == whole.size else 1e-10
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)


@worlds("frozen")
def test_a_process_that_does_not_answer_ends_the_other_by_the_time_limit(outcomes, world):
    found = outcomes[1][world.name]
    assert found["statuses"] == [1, None]
    assert found["errors"][0].startswith("RuntimeError: ")
    assert "Timed out" in found["errors"][0]


@worlds("raises")
def test_an_error_on_one_process_ends_the_other(outcomes, world):
    found = outcomes[1][world.name]
    assert found["statuses"] == [1, 1]
    assert found["errors"][1].startswith("ZeroDivisionError: what the code of a user raises")
    assert found["errors"][0].startswith("RuntimeError: ")


@worlds("shortens")
def test_lengths_that_become_unequal_in_a_later_layer_end_both(outcomes, world):
    found = outcomes[1][world.name]
    assert found["statuses"] == [1, 1]
    assert all("Error" in error for error in found["errors"])
