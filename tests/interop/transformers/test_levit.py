"""LeViT against the code of transformers."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402


def tiny():
    """Grids of 5 × 5, 3 × 3 and 2 × 2 positions, with a layer that halves them after the first and the second."""
    sizes = {"image_size": 80, "hidden_sizes": [24, 32, 40], "num_attention_heads": [2, 2, 3], "depths": [2, 1, 1]}
    config = transformers.LevitConfig(**sizes, key_dim=[8, 8, 8], num_labels=5)
    return judge.randomized(transformers.LevitForImageClassification(config)).double()


def image():
    return {"pixel_values": torch.randn(2, 3, 80, 80, dtype=torch.float64), "labels": torch.tensor([0, 1])}


def test_outputs_and_all_gradients():
    report = judge.assert_parity(tiny(), image() | {"output_hidden_states": True})
    assert not report.unpatched
    assert len(report.patched) == 6


def test_training_and_files(tmp_path):
    """One step: in eval mode theirs keeps biases with their graph, so that a second step fails."""
    model, inputs = tiny(), image()
    mine = copy.deepcopy(model)
    ours.patch(mine)
    wanted = judge.everything(model, inputs, training=True)
    judge.assert_same(judge.everything(mine, inputs, training=True), wanted, judge.EXACT)
    judge.assert_saved_and_loaded(tiny(), image(), tmp_path, judge.EXACT)


def test_labels_are_made_once_and_moved_with_the_model():
    model = tiny()
    ours.patch(model)
    first = model(**image()).logits
    assert first.shape == (2, 5)
    meta = model.to("meta")
    assert meta(image()["pixel_values"].to("meta")).logits.shape == (2, 5)
