"""Constructors of layers refuse what no layer can be made of, before memory is asked for."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from tests.layers import attention_layer, decoder_layer, encoder_layer, transformer

MAKERS = {
    "table": lambda **options: rg.nn.LabelTable(3, 4, **options),
    "tables": lambda **options: rg.RelationTables(3, 4, **options),
    "attention": lambda **options: attention_layer(8, 2, num_labels=3, **options),
    "encoder layer": lambda **options: encoder_layer(8, 2, 16, **options),
    "decoder layer": lambda **options: decoder_layer(8, 2, 16, **options),
    "transformer": lambda **options: transformer(8, 2, 1, 1, 16, labeler=rg.ClippedDistance(2), **options),
}
MADE = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@MADE
def test_places_that_there_are(make):
    for parameter in make(device=torch.device("meta"), dtype=torch.bfloat16).parameters():
        assert parameter.is_meta and parameter.dtype == torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="device must be a device that torch can use here, got 'cuda'"):
        attention_layer(8, 2, device="cuda")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: rg.nn.LabelTable(10**9, 64), "num_labels"),
        (lambda: rg.nn.LabelTable(3, None, heads=2**40), "heads"),
        (lambda: rg.RelationTables((3, 10**9), 64), "num_labels"),
        (lambda: attention_layer(10**5, 1), "embed_dim"),
        (lambda: attention_layer(8, 1, vdim=10**9), "vdim"),
        (lambda: decoder_layer(8, 1, 10**9), "dim_feedforward"),
        (lambda: transformer(10**9, 1), "d_model"),
    ],
)
def test_sizes_beyond_any_memory(make, name):
    with pytest.raises(ValueError, match=f"{name} must be smaller, as no parameter may hold more than 2,147,483,648"):
        make()


@pytest.mark.parametrize("depth", [4097, 10**9, 10**30])
def test_depths_beyond_any_patience(depth):
    encoder, decoder = encoder_layer(8, 2, 16), decoder_layer(8, 2, 16)
    for stack, layer in ((rg.RelationEncoder, encoder), (rg.RelationDecoder, decoder)):
        with pytest.raises(ValueError, match=f"num_layers must be at most 4096, got {depth}"):
            stack(layer, depth)
    for name in ("num_encoder_layers", "num_decoder_layers"):
        with pytest.raises(ValueError, match=f"{name} must be at most 4096, got {depth}"):
            transformer(8, 2, **{name: depth})


X, MEMORY, BLOCKED = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.zeros(3, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"tables": rg.RelationTables(5, 3)}, ValueError, "tables must be for 2 heads of 4"),
        (
            {"cross_attention": rg.RelationAttention(8, 4, tables=())},
            ValueError,
            "cross_attention must have .* got 8, 8, 8 and 4",
        ),
        (
            {"self_attention": rg.RelationAttention(8, 2, tables=()), "num_labels": 5},
            ValueError,
            "num_labels must be left out with self_attention, which has its own, got 5",
        ),
        ({"labeler": rg.ClippedDistance}, TypeError, "labeler must be callable .* got the class ClippedDistance"),
    ],
)
def test_constructors_speak_of_their_own_arguments(options, error, match):
    with pytest.raises(error, match=f"^{match}"):
        decoder_layer(8, 2, 16, **options)


def test_an_attention_decides_where_its_layer_is():
    attention = rg.RelationAttention(8, 2, tables=(), dtype=torch.float64)
    assert rg.RelationEncoderLayer(8, 2, 16, attention=attention).linear1.weight.dtype == torch.float64
    with pytest.raises(
        ValueError, match="^dtype and device must be those of an attention .*, torch.float64 on cpu, got"
    ):
        rg.RelationEncoderLayer(8, 2, 16, dtype=torch.float32, attention=attention)
    with pytest.raises(ValueError, match="^dtype and device must be those .*, torch.float32 on cpu, got torch.float64"):
        rg.RelationDecoderLayer(
            8, 2, 16, self_attention=attention, cross_attention=rg.RelationAttention(8, 2, tables=())
        )
    attention.out_proj = torch.nn.Identity()  # such as a module that holds its weight in another way
    assert rg.RelationEncoderLayer(8, 2, 16, attention=attention)(X.double()).shape == X.shape
