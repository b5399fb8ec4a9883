"""Projections of other models: heads of any size, a scale, and biases on some of the four projections."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.nn import RelationAttention, RelationEncoderLayer
from relgraph.nn.projections import BIASED
from tests.layers import attention_layer, decoder_layer, encoder_layer, transformer

from .helpers import F64, by_hand, close, fill_tables

LABELER = rg.ClippedDistance(2)
SUBSETS = [names for count in range(5) for names in itertools.combinations(BIASED, count)]
OF_A_LAYER = {"head_dim": 3, "scale": 0.7, "bias": ("query", "value"), "num_kv_heads": 1}
OF_A_MODEL = {"head_dim": 3, "scale": 0.7, "attention_bias": ("query", "value", "output"), "dtype": F64}
BY_NAME = {"query": "q_proj_bias", "key": "k_proj_bias", "value": "v_proj_bias", "output": "out_proj.bias"}


def make(embed_dim=12, num_heads=5, *, num_labels=5, **options):
    """A layer whose tables and biases all hold numbers that matter."""
    torch.manual_seed(0)
    layer = attention_layer(embed_dim, num_heads, num_labels=num_labels, dtype=F64, **options)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                parameter.normal_()
    return fill_tables(layer)


def check_layer(layer, inputs, **options):
    """Values and every gradient are those of the written-out layer."""
    leaves = [*{id(x): x for x in inputs}.values(), *layer.parameters()]
    got, wanted = layer(*inputs, **options), by_hand(layer, *inputs, **options)
    close(got, wanted)
    weight = torch.randn_like(got)
    grads = [torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)]
    close(*grads)
    assert all(torch.isfinite(grad).all() for grad in grads[0])


def rows(*shape):
    return torch.randn(*shape, dtype=F64, requires_grad=True)


class TestBiases:
    @pytest.mark.parametrize("names", SUBSETS)
    @pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
    def test_every_choice(self, names, widths):
        layer = make(12, 4, bias=names, num_kv_heads=2, **widths)
        if widths:
            inputs = rows(2, 4, 12), rows(2, 6, 5), rows(2, 6, 7)
            check_layer(layer, inputs, labels=LABELER(4, 6, q_offset=0))
        else:
            check_layer(layer, (rows(2, 6, 12),), labels=LABELER(6))
            check_layer(layer, (rows(2, 4, 12), rows(2, 6, 12)), labels=LABELER(4, 6, q_offset=0))

    @pytest.mark.parametrize("names", SUBSETS)
    def test_parameters_are_those_that_are_named(self, names):
        found = {name for name, _ in make(12, 4, bias=names).named_parameters() if name.endswith("bias")}
        wanted = {BY_NAME[name] for name in names}
        if set(BIASED[:3]) <= set(names):
            wanted = (wanted & {"out_proj.bias"}) | {"in_proj_bias"}
        assert found == wanted

    @pytest.mark.parametrize("names", [BIASED, list(BIASED[::-1]), set(BIASED)])
    def test_all_names_are_true(self, names):
        named, plain = make(12, 4, bias=names), make(12, 4, bias=True)
        assert named.state_dict().keys() == plain.state_dict().keys()
        assert repr(named) == repr(plain)
        assert make(12, 4, bias=()).state_dict().keys() == make(12, 4, bias=False).state_dict().keys()

    def test_a_state_with_other_biases_is_named(self):
        plain = nn.MultiheadAttention(12, 4, batch_first=True, dtype=F64)
        layer = make(12, 4, num_labels=None, bias=("query", "value"))
        with pytest.raises(RuntimeError, match=r"Missing key.*q_proj_bias.*v_proj_bias(.|\n)*Unexpected.*in_proj_bias"):
            layer.load_state_dict(plain.state_dict())

    def test_a_bias_of_the_keys_changes_nothing(self):
        """Without tables it adds the same number to all scores of a row."""
        full, x = make(12, 4, num_labels=None), rows(2, 6, 12)
        less = make(12, 4, num_labels=None, bias=("query", "value", "output"))
        q, k, v = full.in_proj_bias.detach().split(12)
        state = {name: value for name, value in full.state_dict().items() if name != "in_proj_bias"}
        less.load_state_dict(state | {"q_proj_bias": q, "v_proj_bias": v})
        assert k.abs().min() > 0
        close(less(x), full(x))


class TestHeads:
    @pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(5, None, 3), (4, 2, 7), (3, 1, 1), (1, 1, 20)])
    @pytest.mark.parametrize("scale", [None, 1.0, 0.3])
    def test_any_size(self, heads, kv_heads, head_dim, scale):
        options = {"tables": ("key", "value", "query", "bias"), "per_head": ("bias", "key"), "scale": scale}
        layer = make(12, heads, head_dim=head_dim, num_kv_heads=kv_heads, **options)
        assert layer.head_dim == head_dim and layer.out_proj.in_features == heads * head_dim
        check_layer(layer, (rows(2, 6, 12),), labels=LABELER(6), is_causal=True)
        check_layer(layer, (rows(2, 4, 12), rows(2, 6, 12)), labels=LABELER(4, 6, q_offset=0))

    def test_other_widths_of_keys_and_values(self):
        layer = make(12, 5, head_dim=3, kdim=5, vdim=7, bias=("key",))
        shapes = {name: list(p.shape) for name, p in layer.named_parameters() if "proj" in name}
        wanted = {"q_proj_weight": [15, 12], "k_proj_weight": [15, 5], "v_proj_weight": [15, 7]}
        assert shapes == wanted | {"k_proj_bias": [15], "out_proj.weight": [12, 15]}
        check_layer(layer, (rows(2, 4, 12), rows(2, 6, 5), rows(2, 6, 7)), labels=LABELER(4, 6, q_offset=0))

    def test_the_default_is_the_shared_width(self):
        torch.manual_seed(3)
        plain = attention_layer(12, 4, num_labels=5)
        torch.manual_seed(3)
        given = attention_layer(12, 4, num_labels=5, head_dim=3)
        assert all(torch.equal(x, plain.state_dict()[name]) for name, x in given.state_dict().items())
        assert repr(plain) == repr(given)

    def test_the_rest_of_the_layer_follows(self):
        score, tables = rg.score.Bilinear.learned(5, 5, 3, dtype=F64), rg.RelationTables(5, 3, dtype=F64)
        layer = make(12, 5, head_dim=3, score=score, tables=tables, value_map=2)
        assert layer.value_map.bases.shape == (5, 2, 3, 3)
        x = rows(2, 6, 12)
        options = {"score": score, "value_map": layer.value_map()}
        close(layer(x, labels=LABELER(6)), by_hand(layer, x, labels=LABELER(6), **options))
        with pytest.raises(ValueError, match="tables must be for 5 heads of 3, got any number of heads of 4"):
            make(12, 5, head_dim=3, tables=rg.RelationTables(5, 4, dtype=F64))

    @pytest.mark.parametrize("kind", ["packed", "unbatched", "empty"])
    def test_other_inputs(self, kind):
        layer = make(12, 5, head_dim=3, scale=1.0, bias=("query", "value"))
        if kind == "packed":
            labels, x = LABELER(6, ptr=torch.tensor([0, 2, 6])), rows(6, 12)
            wanted = torch.cat([layer(x[:2], labels=LABELER(2)), layer(x[2:], labels=LABELER(4))])
            close(layer(x, labels=labels), wanted)
        elif kind == "unbatched":
            x = rows(6, 12)
            close(layer(x, labels=LABELER(6)), layer(x[None], labels=LABELER(6))[0])
        else:
            assert layer(rows(2, 0, 12), labels=LABELER(0)).shape == (2, 0, 12)

    def test_weights_and_masses(self):
        layer, x = make(12, 5, head_dim=3, scale=1.0), rows(2, 6, 12)
        _, weights, mass = layer(x, labels=LABELER(6), need_weights=True, need_label_mass=True)
        assert weights.shape == (2, 5, 6, 6) and mass.shape == (2, 5, 6, 5)
        with rg.record_attention(layer, weights=True) as record:
            layer(x, labels=LABELER(6))
        close(record[""][0].weights, weights)

    def test_scale_is_that_of_the_function(self):
        x = rows(2, 6, 12)
        layer = make(12, 4, num_labels=None, scale=1.0)
        plain = make(12, 4, num_labels=None)
        with torch.no_grad():
            plain.in_proj_weight[:12] *= 3**0.5
            plain.in_proj_bias[:12] *= 3**0.5
        close(layer(x), plain(x))


class TestOtherModels:
    def test_t5(self):
        """T5-v1.1's attention: 6 heads of 4 in width 8, no bias, scores that are not divided, biases by bucket."""
        width, heads, size = 8, 6, 4
        q, k, v = (nn.Linear(width, heads * size, bias=False, dtype=F64) for _ in range(3))
        o, buckets = nn.Linear(heads * size, width, bias=False, dtype=F64), nn.Embedding(32, heads, dtype=F64)
        labeler = rg.BucketedDistance()
        options = {"tables": ("bias",), "per_head": True, "num_labels": labeler.num_labels}
        layer = attention_layer(width, heads, head_dim=size, scale=1.0, bias=False, dtype=F64, **options)
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.cat([q.weight, k.weight, v.weight]))
            layer.out_proj.weight.copy_(o.weight)
            layer.tables.bias.rows.copy_(buckets.weight.T)
        x, labels = torch.randn(2, 40, width, dtype=F64), labeler(40)
        split = [p(x).view(2, 40, heads, size).transpose(1, 2) for p in (q, k, v)]
        scores = split[0] @ split[1].transpose(2, 3) + buckets(labels.to_dense()[0][0]).permute(2, 0, 1)
        wanted = o((scores.softmax(-1) @ split[2]).transpose(1, 2).reshape(2, 40, -1))
        close(layer(x, labels=labels), wanted)

    def test_beit(self):
        """BEiT's attention: one weight for queries, keys and values, and no bias of the keys."""
        qkv, out = nn.Linear(12, 36, bias=False, dtype=F64), nn.Linear(12, 12, dtype=F64)
        q_bias, v_bias = torch.randn(2, 12, dtype=F64)
        layer = make(12, 4, num_labels=None, bias=("query", "value", "output"))
        state = {"in_proj_weight": qkv.weight, "q_proj_bias": q_bias, "v_proj_bias": v_bias}
        layer.load_state_dict(state | {"out_proj.weight": out.weight, "out_proj.bias": out.bias})
        x = torch.randn(2, 6, 12, dtype=F64)
        joined = torch.cat([q_bias, torch.zeros(12, dtype=F64), v_bias])
        q, k, v = nn.functional.linear(x, qkv.weight, joined).view(2, 6, 3, 4, 3).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 3**0.5).softmax(-1)
        close(layer(x), out((weights @ v).transpose(1, 2).flatten(-2)))


class TestAModule:
    def test_repr(self):
        text = repr(make(**OF_A_LAYER)).split("\n")[1]
        assert text == "  12, num_heads=5, head_dim=3, num_kv_heads=1, scale=0.7, bias=('query', 'value')"

    def test_copies_and_pickles(self):
        layer, x = make(**OF_A_LAYER), torch.randn(2, 6, 12, dtype=F64)
        wanted = layer(x, labels=LABELER(6))
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            close(other(x, labels=LABELER(6)), wanted)

    def test_reset_draws_all_again(self):
        layer = make(**OF_A_LAYER)
        before = {name: p.detach().clone() for name, p in layer.named_parameters()}
        layer.reset_parameters()
        for name, parameter in layer.named_parameters():
            assert not torch.equal(parameter, before[name])
            assert (parameter.abs().max() == 0) == name.endswith("bias")

    def test_a_cache(self):
        layer, x = make(**OF_A_LAYER).eval(), torch.randn(2, 6, 12, dtype=F64)
        wanted, cache = layer(x, labels=LABELER(6), is_causal=True), rg.KVCache()
        steps = [layer(x[:, i : i + 1], labels=LABELER(6), is_causal=True, cache=cache) for i in range(6)]
        close(torch.cat(steps, 1), wanted)
        assert cache.key.shape == (2, 1, 6, 3)

    def test_compiled(self):
        layer, x = make(**OF_A_LAYER), torch.randn(2, 6, 12, dtype=F64)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        close(compiled(x, labels=LABELER(6)), layer(x, labels=LABELER(6)))


class TestTransformerLayers:
    @pytest.mark.parametrize("bias", [True, False])
    def test_options_reach_every_attention(self, bias):
        encoder = encoder_layer(12, 5, 16, labeler=LABELER, bias=bias, **OF_A_MODEL)
        decoder = decoder_layer(12, 5, 16, labeler=LABELER, bias=bias, **OF_A_MODEL)
        model = transformer(12, 5, 1, 1, 16, bias=bias, **OF_A_MODEL)
        found = [m for part in (encoder, decoder, model) for m in part.modules() if isinstance(m, RelationAttention)]
        assert len(found) == 6
        for attention in found:
            assert (attention.head_dim, attention.scale, attention.in_proj_bias) == (3, 0.7, None)
            assert attention.q_proj_bias.shape == (15,) and attention.out_proj.bias.shape == (12,)
        assert all((layer.linear1.bias is not None) == bias for layer in (encoder, decoder))

    def test_by_default_the_attention_follows_the_layer(self):
        layer = encoder_layer(12, 4, 16, bias=False)
        assert layer.self_attn.biased == ()
        layer = encoder_layer(12, 4, 16, bias=False, attention_bias=True)
        assert layer.self_attn.in_proj_bias is not None and layer.linear1.bias is None and layer.norm1.bias is None

    def test_values(self):
        torch.manual_seed(0)
        layer = fill_tables(encoder_layer(12, 5, 16, 0.0, labeler=LABELER, **OF_A_MODEL))
        x = torch.randn(2, 6, 12, dtype=F64)
        h = layer.norm1(x + by_hand(layer.self_attn, x, labels=LABELER(6)))
        close(layer(x), layer.norm2(h + layer.linear2(torch.relu(layer.linear1(h)))))

    def test_decoding_by_a_cache(self):
        torch.manual_seed(0)
        model = transformer(12, 5, 1, 2, 16, labeler=rg.ClippedDistance(2), **OF_A_MODEL).eval()
        src, tgt = torch.randn(2, 5, 12, dtype=F64), torch.randn(2, 4, 12, dtype=F64)
        memory, cache = model.encode(src), model.new_cache()
        steps = [model.decode(tgt[:, i : i + 1], memory, cache=cache) for i in range(4)]
        close(torch.cat(steps, 1), model(src, tgt))

    @pytest.mark.parametrize("options", [{"head_dim": 4}, {"bias": ("query",)}])
    def test_a_plain_layer_keeps_its_weights(self, options):
        plain = torch.nn.TransformerEncoderLayer(12, 4, 16, batch_first=True)
        with pytest.raises(ValueError, match="must have the parameters of layer: self_attn.in_proj_"):
            RelationEncoderLayer.from_plain(plain, attention=rg.RelationAttention(12, 4, **options))
