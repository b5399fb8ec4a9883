"""LayoutLMv2 and v3 against the code of transformers."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import layoutlm  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The `device` argument is deprecated:FutureWarning")  # their own call

BINS = {"rel_pos_bins": 8, "max_rel_pos": 20, "rel_2d_pos_bins": 12, "max_rel_2d_pos": 60}
SIZES = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32,
    "max_position_embeddings": 200, "max_2d_position_embeddings": 1024, "coordinate_size": 4, "shape_size": 4,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "has_relative_attention_bias": True,
    "has_spatial_attention_bias": True,
}  # fmt: skip


def tiny(kind="ForTokenClassification", **options):
    given = SIZES | BINS | {"input_size": 32, "patch_size": 8, "num_labels": 4, "visual_embed": True}
    given["attn_implementation"] = "eager"  # no other gives weights
    config = transformers.LayoutLMv3Config(**given | options)
    return judge.randomized(getattr(transformers, f"LayoutLMv3{kind}")(config)).double()


def encoder_v2(**options):
    from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2Encoder

    config = transformers.LayoutLMv2Config(**SIZES | BINS | options)
    return judge.randomized(LayoutLMv2Encoder(config))


def inputs_of(length, image=True, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    corner = torch.randint(0, 900, (batch, length, 2))
    boxes = torch.cat([corner, corner + torch.randint(0, 100, (batch, length, 2))], -1)
    inputs = {"input_ids": torch.randint(3, 50, (batch, length)), "bbox": boxes, "attention_mask": mask}
    if image:
        inputs["pixel_values"] = torch.randn(batch, 3, 32, 32, dtype=torch.float64)
    return inputs


def labeled(length):
    inputs = inputs_of(length)
    labels = torch.randint(0, 4, inputs["input_ids"].shape).masked_fill(inputs["attention_mask"] == 0, -100)
    return inputs | {"labels": labels}


def compare(model, inputs):
    return judge.assert_parity(model, inputs, keep=inputs["attention_mask"])


@pytest.mark.parametrize(("length", "options"), [
    (1, {}), (3, {"has_spatial_attention_bias": False}), (5, {}), (20, {}), (21, {"has_spatial_attention_bias": False}),
])  # fmt: skip
def test_text_and_image(length, options):
    report = compare(tiny(**options), inputs_of(length))
    assert not report.unpatched
    assert len(report.patched) == 3  # two layers and the encoder


def test_default_bins_with_losses():
    """32 buckets of text up to 128 and 64 of the page up to 256, as published."""
    bins = {"rel_pos_bins": 32, "max_rel_pos": 128, "rel_2d_pos_bins": 64, "max_rel_2d_pos": 256}
    compare(tiny(**bins), labeled(150))


@pytest.mark.parametrize("options", [
    {}, {"has_relative_attention_bias": False}, {"has_spatial_attention_bias": False}, {"fast_qkv": False},
], ids=["all", "page", "text", "slow"])  # fmt: skip
def test_encoder_of_v2(options):
    """The encoder of LayoutLMv2; its model needs detectron2. It works in float32 only."""
    mask, boxes = judge.padded(2, 40, 3, 5), inputs_of(40)["bbox"]
    inputs = {
        "hidden_states": torch.randn(2, 40, 24),
        "attention_mask": (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min,
        "bbox": boxes,
        "position_ids": torch.arange(40).expand(2, -1),
    }
    report = judge.assert_parity(encoder_v2(**options), inputs, keep=mask, allowed=judge.SINGLE)
    assert len(report.patched) == 3


def test_text_alone_without_biases_of_all_pairs():
    """As in transformers, the tables get no gradient. A layer gets a mask for all heads; biases are three times that."""
    inputs = inputs_of(100, image=False) | {"output_hidden_states": True}
    model = tiny("Model", visual_embed=False)
    compare(model, inputs)
    ours.patch(model)
    seen = []
    model.encoder.layer[1].attention.self.register_forward_pre_hook(
        lambda _, args, given: seen.extend([*args, *given.values()]), with_kwargs=True
    )
    assert not any("rel_pos" in name for name in judge.everything(model, inputs))
    assert max(x.untyped_storage().nbytes() for x in seen if isinstance(x, torch.Tensor)) <= 2 * 100 * 100 * 8
    assert [len(x.tables) for x in seen if isinstance(x, layoutlm.Biases)] == [3]
