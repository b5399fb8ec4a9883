"""BERT's relative positions: rows by i - j + P - 1, flipped; post-norm layers with GELU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear, relu

import relgraph as rg
from relgraph.interop.checkpoints import from_bert
from tests.interop.checkpoints.old import attend, heads_of, joined, random_state, same, same_with_gradients

WIDTH, HEADS, LONGEST, INNER = 12, 3, 7, 20
KINDS = ("relative_key", "relative_key_query")


def attention_shapes(at="", norm=False):
    shapes = {f"{at}self.{name}.weight": (WIDTH, WIDTH) for name in ("query", "key", "value")}
    shapes |= {f"{at}self.{name}.bias": (WIDTH,) for name in ("query", "key", "value")}
    shapes |= {f"{at}output.dense.weight": (WIDTH, WIDTH), f"{at}output.dense.bias": (WIDTH,)}
    shapes[f"{at}self.distance_embedding.weight"] = (2 * LONGEST - 1, WIDTH // HEADS)
    if norm:
        shapes |= {f"{at}output.LayerNorm.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    return shapes


def encoder_shapes(depth, at="bert.encoder."):
    shapes = {}
    for number in range(depth):
        layer = f"{at}layer.{number}."
        shapes |= attention_shapes(f"{layer}attention.", norm=True)
        shapes |= {f"{layer}intermediate.dense.weight": (INNER, WIDTH), f"{layer}intermediate.dense.bias": (INNER,)}
        shapes |= {f"{layer}output.dense.weight": (WIDTH, INNER), f"{layer}output.dense.bias": (WIDTH,)}
        shapes |= {f"{layer}output.LayerNorm.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    return shapes


def old_attention(state, at, x, kind, hidden=None):
    def mapped(name, y):
        return linear(y, state[f"{at}{name}.weight"], state[f"{at}{name}.bias"])

    q, k, v = (heads_of(mapped(f"self.{name}", x), WIDTH // HEADS) for name in ("query", "key", "value"))
    table = state[f"{at}self.distance_embedding.weight"]
    at_position = torch.arange(x.shape[1])
    vectors = table[at_position[:, None] - at_position[None, :] + LONGEST - 1]  # i - j
    if kind == "relative_key":
        z = attend(q, k, v, vectors, hidden=hidden)
    else:
        scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, vectors) + torch.einsum("bhrd,lrd->bhlr", k, vectors)
        scores = scores / q.shape[-1] ** 0.5
        z = (scores if hidden is None else scores.masked_fill(hidden, -1e9)).softmax(-1) @ v
    return mapped("output.dense", joined(z))


def old_encoder(state, at, x, kind, depth, *, activation=gelu, eps=1e-12):
    def mapped(name, y):
        return linear(y, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name, y):
        return layer_norm(y, [WIDTH], state[f"{name}.LayerNorm.weight"], state[f"{name}.LayerNorm.bias"], eps)

    for number in range(depth):
        layer = f"{at}layer.{number}."
        x = norm(f"{layer}attention.output", x + old_attention(state, f"{layer}attention.", x, kind))
        inner = activation(mapped(f"{layer}intermediate.dense", x))
        x = norm(f"{layer}output", x + mapped(f"{layer}output.dense", inner))
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_attention(kind, length):
    state = random_state(attention_shapes("a."))
    layer, labeler = from_bert(state, position_embedding_type=kind, prefix="a.")
    assert (layer.num_heads, labeler) == (HEADS, rg.ClippedDistance(LONGEST - 1))
    assert layer.tables.kinds == (("key",) if kind == "relative_key" else ("key", "query"))
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    same_with_gradients(lambda x: layer(x, labels=labeler(length)), lambda x: old_attention(state, "a.", x, kind), x)


@pytest.mark.parametrize("kind", KINDS)
def test_encoder(kind):
    state = random_state(encoder_shapes(3))
    encoder, labeler = from_bert(state, position_embedding_type=kind, prefix="bert.encoder.")
    assert isinstance(encoder, rg.RelationEncoder)
    assert encoder.layers[0].labeler == labeler
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    same_with_gradients(encoder, lambda x: old_encoder(state, "bert.encoder.", x, kind, 3), x)


def test_activation_and_epsilon():
    state = random_state(encoder_shapes(1))
    encoder, _ = from_bert(
        state, position_embedding_type="relative_key", prefix="bert.encoder.", activation="relu", layer_norm_eps=0.1
    )
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    same(encoder(x), old_encoder(state, "bert.encoder.", x, "relative_key", 1, activation=relu, eps=0.1))


def test_the_attention_of_an_encoder_needs_its_norm_left_out():
    state = random_state(encoder_shapes(2))
    at = "bert.encoder.layer.1.attention."
    options = {"position_embedding_type": "relative_key", "prefix": at}
    with pytest.raises(ValueError, match=r"no place for, got 'output.LayerNorm.bias', 'output.LayerNorm.weight'; name"):
        from_bert(state, **options)
    layer, labeler = from_bert(state, **options, leave_out=["output.LayerNorm.*"])
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    same(layer(x, labels=labeler(5)), old_attention(state, at, x, "relative_key"))


def _theirs(kind, model="Bert"):
    """A model of transformers, its encoder, and its state."""
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.partition(".")[0]) > 4:
        pytest.skip("transformers 5 has no relative_key: run with transformers 4.57 or earlier")
    torch.manual_seed(0)
    config = getattr(transformers, f"{model}Config")(
        vocab_size=20, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=LONGEST, position_embedding_type=kind, attn_implementation="eager", pad_token_id=0,
        embedding_size=WIDTH, layer_norm_eps=1e-5,
    )  # fmt: skip
    made = getattr(transformers, f"{model}Model")(config).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("model", ["Bert", "Roberta", "Electra"])
@pytest.mark.parametrize("kind", KINDS)
def test_transformers(kind, model):
    theirs = _theirs(kind, model)
    encoder, _ = from_bert(
        theirs.state_dict(),
        position_embedding_type=kind,
        prefix="encoder.",
        layer_norm_eps=theirs.config.layer_norm_eps,
    )
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    same(encoder(x), theirs.encoder(x).last_hidden_state)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    mask = torch.zeros(2, 1, 1, 6, dtype=torch.float64).masked_fill(padding[:, None, None], float("-inf"))
    old = theirs.encoder(x, attention_mask=mask).last_hidden_state
    same(encoder(x, src_key_padding_mask=padding), old)
