"""Layers and models whose rows are split over processes: as one process, in training too; what is refused; bytes."""

from __future__ import annotations

import itertools
import re

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.layer_cases import CASES, METHODS, TRAINING, B, H, N, all_cases
from tests.distributed.worlds import run_world

SIZES = pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
SPLITS = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """All cases in a world of this size, run once."""
    known = {}

    def found(size):
        if size not in known:
            known[size] = run_world(size, tmp_path_factory.mktemp(f"world{size}"), all_cases)
        return known[size]

    return found


OF_OWN_ROWS = "raw ids of own rows", "ulysses"  # refused: ulysses attends from all rows


@SIZES
@pytest.mark.parametrize(
    ("name", "method"), [both for both in itertools.product(CASES, METHODS) if both != OF_OWN_ROWS]
)
def test_layers_give_what_one_process_gives(world, size, name, method):
    for errors in world(size)[name, method]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11, errors


@pytest.mark.slow
@SPLITS
def test_a_layer_compiled_outside_of_regions_works_within(world, method):
    for errors in world(4)["compiled", method]:
        assert not isinstance(errors, str), errors
        assert max(errors) < 1e-11, errors


@SIZES
@SPLITS
@pytest.mark.parametrize("name", TRAINING)
def test_training_stays_together(world, size, name, method):
    for found in world(size)["training", name, method]:
        assert not isinstance(found, str), found
        one, split = found
        tolerance = 3e-3 if name == "bfloat16" else 1e-5
        assert one == pytest.approx(split, rel=tolerance)
        assert one[-1] < 0.95 * one[0]


REFUSED = {
    "unequal lengths": r"ValueError: query must be the same .*, 4, 8\] on process 0, .*, 3, 8\] on process 1",
    "unequal lengths of keys": r"ValueError: key must be the same .*, 4, 8\] on process 0, .*, 3, 8\] on process 1",
    "lengths that are not those of the layout": r"ValueError: inputs must hold the 4 rows .* process 1, got length 3; on",
    "lengths in a layer that are not those of the layout": r"ValueError: inputs must hold the 4 rows .*got length 3; on",
    "other batches": r"ValueError: query must be the same .* \[2, 4, 4, 8\] on process 0, .* \[3, 4, 4, 8\] on process 1",
    "another dtype": r"ValueError: query must be the same .* torch.float32 .* on process 0, torch.float64 .* on process 1",
    "another order": r"ValueError: is_causal must be the same .*, got False on process 0, True on process 1",
    "dropout on one process": r"ValueError: dropout_p must be the same .*, got 0.0 on process 0, 0.5 on process 1",
    "other labels": r"ValueError: labels must be the same .*digest .* on process 0, .* on process 1",
    "labels of another length": r"ValueError: labels must be the same .*digest .* on process 0, .* on process 1",
    "labels of a part": r"ValueError: labels must cover \[N_q, N_k\]",
    "labels of other rows": r"ValueError: labels must ",
    "labels on one process": r"ValueError: labels must be the same .* on process 0, nothing on process 1",
    "packed on one process": r"ValueError: labels must be the same .*DistanceLabels .* on process 0, nothing on process 1",
    "another kind on one process": r"TypeError: labels must be .*; on process 1",
    "unequal lengths in a layer": r"ValueError: query must be the same .*, 4, 16\] on process 0, .*, 3, 16\] on process 1",
    "unequal lengths in a stack": r"ValueError: the number of rows must be the same .*, got 4 on process 0, 3 on",
    "labels of another length in a layer": r"ValueError: labels must cover .*, got \[\d+, \d+\]; on process 1",
    "labels for a layer of one process": r"ValueError: labels must be given, .* got None; on process 1",
    "weights": r"NotImplementedError: need_weights",
    "cache": r"NotImplementedError: cache must be None within context_parallel",
    "edge_attention": r"NotImplementedError: edge_attention attends to the nodes that this process holds",
    "edge vectors": r"NotImplementedError: edge_attr",
    "mask of pairs without all keys": r"ValueError: attn_mask must have all \d+ keys",
    "parallel edges": r"NotImplementedError: impl='chunked' has one score per pair, so parallel edges cannot",
    "maps over parallel edges": r"NotImplementedError: value_map needs one label per pair, got edges with duplicates=",
    "a causal order without an offset": r"ValueError: q_offset must be given with is_causal when queries and keys diff",
    "other widths in a layer": r"ValueError: query must be the same .*, 4, 16\] on process 0, .*, 4, 15\] on process 1",
    "padding on one process": r"ValueError: key_padding_mask must be the same .* got None on process 0, torch.bool",
    "a mask of another length in a layer": r"ValueError: attn_mask must be the same .*, 8\] on process 0, .*, 9\] on",
    "ids without rows in a layer": r"ValueError: labels must have shape \[N_q, N_k\] .*, got \[8\]; on process 1",
}
"""Errors that each method raises."""

DIFFERENT = {
    "q_offset tensors": "q_offset", "weights of a score": "score", "activations": "score",
    "functions of scores": "score", "attn_mask on one process": "attn_mask", "axes of attn_mask": "attn_mask",
    "value size": "value", "value dtype": "value", "gradients": "key", "autocast": "the dtype of autocast",
    "ids": "labels",
}  # fmt: skip
"""Which argument differs if the case has another name."""

for case in (
    "dropout_p", "scale", "q_offset", "score", "value_table", "key_table", "attn_mask", "row_scores", "value_map",
    "content_bias", "enable_gqa", "impl", "need_label_mass", "need_lse", "need_weights", *DIFFERENT,
):  # fmt: skip
    what = DIFFERENT.get(case, case)
    REFUSED[f"other {case}"] = (
        rf"ValueError: {what} must be the same on all processes, got .* on process 0, .* process 1"
    )

REFUSED_HERE = {
    ("heads", "ulysses"): r"ValueError: query must have a multiple of \d heads .*, got 3",
    ("heads of keys", "ulysses"): r"ValueError: key must have a multiple of \d heads .*, got 1",
    ("other methods", "any"): r"ValueError: method must be the same .*, got allgather on process 0, ring on process 1",
    ("other layouts, named", "any"): r"ValueError: layout must be the same .*, got even on process 0, head-tail on",
    (
        "other layouts, given",
        "any",
    ): r"ValueError: layout must be the same .*, got \(\(\(0, 4\),\), .* on process 0, \(\(\(4,",
    (
        "other layouts, of both",
        "any",
    ): r"ValueError: layout must be the same .*, got even on process 0, \(\(\(0, 4\),\),",
}
ALL_REFUSED = {(name, method): said for name, said in REFUSED.items() for method in METHODS} | REFUSED_HERE


@SIZES
@pytest.mark.parametrize(("name", "method"), ALL_REFUSED)
def test_refused_on_every_process_alike(world, size, name, method):
    messages = {str(found).split("\n", 1)[0] for found in world(size)["refused", name, method]}
    assert len(messages) == 1, messages
    assert re.match(ALL_REFUSED[name, method], messages.pop())


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
