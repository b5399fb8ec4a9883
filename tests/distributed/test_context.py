"""Rows of sequences split over processes: outputs and all gradients equal those of one process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.context_cases import CASES, CHECKPOINTS, MASKS, all_cases
from tests.distributed.worlds import run_world


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_world(2, tmp_path_factory.mktemp("two"), all_cases)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return run_world(4, tmp_path_factory.mktemp("four"), all_cases)


def check(found):
    for errors in found:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("name", [*CASES, "odd heads"])
def test_two_processes_are_one(two, name):
    check(two[name])


def test_a_table_for_other_heads_is_refused_on_every_process(two):
    for text in two["wrong table"]:
        assert text.startswith("ValueError: key_table must have shape [R, D] or [H, R, D] = [5, 8] or [4, 5, 8], got")


def test_another_thread_is_outside_of_the_region(two):
    assert two["thread"] == [[True], ["not here"]]


@pytest.mark.parametrize(("kind", "place", "threaded"), CHECKPOINTS)
def test_forward_is_computed_again_in_its_region(two, kind, place, threaded):
    """Whichever of forward and backward runs within the block, and in which thread backward runs."""
    check(two["checkpoint", kind, place, threaded])


@pytest.mark.parametrize("name", MASKS)
def test_masks_whose_axes_have_one_row(two, name):
    check(two["mask", name])


def test_a_row_hidden_by_the_lowest_number_counts_all_keys_alike(two):
    for differences in two["lowest"]:
        assert not isinstance(differences, str), differences
        assert max(differences) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_four_processes_are_one(four, name):
    check(four[name])


def test_relgraph_does_not_load_torch_distributed_for_it():
    code = "import relgraph, sys; assert 'relgraph.distributed' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
