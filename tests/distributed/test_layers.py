"""Layers and models whose rows are split over processes: as one process, in training too; what is refused."""

from __future__ import annotations

import re

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.layer_cases import CASES, TRAINING, all_cases
from tests.distributed.worlds import run_world

SIZES = pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """All cases in a world of this size, run once."""
    known = {}

    def found(size):
        if size not in known:
            known[size] = run_world(size, tmp_path_factory.mktemp(f"world{size}"), all_cases)
        return known[size]

    return found


@SIZES
@pytest.mark.parametrize("name", CASES)
def test_layers_give_what_one_process_gives(world, size, name):
    for errors in world(size)[name]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11, errors


@pytest.mark.slow
def test_a_layer_compiled_outside_of_regions_works_within(world):
    for errors in world(4)["compiled"]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11, errors


@SIZES
@pytest.mark.parametrize("kind", TRAINING)
def test_training_stays_together(world, size, kind):
    for found in world(size)["training", kind]:
        assert not isinstance(found, str), found
        one, split = found
        tolerance = 3e-3 if kind == "bfloat16" else 1e-5
        assert one == pytest.approx(split, rel=tolerance)
        assert one[-1] < 0.95 * one[0]


@SIZES
def test_refused_on_every_process_alike(world, size):
    refused = {name: found for name, found in world(size).items() if name[0] == "refused"}
    wrong = []
    for name, texts in refused.items():
        messages = {str(text).split("\n", 1)[0] for text in texts}
        if len(messages) > 1 or not re.match(name[-1], *messages):
            wrong.append((name, messages))
    assert refused and not wrong


def test_equal_calls_are_compared_once(world):
    """Equal labels need not be the same object."""
    for found in world(2)["comparisons"]:
        assert found[0] > 0
        assert found[1:] == [0, 0]
