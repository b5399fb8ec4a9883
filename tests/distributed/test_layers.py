"""Layers and models whose rows are split over processes: as one process, in training too; what is refused; bytes."""

from __future__ import annotations

import re

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.layer_cases import CASES, TRAINING, N, all_cases
from tests.distributed.layer_refusals import B, H
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
@pytest.mark.parametrize(("kind", "method"), TRAINING)
def test_training_stays_together(world, size, kind, method):
    for found in world(size)["training", kind, method]:
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


@SIZES
def test_bytes_are_those_of_the_cost_model(world, size):
    """Key and value of the others, by the formulas of the how-to; float32, forward and then both directions."""
    rows, numbers = N // size, 8
    keys = 2 * B * H * rows * numbers * 4
    others = size - 1
    forward, both = world(size)["sent", "allgather"][0]
    assert forward == {"gather": others * keys, "all_to_all": 0, "ring": 0}
    assert both == {"gather": others * keys, "all_to_all": others * keys, "ring": 0}
    forward, both = world(size)["sent", "ring"][0]
    assert forward["ring"] == others * keys
    assert both["ring"] == 2 * others * keys + size * keys
    forward, both = world(size)["sent", "ulysses"][0]
    tensors, lse = 2 * keys, keys // 2 // numbers  # query, key, value and output
    assert forward["all_to_all"] == others * (tensors + lse) // size
    assert both["all_to_all"] == others * (2 * tensors + lse) // size
