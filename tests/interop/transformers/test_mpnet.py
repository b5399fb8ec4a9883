"""MPNet against the code of transformers."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tests.interop.transformers import judge  # noqa: E402


def tiny(kind="ForMaskedLM", **options):
    given = {
        "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 32, "max_position_embeddings": 200, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    config = transformers.MPNetConfig(**given | options)
    return judge.randomized(getattr(transformers, f"MPNet{kind}")(config)).double()


def inputs_of(length, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    ids = torch.randint(3, 50, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def compare(model, inputs):
    return judge.assert_parity(model, inputs, keep=inputs["attention_mask"])


@pytest.mark.parametrize("length", [1, 8, 9, 16, 127, 129, 150])
def test_outputs_and_all_gradients_on_both_sides_of_every_border(length):
    report = compare(tiny(), inputs_of(length) | {"output_hidden_states": True})
    assert not report.unpatched
    assert len(report.patched) == 3  # two layers and the encoder


def test_more_rows_than_buckets():
    """The configuration's number of buckets is that of the rows; 32 of them are read."""
    compare(tiny(relative_attention_num_buckets=40), inputs_of(150))
