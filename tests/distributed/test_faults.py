"""Faults: when one process dies, freezes or raises, the others end with an error, and a run goes on from its checkpoint.

All worlds run in one process and its copies: see ``fault_worlds``.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("copies of a process are safe on Linux only", allow_module_level=True)

from tests.distributed.fault_worlds import EVERY, METHODS, World, phases


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """For some worlds, or all, their folder and what became of each; run once."""
    known = {}

    def found(full):
        if full not in known:
            folder = tmp_path_factory.mktemp("faults")
            command = [sys.executable, "-m", "tests.distributed.fault_worlds", str(folder), *(["full"] if full else [])]
            subprocess.run(command, check=True)
            known[full] = folder, json.loads((folder / "outcomes.json").read_text())
        return known[full]

    return found


def worlds(fault):
    """The worlds with this fault; those that only the full run has are slow."""
    found = []
    for full in (False, True):
        marks = [pytest.mark.slow] if full else []
        for world in (world for phase in phases(full) for world in phase):
            resumed = world.fault is None and not world.folder.startswith("whole")
            if world.fault == fault and not resumed:
                words = [world.mode, world.place, "all" if full else ""]
                found.append(pytest.param(world, full, marks=marks, id=", ".join(filter(None, words))))
    return pytest.mark.parametrize(("world", "full"), found)


@worlds(None)
def test_without_a_fault_both_end_well(outcomes, world, full):
    assert outcomes(full)[1][world.name] == {"statuses": [0, 0], "errors": ["", ""]}


@worlds("killed")
def test_a_killed_process_ends_the_other_and_the_run_resumes(outcomes, world, full):
    folder, found = outcomes(full)
    assert found[world.name]["statuses"] == [1, -9]
    assert found[world.name]["errors"][0].startswith("RuntimeError: ")
    resumed, unbroken = world._replace(fault=None, place=""), World(world.mode, None, "", f"whole {world.mode}")
    assert found[resumed.name] == {"statuses": [0, 0], "errors": ["", ""]}
    for rank in range(2):
        (began, got), (_, wanted) = (torch.load(folder / f"{each.name} {rank}.pt") for each in (resumed, unbroken))
        assert began == EVERY
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@worlds("frozen")
def test_a_process_that_does_not_answer_ends_the_other_by_the_time_limit(outcomes, world, full):
    found = outcomes(full)[1][world.name]
    assert found["statuses"] == [1, None]
    assert found["errors"][0].startswith("RuntimeError: ")
    assert "Timed out" in found["errors"][0]


@worlds("raises")
def test_an_error_on_one_process_ends_the_other(outcomes, world, full):
    found = outcomes(full)[1][world.name]
    assert found["statuses"] == [1, 1]
    assert found["errors"][1].startswith("ZeroDivisionError: what the code of a user raises")
    assert found["errors"][0].startswith("RuntimeError: ")


@worlds("shortens")
def test_lengths_that_become_unequal_in_a_later_layer_end_both(outcomes, world, full):
    found = outcomes(full)[1][world.name]
    assert found["statuses"] == [1, 1]
    assert all("Error" in error for error in found["errors"])


def test_each_method_meets_each_fault():
    few = {(world.mode, world.fault) for worlds in phases(False) for world in worlds}
    assert few == {(method, fault) for method in METHODS for fault in (None, "killed", "frozen", "raises", "shortens")}
