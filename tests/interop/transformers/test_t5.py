"""T5 and its kin against the code of transformers."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

IMPLEMENTATIONS = ("eager", "sdpa")
BORDERS = (1, 8, 9, 16, 127, 129, 150)
"""Lengths on both sides of the borders of buckets."""


def tiny(name="T5ForConditionalGeneration", attention="eager", **options):
    config = getattr(
        transformers, name.removesuffix("ForConditionalGeneration").removesuffix("EncoderModel") + "Config"
    )
    sizes = {
        "vocab_size": 50, "d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 3,
    }  # fmt: skip
    more = {"decoder_start_token_id": 0, "dropout_rate": 0.0, "attn_implementation": attention}
    return judge.randomized(getattr(transformers, name)(config(**sizes | more | options))).double()


def inputs_of(length, target, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    ids = torch.randint(1, 50, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(1, 50, (batch, target))}


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "name",
    ["T5", "MT5", "UMT5", "SwitchTransformers", "LongT5"],
)
def test_outputs_and_all_gradients(name, attention):
    options = {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0} if name == "SwitchTransformers" else {}
    try:
        model = tiny(f"{name}ForConditionalGeneration", attention, **options)
    except ValueError as error:
        pytest.skip(f"transformers: {str(error)[:80]}")
    inputs = inputs_of(40, 37) | {"output_hidden_states": True}
    allowed = judge.SINGLE if name == "LongT5" else judge.EXACT  # the softmax of its encoder is in float32
    report = judge.assert_parity(model, inputs, keep=inputs["attention_mask"], allowed=allowed)
    assert not report.unpatched
    assert sum(one.kind.endswith("Attention") for one in report.patched) == 6


def longt5(radius=5):
    return tiny("LongT5ForConditionalGeneration", local_radius=radius)


@pytest.mark.parametrize("length", [1, 5, 6, 12, 13, 40])
def test_longt5_within_its_radius(length):
    inputs = inputs_of(length, 7)
    judge.assert_parity(longt5(), inputs, keep=inputs["attention_mask"], allowed=judge.SINGLE)


def test_what_longt5_refuses():
    model = longt5()
    ours.patch(model)
    with pytest.raises(NotImplementedError, match="output_attentions must be False in a patched LongT5LocalAttention"):
        model(**inputs_of(9, 3), output_attentions=True)
    module = model.encoder.block[0].layer[0].LocalSelfAttention
    with pytest.raises(ValueError, match="mask must be that of the encoder around a patched LongT5Local.*, got None"):
        module(torch.randn(1, 9, 24, dtype=torch.float64))
    other = tiny("LongT5ForConditionalGeneration", encoder_attention_type="transient-global")
    assert {one.why[:30] for one in ours.patch(other).unpatched} == {"its queries also see averages "}


KINDS = [{"type": "1d"}, {"type": "horizontal"}, {"type": "vertical"}]


def udop(kinds=KINDS, attention="eager"):
    """Text and an image of 2 × 2 patches; ``kinds`` are those of the biases of its encoder."""
    more = {"relative_bias_args": kinds, "image_size": 8, "patch_size": 4, "max_2d_position_embeddings": 64}
    return tiny("UdopForConditionalGeneration", attention, **more)


def udop_inputs(length, target):
    boxes = torch.rand(2, length, 4, dtype=torch.float64).sort(-1).values
    return inputs_of(length, target) | {"bbox": boxes, "pixel_values": torch.randn(2, 3, 8, 8, dtype=torch.float64)}


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("kinds", [KINDS, KINDS[1:2], KINDS[:1]], ids=len)
def test_udop(kinds, attention):
    inputs = udop_inputs(30, 11) | {"output_hidden_states": True}
    mask = torch.cat((inputs["attention_mask"], torch.ones(2, 4)), 1)  # patches come after the text
    report = judge.assert_parity(udop(kinds, attention), inputs, keep=mask, allowed=judge.EXACT)
    assert not report.unpatched
    assert len(report.patched) == 6 + 2  # the decoder has biases too, which it does not use


def test_udop_with_rows_for_prefixes():
    model = udop([{"type": "1d", "prefix_bucket": True}])
    ours.patch(model)
    with pytest.raises(NotImplementedError, match="prefix_bucket must be False in the biases of a patched UDOP"):
        model(**udop_inputs(8, 3))


def pix2struct():
    """The text decoder over states of an image, with causal attention and attention over the states."""
    sizes = {"vocab_size": 50, "hidden_size": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 3}
    sizes |= {"initializer_range": 0.02}  # which the class reads and its configuration has not
    config = transformers.Pix2StructTextConfig(**sizes, dropout_rate=0.0, attn_implementation="eager")
    return judge.randomized(transformers.Pix2StructTextModel(config)).double()


def pix2struct_inputs(length):
    mask = judge.padded(2, length, right=5)  # a row that sees nothing is NaN in their float64
    states = torch.randn(2, 12, 24, dtype=torch.float64)
    given = {"input_ids": torch.randint(1, 50, (2, length)), "attention_mask": mask, "encoder_hidden_states": states}
    return given | {"labels": torch.randint(1, 50, (2, length)), "encoder_attention_mask": judge.padded(2, 12, right=4)}


@pytest.mark.parametrize("length", [17, 150])
def test_pix2struct(length):
    inputs = pix2struct_inputs(length) | {"output_hidden_states": True}
    report = judge.assert_parity(pix2struct(), inputs, keep=inputs["attention_mask"], allowed=judge.EXACT)
    assert [one.kind for one in report.patched] == ["Pix2StructTextAttention"] * 4
    assert not report.unpatched
    judge.assert_parity(
        pix2struct(), inputs | {"output_attentions": True}, keep=inputs["attention_mask"], allowed=judge.EXACT
    )


def test_pix2struct_generates():
    model = pix2struct()
    mine = copy.deepcopy(model)
    ours.patch(mine)
    given = pix2struct_inputs(12)
    ids, given = given["input_ids"], {"encoder_hidden_states": given["encoder_hidden_states"]}
    caches = [transformers.EncoderDecoderCache(*(transformers.DynamicCache() for _ in range(2))) for _ in range(2)]
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        wanted, found = (
            one(ids[:, begin:end], **given, cache=cache, use_cache=True).logits
            for one, cache in zip((model, mine), caches, strict=True)
        )
        torch.testing.assert_close(found, wanted, atol=judge.EXACT, rtol=judge.EXACT)


@pytest.mark.parametrize("length", BORDERS)
def test_lengths_on_both_sides_of_every_border(length):
    inputs = inputs_of(length, length)
    judge.assert_parity(tiny(), inputs, keep=inputs["attention_mask"], allowed=judge.EXACT)


@pytest.mark.parametrize("name", ["T5", "UMT5"])
def test_weights_are_computed_on_request_only(name, monkeypatch):
    model = tiny(f"{name}ForConditionalGeneration")
    ours.patch(model)
    inputs = inputs_of(20, 17)
    model(**inputs, output_attentions=True)
    judge.refuse_weights(monkeypatch)
    assert not model(**inputs).get("encoder_attentions")
    with pytest.raises(TypeError, match="weights are asked for"):
        model(**inputs, output_attentions=True)


class Plain(transformers.models.t5.modeling_t5.T5Attention):
    """A class of a user that computes as T5 does."""


class OwnForward(transformers.models.t5.modeling_t5.T5Attention):
    def forward(self, *args, **given):
        return super().forward(*args, **given)


def attention_of(model, layer):
    return model.encoder.block[layer].layer[0].SelfAttention


def test_a_stack_is_patched_whole_or_not():
    """Its attention modules share one bias: those of the other code cannot read a table."""
    model = tiny()
    attention_of(model, 0).__class__ = Plain
    attention_of(model, 1).__class__ = OwnForward
    inputs = inputs_of(20, 17)
    mine = copy.deepcopy(model)
    report = ours.patch(mine)
    assert all(one.name.startswith("decoder.") for one in report.patched)
    reasons = {one.name.removesuffix(".layer.0.SelfAttention"): one.why for one in report.unpatched}
    assert reasons["encoder.block.1"] == "its class has a forward of its own"
    assert "shares one bias with encoder.block.1.layer.0.SelfAttention" in reasons["encoder.block.0"]
    judge.assert_same(judge.everything(mine, inputs), judge.everything(model, inputs), judge.EXACT)
    attention_of(model, 1).__class__ = Plain
    assert not ours.patch(model).unpatched
    encoder = tiny("T5EncoderModel")
    attention_of(encoder, 0).__class__ = OwnForward
    with pytest.raises(ValueError, match="no attention that can be patched"):
        ours.patch(encoder)
