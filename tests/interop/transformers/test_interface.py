"""The attention implementation "relgraph" of transformers, against their own."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import common, interface  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 30}
MODELS = {
    "BertForMaskedLM": {},
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "Gemma2ForCausalLM": {"num_key_value_heads": 2, "head_dim": 4, "attn_logit_softcapping": 1.5, "sliding_window": 5},
}


@pytest.fixture(autouse=True)
def _registered():
    ours.register()


def made(name, attention, **options):
    config = getattr(transformers, name.removesuffix("ForMaskedLM").removesuffix("ForCausalLM") + "Config")
    model = getattr(transformers, name)(config(**SIZES, **MODELS[name], **options, attn_implementation=attention))
    return judge.randomized(model)  # in float32: a row that sees nothing is NaN in their float64


def inputs_of(left=3, right=4):
    ids = torch.randint(1, 30, (2, 13))
    return {"input_ids": ids, "attention_mask": judge.padded(2, 13, left=left, right=right), "labels": ids}


def skip_if_not_open(name):
    if name == "BertForMaskedLM" and common.version() < (5, 0):
        pytest.skip("BERT of transformers 4 knows its own implementations only")


@pytest.mark.parametrize("name", MODELS)
def test_models_answer_as_with_their_own(name):
    skip_if_not_open(name)
    inputs = inputs_of()
    keep = inputs["attention_mask"]
    del inputs["labels"]  # a row of padding, which sees nothing, would predict the first token after it
    wanted = judge.everything(made(name, "eager"), inputs, keep=keep)
    judge.assert_same(judge.everything(made(name, "relgraph"), inputs, keep=keep), wanted, judge.SINGLE)


def test_padding_is_not_ignored():
    skip_if_not_open("BertForMaskedLM")
    model = made("BertForMaskedLM", "relgraph")
    inputs = inputs_of()
    other = inputs | {"input_ids": torch.where(inputs["attention_mask"] == 0, 7, inputs["input_ids"])}
    one, two = (model(**x).logits[inputs["attention_mask"].bool()] for x in (inputs, other))
    assert torch.equal(one, two)


@pytest.mark.parametrize("cache", [None, "static"])
def test_generates_the_same_tokens(cache):
    inputs = inputs_of(right=0)
    del inputs["labels"]
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    one, two = (made("LlamaForCausalLM", a).generate(**inputs, **options) for a in ("eager", "relgraph"))
    assert torch.equal(one, two)


def test_weights_on_request():
    skip_if_not_open("BertForMaskedLM")
    inputs = inputs_of(left=0, right=0) | {"output_attentions": True}
    judge.assert_same(
        judge.everything(made("BertForMaskedLM", "relgraph"), inputs),
        judge.everything(made("BertForMaskedLM", "eager"), inputs),
        judge.SINGLE,
    )


def test_a_position_bias_is_added():
    x, bias = torch.randn(3, 2, 4, 5, 8), torch.randn(1, 4, 5, 5)
    mask = torch.rand(2, 1, 5, 5) < 0.7
    mask[..., 0] = True
    module = torch.nn.Module()
    module.is_causal = False
    added = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    wanted = ((x[0] @ x[1].mT) * 0.3 + bias + added).softmax(-1) @ x[2]
    for given in (mask, added):
        found, weights = interface.attention(module, *x, given, scaling=0.3, position_bias=bias)
        torch.testing.assert_close(found, wanted.transpose(1, 2))
        assert weights is None
    module.is_causal = True
    found, _ = interface.attention(module, *x, None, scaling=0.3, position_bias=bias)
    before = torch.ones(5, 5).tril().log()
    torch.testing.assert_close(found, (((x[0] @ x[1].mT) * 0.3 + bias + before).softmax(-1) @ x[2]).transpose(1, 2))


def test_tables_of_a_module_that_had_none():
    """They start as nothing, learn, and add both terms."""
    model = made("LlamaForCausalLM", "relgraph")
    plain = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.self_attn.relation = ours.Relation(rg.ClippedDistance(3), 4)
    inputs = inputs_of(left=0, right=0)
    torch.testing.assert_close(model(**inputs).loss, plain(**inputs).loss)
    model(**inputs).loss.backward()
    tables = model.model.layers[0].self_attn.relation.tables
    assert tables.key.rows.grad.abs().max() > 0
    assert tables.value.rows.grad.abs().max() > 0
    attention = model.model.layers[0].self_attn
    torch.nn.init.normal_(tables.key.rows)
    torch.nn.init.normal_(tables.value.rows)
    q, k, v = torch.randn(1, 4, 6, 4), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    seen, _ = interface.attention(attention, q, k, v, None, scaling=0.5)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    ids = rg.ClippedDistance(3)(6).to_dense()[0][0]
    keys, values = tables.key.rows.detach()[ids], tables.value.rows.detach()[ids]
    scores = 0.5 * (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, keys))
    weights = (scores + torch.ones(6, 6).tril().log()).softmax(-1)
    wanted = weights @ v + torch.einsum("bhij,ijd->bhid", weights, values)
    torch.testing.assert_close(seen.detach(), wanted.transpose(1, 2))


def test_where_a_cache_is_must_be_known():
    relation = ours.Relation(rg.ClippedDistance(2), 4)
    with pytest.raises(NotImplementedError, match="needs cache_position .* got 9 keys and 2 queries"):
        interface._labels(relation, 2, 9, None)
    ids = interface._labels(relation, 2, 9, torch.tensor([5, 6])).to_dense()[0]
    assert torch.equal(ids, rg.ClippedDistance(2)(9).to_dense()[0][:, 5:7])


def test_bad_input():
    with pytest.raises(TypeError, match="labeler must be one of distances, such as rg.ClippedDistance, got 3"):
        ours.Relation(3, 4)
    x = torch.randn(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match="head_mask must be None"):
        interface.attention(torch.nn.Module(), x, x, x, None, head_mask=torch.ones(1))
