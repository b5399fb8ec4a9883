"""tensor2tensor's dot_product_relative: kernels [in, out], two tables by j - i, norms before each step or after it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm

import relgraph as rg
from relgraph.interop.checkpoints import from_tensor2tensor
from tests.interop.checkpoints.old import attend, heads_of, joined, later, random_state, same, same_with_gradients

WIDTH, INNER_WIDTH, HEAD, CLIP, HIDDEN = 12, 20, 5, 3, 18
"""Heads of 5 in width 12: 4 of them, with ``attention_key_channels`` of 20."""

SELF, MEMORY = "self_attention/multihead_attention/", "encdec_attention/multihead_attention/"
RELATIVE = "dot_product_attention_relative/relative_positions"


def attention_shapes(at, tables=True):
    shapes = {f"{at}{name}/kernel": (WIDTH, INNER_WIDTH) for name in "qkv"}
    shapes[f"{at}output_transform/kernel"] = (INNER_WIDTH, WIDTH)
    if tables:
        shapes |= {f"{at}{RELATIVE}_{kind}/embeddings": (2 * CLIP + 1, HEAD) for kind in ("keys", "values")}
    return shapes


def norm_shapes(at):
    return {f"{at}/layer_norm/layer_norm_{kind}": (WIDTH,) for kind in ("scale", "bias")}


def stack_shapes(at, depth, *, memory=False, before=True):
    place = "layer_prepostprocess" if before else "layer_postprocess"
    shapes = norm_shapes(f"{at}layer_prepostprocess") if before else {}
    for number in range(depth):
        layer = f"{at}layer_{number}/"
        shapes |= attention_shapes(layer + SELF)
        if memory:
            shapes |= attention_shapes(layer + MEMORY, tables=False)
        steps = ("self_attention", "encdec_attention", "ffn") if memory else ("self_attention", "ffn")
        for step in steps:
            shapes |= norm_shapes(f"{layer}{step}/{place}")
        shapes |= {f"{layer}ffn/conv1/kernel": (WIDTH, HIDDEN), f"{layer}ffn/conv1/bias": (HIDDEN,)}
        shapes |= {f"{layer}ffn/conv2/kernel": (HIDDEN, WIDTH), f"{layer}ffn/conv2/bias": (WIDTH,)}
    return shapes


def old_attention(state, at, x, memory=None, hidden=None):
    of = x if memory is None else memory
    q, k, v = (heads_of(y @ state[f"{at}{name}/kernel"], HEAD) for name, y in (("q", x), ("k", of), ("v", of)))
    if memory is None:
        position = torch.arange(x.shape[1])
        row = (position[None, :] - position[:, None]).clamp(-CLIP, CLIP) + CLIP  # j - i
        keys, values = (state[f"{at}{RELATIVE}_{kind}/embeddings"][row] for kind in ("keys", "values"))
        z = attend(q, k, v, keys, values, hidden)
    else:
        z = attend(q, k, v, hidden=hidden)
    return joined(z) @ state[f"{at}output_transform/kernel"]


def old_stack(state, at, depth, x, memory=None, hidden=None, *, before=True, eps=1e-6):
    def normed(place, y):
        scale, bias = (state[f"{place}/layer_norm/layer_norm_{kind}"] for kind in ("scale", "bias"))
        return layer_norm(y, [WIDTH], scale, bias, eps)

    def stepped(step, y, compute):
        if before:
            return y + compute(normed(f"{step}/layer_prepostprocess", y))
        return normed(f"{step}/layer_postprocess", y + compute(y))

    def feed_forward(layer, y):
        inner = (y @ state[f"{layer}ffn/conv1/kernel"] + state[f"{layer}ffn/conv1/bias"]).relu()
        return inner @ state[f"{layer}ffn/conv2/kernel"] + state[f"{layer}ffn/conv2/bias"]

    for number in range(depth):
        layer = f"{at}layer_{number}/"
        x = stepped(f"{layer}self_attention", x, lambda y: old_attention(state, layer + SELF, y, hidden=hidden))  # noqa: B023
        if memory is not None:
            x = stepped(f"{layer}encdec_attention", x, lambda y: old_attention(state, layer + MEMORY, y, memory))  # noqa: B023
        x = stepped(f"{layer}ffn", x, lambda y: feed_forward(layer, y))  # noqa: B023
    return normed(f"{at}layer_prepostprocess", x) if before else x


def random_x(length):
    return torch.randn(2, length, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_attention(length):
    at = "transformer/body/encoder/layer_0/" + SELF
    state = random_state(attention_shapes(at))
    layer, labeler = from_tensor2tensor(state, prefix=at)
    assert (layer.num_heads, layer.head_dim, labeler) == (4, HEAD, rg.ClippedDistance(CLIP))
    x = random_x(length)
    same_with_gradients(lambda x: layer(x, labels=labeler(length)), lambda x: old_attention(state, at, x), x)


@pytest.mark.parametrize("before", [True, False])
def test_encoder_and_decoder_of_a_language_model(before):
    at = "transformer/body/decoder/"
    state = random_state(stack_shapes(at, 3, before=before))
    encoder, labeler = from_tensor2tensor(state, prefix=at)
    assert isinstance(encoder, rg.RelationEncoder)
    assert encoder.layers[2].labeler == labeler
    x = random_x(9)
    same_with_gradients(encoder, lambda x: old_stack(state, at, 3, x, before=before), x)
    same(encoder(x, is_causal=True), old_stack(state, at, 3, x, hidden=later(9), before=before))


@pytest.mark.parametrize("before", [True, False])
def test_decoder(before):
    at = "transformer/body/decoder/"
    state = random_state(stack_shapes(at, 2, memory=True, before=before))
    decoder, _ = from_tensor2tensor(state, prefix=at)
    assert isinstance(decoder, rg.RelationDecoder)
    same_with_gradients(
        lambda x, memory: decoder(x, memory, tgt_is_causal=True),
        lambda x, memory: old_stack(state, at, 2, x, memory, later(8), before=before),
        random_x(8),
        random_x(5),
    )


@pytest.mark.parametrize("before", [True, False])
def test_transformer(before):
    at = "transformer/body/"
    shapes = stack_shapes(f"{at}encoder/", 2, before=before)
    shapes |= stack_shapes(f"{at}decoder/", 3, memory=True, before=before)
    state = random_state(shapes)
    model, labeler = from_tensor2tensor(state, prefix=at, layer_norm_eps=1e-3)
    assert isinstance(model, rg.RelationTransformer)
    assert model.encoder.layers[0].labeler == model.decoder.layers[0].labeler == labeler
    src, tgt = random_x(9), random_x(7)
    memory = old_stack(state, f"{at}encoder/", 2, src, before=before, eps=1e-3)
    old = old_stack(state, f"{at}decoder/", 3, tgt, memory, later(7), before=before, eps=1e-3)
    same(model(src, tgt), old)


def test_arrays_and_names_of_tensors():
    state = random_state(attention_shapes(""), torch.float32)
    arrays = {f"{name}:0": tensor.numpy() for name, tensor in state.items()}
    for array in arrays.values():
        array.setflags(write=False)
    (one, labeler), (other, _) = from_tensor2tensor(state), from_tensor2tensor(arrays)
    x = random_x(4).float()
    assert torch.equal(one(x, labels=labeler(4)), other(x, labels=labeler(4)))
    with torch.no_grad():
        other.tables.key.rows.zero_()
    assert np.any(arrays[f"{RELATIVE}_keys/embeddings:0"])
    with pytest.raises(ValueError, match="each name once, with or without ':0', got both for 'q/kernel'"):
        from_tensor2tensor({**arrays, "q/kernel": state["q/kernel"]})


@pytest.mark.parametrize("kind", ["keys", "values"])
def test_missing_and_misshapen_tables(kind):
    name = f"{RELATIVE}_{kind}/embeddings"
    state = random_state(attention_shapes(""))
    with pytest.raises(ValueError, match=f"must have a tensor named '{name}', got none; under that prefix the neares"):
        from_tensor2tensor({other: tensor for other, tensor in state.items() if other != name})
    with pytest.raises(ValueError, match=f"must have .*'{name}', .*got "):
        from_tensor2tensor({**state, name: state[name].T})
    with pytest.raises(ValueError, match="must have an odd number of rows in .*keys/embeddings', .*, got 6"):
        from_tensor2tensor(state | {f"{RELATIVE}_keys/embeddings": state[f"{RELATIVE}_keys/embeddings"][1:]})
