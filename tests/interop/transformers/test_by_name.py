"""The name "relgraph" for T5 and similar models: the bias is a table, and everything is as with their own attention."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import interface  # noqa: E402
from tests.interop.transformers import (  # noqa: E402
    judge,
    test_deberta,
    test_speech,
    test_t5,
    test_xlnet,
)

NAMES = [f"{name}ForConditionalGeneration" for name in ("T5", "MT5", "UMT5", "SwitchTransformers")]
SIZES = {"vocab_size": 30, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}


@pytest.fixture(autouse=True)
def _registered():
    ours.register()


def named(model):
    model = copy.deepcopy(model)
    model.set_attn_implementation("relgraph")
    return model


def udop():
    options = {"d_model": 16, "d_kv": 8, "d_ff": 16, "decoder_start_token_id": 0, "attn_implementation": "eager"}
    options |= {"image_size": 8, "patch_size": 4, "max_2d_position_embeddings": 64}
    return judge.randomized(transformers.UdopForConditionalGeneration(transformers.UdopConfig(**SIZES | options)))


def udop_inputs():
    ids = torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    box = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "bbox": box, "attention_mask": judge.padded(2, 9, right=2), "labels": ids[:, :5].clone()}


def biases(model, inputs):
    """The biases that reach the attention function."""
    seen, own = [], interface.attention

    def attention(module, *args, **given):
        seen.append((module, given.get("position_bias")))
        return own(module, *args, **given)

    transformers.AttentionInterface.register("relgraph", attention)
    try:
        model(**inputs)
    finally:
        ours.register()
    return seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 150])
def test_models_answer_as_with_their_own(name, length):
    model = test_t5.tiny(name)
    inputs = test_t5.inputs_of(length, min(length, 17))
    keep = inputs["attention_mask"]
    mine = named(model)
    wanted = judge.everything(model, inputs, keep=keep)
    judge.assert_same(judge.everything(mine, inputs, keep=keep), wanted, judge.SINGLE)  # their masks are float32
    mine.set_attn_implementation("eager")
    judge.assert_same(judge.everything(mine, inputs, keep=keep), wanted, 0.0)


@pytest.mark.parametrize(("make", "inputs"), [
    (udop, udop_inputs),
    (test_t5.pix2struct, lambda: test_t5.pix2struct_inputs(40)),
])  # fmt: skip
def test_other_decoders(make, inputs):
    model, inputs = make(), inputs()
    wanted = judge.everything(model, inputs)
    judge.assert_same(judge.everything(named(model), inputs), wanted, judge.SINGLE)


def test_no_bias_of_all_pairs_is_read():
    model = named(test_t5.tiny())
    inputs = test_t5.inputs_of(20, 17)
    seen = biases(model, inputs)
    own = [bias for module, bias in seen if bias is not None and bias.dim() == 2]
    assert len(own) == 4
    assert {tuple(bias.shape) for bias in own} == {(3, 32)}
    others = [(module, bias) for module, bias in seen if bias.dim() == 4]
    assert all(module.is_decoder and not module.is_causal and not bias.any() for module, bias in others)


@pytest.mark.parametrize("name", ["T5", "UMT5"])
def test_training_checkpointing_weights_and_files(name, tmp_path):
    model = test_t5.tiny(f"{name}ForConditionalGeneration")
    inputs = test_t5.inputs_of(20, 17)
    mine = named(model)
    assert (judge.losses(mine, inputs) - judge.losses(copy.deepcopy(model), inputs)).abs().max() <= 1e-5
    mine = named(model)
    wanted = judge.everything(model, inputs, training=True)
    judge.checkpoint(mine)
    judge.assert_same(judge.everything(mine, inputs, training=True), wanted, judge.SINGLE)
    asked = inputs | {"output_attentions": True, "attention_mask": torch.ones_like(inputs["attention_mask"])}
    judge.assert_same(judge.everything(named(model), asked), judge.everything(model, asked), judge.SINGLE)
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path, attn_implementation="relgraph").to(torch.float64)
    judge.assert_same(judge.everything(back, inputs), judge.everything(model, inputs), judge.SINGLE)


def test_both_ways_agree():
    model = test_t5.tiny()
    by_name, patched = named(model), copy.deepcopy(model)
    assert not ours.report(model).patched
    reports = ours.report(by_name), ours.patch(patched)
    assert ours.report(patched) == reports[1]
    own = {one for one in reports[0].patched if one.family == "t5"}
    assert own == set(reports[1].patched)
    assert {one.family for one in reports[0].patched} == {"t5"}
    inputs = test_t5.inputs_of(20, 17)
    judge.assert_same(judge.everything(by_name, inputs), judge.everything(patched, inputs), judge.SINGLE)
    wanted = judge.everything(model, inputs)
    for one, report in zip((by_name, patched), reports, strict=True):
        assert ours.unpatch(one) == len(report.patched)
        one.set_attn_implementation("eager")
        judge.assert_same(judge.everything(one, inputs), wanted, 0.0)
        assert ours.unpatch(one) == 0
    both = named(model)
    ours.patch(both)
    assert ours.unpatch(both) == len(reports[0].patched)


@pytest.mark.parametrize(("make", "kind"), [
    (test_deberta.tiny, "DebertaV2.*Encoder"), (test_xlnet.tiny, "XLNet"),
    (test_speech.wavlm, "WavLM"),
])  # fmt: skip
def test_a_model_that_the_name_does_not_serve(make, kind):
    model = make()
    message = f"attn_implementation must not be 'relgraph' for {kind}.*patch"
    with pytest.raises(NotImplementedError, match=message):
        model.set_attn_implementation("relgraph")
    model.config._attn_implementation = "relgraph"
    with pytest.raises(NotImplementedError, match=message):
        type(model)(model.config)
    ours.patch(model)
    model.set_attn_implementation("relgraph")  # it has what the message asks for


@pytest.mark.parametrize(("make", "family"), [(test_deberta.tiny, "deberta"), (test_t5.tiny, "t5")])
def test_callback(make, family):
    model = make()
    callback = ours.RelgraphCallback()
    callback.on_init_end(None, None, None, model=model)
    assert {one.family for one in callback.report.patched} >= {family}
    assert {one.family for one in ours.report(model).patched} >= {family}


def test_callback_by_name():
    config = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1, vocab_size=9
    )
    model = transformers.LlamaForCausalLM(config)
    ours.RelgraphCallback().on_init_end(None, None, None, model=model)
    assert model.config._attn_implementation == "relgraph"
    assert [one.family for one in ours.report(model).patched] == ["interface"]
    assert ours.unpatch(model) == 1
    ours.add_relations(model, rg.ClippedDistance(2))
    assert [one.family for one in ours.report(model).patched] == ["relations"]
    assert ours.unpatch(model) == 0
    with pytest.raises(ValueError, match="model must have attention that relgraph can compute: .* got Linear"):
        ours.RelgraphCallback().on_init_end(None, None, None, model=torch.nn.Linear(2, 2))
