"""The attention implementation "relgraph" of transformers, against their own."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import interface  # noqa: E402
from relgraph.interop.transformers.relation import offset_of  # noqa: E402
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


@pytest.mark.parametrize("name", MODELS)
def test_models_answer_as_with_their_own(name):
    inputs = inputs_of()
    keep = inputs["attention_mask"]
    del inputs["labels"]  # a row of padding, which sees nothing, would predict the first token after it
    wanted = judge.everything(made(name, "eager"), inputs, keep=keep)
    judge.assert_same(judge.everything(made(name, "relgraph"), inputs, keep=keep), wanted, judge.SINGLE)


def test_padding_is_not_ignored():
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
        ours.Relation(rg.ClippedDistance(3), 4).attach(layer.self_attn)
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
    seen, _ = interface.attention(attention, q, k, v, None, scaling=0.5, relation_angles=None)  # no turn
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    ids = rg.ClippedDistance(3)(6).to_dense()[0][0]
    keys, values = tables.key.rows.detach()[ids], tables.value.rows.detach()[ids]
    scores = 0.5 * (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, keys))
    weights = (scores + torch.ones(6, 6).tril().log()).softmax(-1)
    wanted = weights @ v + torch.einsum("bhij,ijd->bhid", weights, values)
    torch.testing.assert_close(seen.detach(), wanted.transpose(1, 2))


def test_where_queries_are_among_the_keys():
    relation = ours.Relation(rg.ClippedDistance(2), 4)
    whole = rg.ClippedDistance(2)(9).to_dense()[0]

    def ids(q_len, mask=None):
        offset = offset_of(q_len, 9, mask, True)
        return relation(torch.zeros(1, 1, q_len, 4), 9, None, offset)[0].to_dense()[0]

    seen = torch.ones(9, 9).tril()[5:7].bool()[None, None]
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    for mask in (seen, added):
        assert torch.equal(ids(2, mask), whole[:, 5:7])
    padded = torch.cat([seen, seen & (torch.arange(9) < 4)])  # the queries of the second sequence are padding
    assert torch.equal(ids(2, mask=padded), whole[:, 5:7])
    assert torch.equal(ids(1), whole[:, 8:])
    assert torch.equal(ids(2), whole[:, :2])
    with pytest.raises(NotImplementedError, match="relation must be on causal self-attention .* got 9 keys and 2"):
        offset_of(2, 9, None, False)


def test_bad_input():
    with pytest.raises(TypeError, match="labeler must be callable and have num_labels and names, got int"):
        ours.Relation(3, 4)


@pytest.mark.parametrize("related", [False, True])
def test_sinks_are_those_of_gpt_oss(related):
    """Relations with rows of zero change nothing, and get gradients."""
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 30, "head_dim": 8, "num_local_experts": 2, "sliding_window": 4}
    found = []
    for name in ("eager", "relgraph"):
        ours.register()
        config = transformers.GptOssConfig(**sizes, num_experts_per_tok=1, attn_implementation=name)
        model = judge.randomized(transformers.GptOssForCausalLM(config)).eval()
        if related and name == "relgraph":
            ours.add_relations(model, rg.ClippedDistance(2))
        logits = model(torch.arange(3, 25).view(2, 11)).logits
        (logits * torch.linspace(-1, 1, 30)).sum().backward()
        found.append([logits, *(layer.self_attn.sinks.grad for layer in model.model.layers)])
    assert found[0][1].abs().max() > 1e-3
    if related:
        assert all(layer.self_attn.relation.tables.value.rows.grad.abs().max() > 1e-3 for layer in model.model.layers)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_relations_are_not_lost_in_silence(tmp_path):
    model = made("LlamaForCausalLM", "relgraph")
    model.set_attn_implementation("sdpa")  # without relations
    model.set_attn_implementation("relgraph")
    ours.Relation(rg.ClippedDistance(2), 4).attach(model.model.layers[0].self_attn)
    with pytest.warns(UserWarning, match="from_pretrained will leave out the Relation modules"):
        model.save_pretrained(tmp_path)
    for switched in ("sdpa", {"": "eager"}):
        with pytest.raises(ValueError, match="attn_implementation must stay 'relgraph' for a model with Relation"):
            model.set_attn_implementation(switched)
    model.set_attn_implementation("relgraph")


def test_rotary_positions_are_those_of_llama():
    llama = transformers.models.llama.modeling_llama
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64)
    query, key, positions = torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9, 16), torch.arange(5, 14)
    cos, sin = llama.LlamaRotaryEmbedding(config)(query, positions[None])
    rotary = rg.RotaryPositions(16)
    for got, wanted in zip(
        (rotary(query, positions), rotary(key, positions)),
        llama.apply_rotary_pos_emb(query, key, cos, sin),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0.0)
