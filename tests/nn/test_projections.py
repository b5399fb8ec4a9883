"""Projections of other models: heads of any size, a scale, and biases on some of the four projections."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.nn import RelationAttention
from relgraph.nn.projections import BIASED
from tests.layers import attention_layer, decoder_layer, encoder_layer, transformer

from .helpers import F64, by_hand, close, fill_tables

LABELER = rg.ClippedDistance(2)
SUBSETS = [names for count in range(5) for names in itertools.combinations(BIASED, count)]
OF_A_LAYER = {"head_dim": 3, "scale": 0.7, "bias": ("query", "value"), "num_kv_heads": 1}
OF_A_MODEL = {"head_dim": 3, "scale": 0.7, "attention_bias": ("query", "value", "output"), "dtype": F64}


def make(embed_dim=12, num_heads=5, *, num_labels=5, **options):
    """Make a layer with random tables and biases."""
    torch.manual_seed(0)
    layer = attention_layer(embed_dim, num_heads, num_labels=num_labels, dtype=F64, **options)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                parameter.normal_()
    return fill_tables(layer)


def check_layer(layer, inputs, **options):
    """Compare values and every gradient with the written-out layer."""
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

    def test_a_state_with_other_biases_is_named(self):
        plain = nn.MultiheadAttention(12, 4, batch_first=True, dtype=F64)
        layer = make(12, 4, num_labels=None, bias=("query", "value"))
        with pytest.raises(RuntimeError, match=r"Missing key.*q_proj_bias.*v_proj_bias(.|\n)*Unexpected.*in_proj_bias"):
            layer.load_state_dict(plain.state_dict())


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

    def test_the_rest_of_the_layer_follows(self):
        score, tables = rg.score.Bilinear.learned(5, 5, 3, dtype=F64), rg.RelationTables(5, 3, dtype=F64)
        layer = make(12, 5, head_dim=3, score=score, tables=tables, value_map=2)
        assert layer.value_map.bases.shape == (5, 2, 3, 3)
        x = rows(2, 6, 12)
        options = {"score": score, "value_map": layer.value_map()}
        close(layer(x, labels=LABELER(6)), by_hand(layer, x, labels=LABELER(6), **options))
        with pytest.raises(ValueError, match="tables must be for 5 heads of 3, got any number of heads of 4"):
            make(12, 5, head_dim=3, tables=rg.RelationTables(5, 4, dtype=F64))


class TestAModule:
    def test_repr(self):
        text = repr(make(**OF_A_LAYER)).split("\n")[1]
        assert text == "  12, num_heads=5, head_dim=3, num_kv_heads=1, scale=0.7, bias=('query', 'value')"


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
