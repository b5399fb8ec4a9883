"""Learned biases of the queries in layers: Transformer-XL's terms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.nn import RelationTables
from tests.layers import attention_layer, decoder_layer, encoder_layer, transformer

from .helpers import F64, by_hand, close, fill_tables

LABELER = rg.ClippedDistance(2)
BOTH = {"content_bias": True, "position_bias": True}


def make(*, num_labels=5, **options):
    torch.manual_seed(0)
    layer = fill_tables(attention_layer(12, 4, num_labels=num_labels, dtype=F64, **{**BOTH, **options}))
    return scatter(layer)


def scatter(module):
    """Fill the biases of the queries, and sinks, with random values."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("content_bias", "position_bias", "sink")):
                parameter.normal_()
    return module


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"content_bias": False},
        {"position_bias": False, "tables": ("value",)},
        {"num_kv_heads": 2, "per_head": True, "tables": ("key", "query", "bias")},
        {"head_dim": 5, "scale": 1.0},
        {"score": rg.score.Softcap(2.0)},
        {"tie_tables": True},
        {"sink": True, "num_kv_heads": 2},
    ],
    ids=str,
)
def test_values_and_gradients(options):
    layer, x = make(**options), torch.randn(2, 7, 12, dtype=F64, requires_grad=True)
    more = {} if layer.score is None else {"score": layer.score}
    got, wanted = layer(x, labels=LABELER(7)), by_hand(layer, x, labels=LABELER(7), **more)
    close(got, wanted)
    weight, leaves = torch.randn_like(got), [x, *layer.parameters()]
    grads = [torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)]
    close(*grads)
    named = dict(zip((name for name, _ in layer.named_parameters()), grads[0][1:], strict=True))
    assert all(named[name].abs().sum() > 0 for name in ("content_bias", "position_bias", "sink") if name in named)


def test_transformer_xl():
    """Its layer has projected sines by distance as the rows of the key table."""
    heads, size, length = 4, 3, 7
    layer = attention_layer(
        12, heads, tables=RelationTables(None, size, heads, kinds=("key",), per_head=True, banks={"key": Sines(heads, size)}),
        bias=False, dtype=F64, **BOTH,
    )  # fmt: skip
    scatter(layer).double()
    x, labels = torch.randn(2, length, 12, dtype=F64), rg.ClippedDistance(length)(length)
    got = layer(x, labels=labels, is_causal=True, bank_features=torch.arange(-length, length + 1, dtype=F64))
    q, k, v = (
        nn.functional.linear(x, w).view(2, length, heads, size) for w in layer.in_proj_weight.split([12, 12, 12])
    )
    rows = layer.tables.key.bank(torch.arange(-length, length + 1, dtype=F64))
    distance = torch.arange(length) - torch.arange(length)[:, None]
    content = torch.einsum("bihd,bjhd->bhij", q + layer.content_bias, k)
    position = torch.einsum("bihd,hijd->bhij", q + layer.position_bias, rows[:, distance + length])
    scores = ((content + position) / size**0.5).masked_fill(distance > 0, float("-inf"))
    z = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(-2)
    close(got, layer.out_proj(z))


class Sines(nn.Module):
    """Rows of sines and cosines by distance, mapped for each head."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.size, self.heads, self.map = size, heads, nn.Linear(8, heads * size, bias=False)

    def forward(self, distance):
        waves = distance[:, None] / 10000.0 ** (torch.arange(4, dtype=F64) / 4)
        return (
            self.map(torch.cat([waves.sin(), waves.cos()], -1)).unflatten(-1, (self.heads, self.size)).transpose(0, 1)
        )


def test_they_begin_at_zero_and_are_set_back():
    layer = attention_layer(12, 4, num_labels=5, **BOTH)
    plain = attention_layer(12, 4, num_labels=5)
    found = plain.load_state_dict(layer.state_dict(), strict=False)
    assert found.unexpected_keys == ["content_bias", "position_bias"]
    x = torch.randn(2, 7, 12)
    close(layer(x, labels=LABELER(7)), plain(x, labels=LABELER(7)), atol=1e-6)
    scatter(layer).reset_parameters()
    assert all(bias.abs().max() == 0 for bias in (layer.content_bias, layer.position_bias))
    model = scatter(transformer(12, 4, 1, 1, 16, **BOTH))
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        assert not name.endswith(tuple(BOTH)) or parameter.abs().max() == 0


def test_layers_and_models_pass_them_on():
    encoder = encoder_layer(12, 4, 16, labeler=LABELER, **BOTH)
    decoder = decoder_layer(12, 4, 16, labeler=LABELER, num_memory_labels=3, **BOTH)
    assert all(layer.self_attn.position_bias.shape == (4, 3) for layer in (encoder, decoder))
    assert decoder.multihead_attn.content_bias is None and decoder.multihead_attn.position_bias is None
    model = transformer(12, 4, 1, 1, 16, **BOTH)
    biased = [name for name, _ in model.named_parameters() if name.endswith(tuple(BOTH))]
    assert biased == [
        "encoder.layers.0.self_attn.content_bias",
        "encoder.layers.0.self_attn.position_bias",
        "decoder.layers.0.self_attn.content_bias",
        "decoder.layers.0.self_attn.position_bias",
    ]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"tables": ("value",)}, ValueError, r"position_bias needs a key table, .*, got \['value'\]"),
        ({"num_labels": None}, ValueError, "position_bias needs a key table, .*, got no tables"),
        ({"score": rg.score.Additive.learned(4, 3)}, ValueError, "content_bias must be False with score=Additive"),
        (
            {"score": rg.score.Bilinear.learned(5, 4, 3), "content_bias": False},
            ValueError,
            "position_bias must be False with score=Bilinear: it is for dot products",
        ),
    ],
)
def test_refusals(options, error, match):
    with pytest.raises(error, match=match):
        make(**options)
