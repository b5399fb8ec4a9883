"""OpenNMT-py's max_relative_positions: one table for keys and values by j - i, norms before each step."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm, linear

import relgraph as rg
from relgraph.interop.checkpoints import from_opennmt
from tests.interop.checkpoints.old import attend, heads_of, joined, later, random_state, same, same_with_gradients

WIDTH, HEADS, CLIP, INNER = 12, 3, 2, 20
MAPS = ("linear_query", "linear_keys", "linear_values", "final_linear")


def linear_shapes(name, out, width, bias=True):
    return {f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {})


def norm_shapes(name):
    return {f"{name}.{kind}": (WIDTH,) for kind in ("weight", "bias")}


def attention_shapes(at, *, table=True, biased=MAPS):
    shapes = {}
    for name in MAPS:
        shapes |= linear_shapes(at + name, WIDTH, WIDTH, name in biased)
    if table:
        shapes[f"{at}relative_positions_embeddings.weight"] = (2 * CLIP + 1, WIDTH // HEADS)
    return shapes


def stack_shapes(at, layers, depth, *, memory=False, biased=MAPS):
    shapes = norm_shapes(f"{at}layer_norm")
    for number in range(depth):
        layer = f"{at}{layers}.{number}."
        shapes |= attention_shapes(f"{layer}self_attn.", biased=biased)
        shapes |= norm_shapes(f"{layer}layer_norm" + ("" if layers == "transformer" else "_1"))
        if memory:
            shapes |= attention_shapes(f"{layer}context_attn.", table=False, biased=biased)
            shapes |= norm_shapes(f"{layer}layer_norm_2")
        shapes |= linear_shapes(f"{layer}feed_forward.w_1", INNER, WIDTH)
        shapes |= linear_shapes(f"{layer}feed_forward.w_2", WIDTH, INNER)
        shapes |= norm_shapes(f"{layer}feed_forward.layer_norm")
    return shapes


def mapped(state, name, x):
    return linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def normed(state, name, x, eps=1e-6):
    return layer_norm(x, [WIDTH], state[f"{name}.weight"], state[f"{name}.bias"], eps)


def old_attention(state, at, x, memory=None, hidden=None):
    of = x if memory is None else memory
    size = WIDTH // HEADS
    q = heads_of(mapped(state, f"{at}linear_query", x), size)
    k, v = (heads_of(mapped(state, f"{at}{name}", of), size) for name in ("linear_keys", "linear_values"))
    vectors = None
    if memory is None:
        position = torch.arange(x.shape[1])
        distance = (position[None, :] - position[:, None]).clamp(-CLIP, CLIP)  # j - i
        vectors = state[f"{at}relative_positions_embeddings.weight"][distance + CLIP]
    return mapped(state, f"{at}final_linear", joined(attend(q, k, v, vectors, vectors, hidden)))


def old_stack(state, at, layers, depth, x, memory=None, hidden=None, *, activation=torch.relu):
    first = "layer_norm" if layers == "transformer" else "layer_norm_1"
    for number in range(depth):
        layer = f"{at}{layers}.{number}."
        x = x + old_attention(state, f"{layer}self_attn.", normed(state, layer + first, x), hidden=hidden)
        if memory is not None:
            x = x + old_attention(state, f"{layer}context_attn.", normed(state, f"{layer}layer_norm_2", x), memory)
        inner = normed(state, f"{layer}feed_forward.layer_norm", x)
        inner = activation(mapped(state, f"{layer}feed_forward.w_1", inner))
        x = x + mapped(state, f"{layer}feed_forward.w_2", inner)
    return normed(state, f"{at}layer_norm", x)


def random_x(length):
    return torch.randn(2, length, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(("length", "biased"), [(1, MAPS), (3, ()), (9, ("final_linear",))])
def test_attention(length, biased):
    at = "encoder.transformer.0.self_attn."
    state = random_state(attention_shapes(at, biased=biased))
    layer, labeler = from_opennmt(state, prefix=at)
    assert (layer.num_heads, labeler) == (HEADS, rg.ClippedDistance(CLIP))
    assert [name for name, _ in layer.tables.named_parameters()] == ["key.rows"]
    same_with_gradients(
        lambda x: layer(x, labels=labeler(length)), lambda x: old_attention(state, at, x), random_x(length)
    )


@pytest.mark.parametrize("biased", [MAPS, ("final_linear",)], ids=len)
def test_encoder(biased):
    state = random_state(stack_shapes("encoder.", "transformer", 2, biased=biased))
    encoder, _ = from_opennmt(state, prefix="encoder.")
    assert isinstance(encoder, rg.RelationEncoder)
    same_with_gradients(encoder, lambda x: old_stack(state, "encoder.", "transformer", 2, x), random_x(8))
    padding = torch.arange(8) >= torch.tensor([[8], [5]])
    x = random_x(8)
    old = old_stack(state, "encoder.", "transformer", 2, x, hidden=padding[:, None, None])
    same(encoder(x, src_key_padding_mask=padding), old)


def test_decoder():
    state = random_state(stack_shapes("decoder.", "transformer_layers", 2, memory=True))
    decoder, _ = from_opennmt(state, prefix="decoder.")
    assert isinstance(decoder, rg.RelationDecoder)
    language = {name: x for name, x in state.items() if "context_attn" not in name and "layer_norm_2" not in name}
    model, _ = from_opennmt(language, prefix="decoder.")
    assert isinstance(model, rg.RelationEncoder)
    x = random_x(7)
    same(model(x, is_causal=True), old_stack(state, "decoder.", "transformer_layers", 2, x, hidden=later(7)))
    same_with_gradients(
        lambda x, memory: decoder(x, memory, tgt_is_causal=True),
        lambda x, memory: old_stack(state, "decoder.", "transformer_layers", 2, x, memory, later(7)),
        random_x(7),
        random_x(4),
    )


def test_transformer():
    shapes = stack_shapes("encoder.", "transformer", 2)
    shapes |= stack_shapes("decoder.", "transformer_layers", 3, memory=True)
    shapes["encoder.embeddings.make_embedding.emb_luts.0.weight"] = (30, WIDTH)
    state = random_state(shapes)
    with pytest.raises(ValueError, match="a RelationTransformer has no place for, got 'encoder.embeddings.make_emb"):
        from_opennmt(state)
    model, labeler = from_opennmt(state, leave_out=["*.embeddings.*"], activation="gelu")
    assert isinstance(model, rg.RelationTransformer)
    assert model.decoder.layers[2].labeler == labeler
    src, tgt = random_x(9), random_x(7)
    gelu = torch.nn.functional.gelu
    memory = old_stack(state, "encoder.", "transformer", 2, src, activation=gelu)
    old = old_stack(state, "decoder.", "transformer_layers", 3, tgt, memory, later(7), activation=gelu)
    same(model(src, tgt), old)


def test_layers_that_differ_in_their_biases_are_refused():
    state = random_state(stack_shapes("", "transformer", 2))
    with pytest.raises(ValueError, match="must have a tensor named 'transformer.1.self_attn.linear_keys.bias', got"):
        from_opennmt({name: x for name, x in state.items() if name != "transformer.1.self_attn.linear_keys.bias"})
    del state["transformer.0.self_attn.linear_keys.bias"]
    with pytest.raises(ValueError, match="no place for, got 'transformer.1.self_attn.linear_keys.bias'"):
        from_opennmt(state)
