"""Rows of sequences split over processes: outputs and all gradients equal those of one process."""

from __future__ import annotations

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed import region_fuzz
from tests.distributed.context_cases import CHECKPOINTS, all_cases
from tests.distributed.worlds import run_world

SEEDS = 120


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_drawn_calls(tmp_path, size):
    """They equal one process, and what one process must refuse, all do."""
    found = run_world(size, tmp_path, region_fuzz.seeds, 0, SEEDS)
    assert len(found) == SEEDS
    assert not [text for texts in found.values() for of_process in texts for text in of_process]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_world(2, tmp_path_factory.mktemp("two"), all_cases)


def test_a_table_for_other_heads_is_refused_on_every_process(two):
    for text in two["wrong table"]:
        assert text.startswith("ValueError: key_table must have shape [R, D] or [H, R, D] = [5, 8] or [4, 5, 8], got")


@pytest.mark.parametrize(("kind", "place", "threaded"), CHECKPOINTS)
def test_forward_is_computed_again_in_its_region(two, kind, place, threaded):
    """Whichever of forward and backward runs within the block, and in which thread backward runs."""
    for errors in two["checkpoint", kind, place, threaded]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11


def test_a_row_hidden_by_the_lowest_number_counts_all_keys_alike(two):
    for differences in two["lowest"]:
        assert not isinstance(differences, str), differences
        assert max(differences) < 1e-5


def test_backward_exchanges_gradients_though_one_process_has_none(two):
    for errors in two["tied"]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11
