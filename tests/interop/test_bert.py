"""An encoder of BERT from a state dict: rows by i - j + P - 1, flipped; post-norm layers with GELU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear, relu

import relgraph as rg
from relgraph.interop.bert import from_state_dict

WIDTH, HEADS, LONGEST, INNER, DEPTH = 12, 3, 7, 20, 2
KINDS = ("relative_key", "relative_key_query")
AT = "bert.encoder."


def random_state():
    """A tensor for each name, large enough that attention is far from uniform; and one of another part of the model."""
    sizes = dict.fromkeys(
        (*(f"attention.self.{n}" for n in ("query", "key", "value")), "attention.output.dense"), (WIDTH, WIDTH)
    )
    sizes |= {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    sizes |= {"attention.output.LayerNorm": (WIDTH,), "output.LayerNorm": (WIDTH,)}
    torch.manual_seed(0)
    state = {"pooler.dense.weight": torch.zeros(1)}
    for at in (f"{AT}layer.{number}." for number in range(DEPTH)):
        for name, size in sizes.items():
            state[f"{at}{name}.weight"], state[f"{at}{name}.bias"] = torch.randn(size), torch.randn(size[0])
        state[f"{at}attention.self.distance_embedding.weight"] = torch.randn(2 * LONGEST - 1, WIDTH // HEADS)
    return {name: tensor.double() for name, tensor in state.items()}


def old_encoder(state, x, kind, activation=gelu, eps=1e-12):
    """BERT's encoder, with the vector of every pair built."""

    def mapped(name, y):
        return linear(y, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name, y):
        return layer_norm(y, [WIDTH], state[f"{name}.LayerNorm.weight"], state[f"{name}.LayerNorm.bias"], eps)

    place = torch.arange(x.shape[1])
    for at in (f"{AT}layer.{number}." for number in range(DEPTH)):
        maps = (f"{at}attention.self.{name}" for name in ("query", "key", "value"))
        q, k, v = (mapped(name, x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in maps)
        vectors = state[f"{at}attention.self.distance_embedding.weight"][place[:, None] - place + LONGEST - 1]
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)
        if kind == "relative_key_query":
            scores = scores + torch.einsum("bhjd,ijd->bhij", k, vectors)
        z = ((scores / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(f"{at}attention.output", x + mapped(f"{at}attention.output.dense", z))
        x = norm(f"{at}output", x + mapped(f"{at}output.dense", activation(mapped(f"{at}intermediate.dense", x))))
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_same_values_and_gradients(kind, length):
    state = random_state()
    encoder, labeler = from_state_dict(state, position_embedding_type=kind, prefix=AT)
    assert labeler == encoder.layers[1].labeler == rg.ClippedDistance(LONGEST - 1)
    old_x, new_x = (torch.randn(2, length, WIDTH).double().requires_grad_() for _ in range(2))
    new_x.data.copy_(old_x.data)
    old_z, new_z = old_encoder(state, old_x, kind), encoder(new_x)
    torch.testing.assert_close(new_z, old_z, rtol=1e-12, atol=1e-12)
    for z in (old_z, new_z):
        (z * old_z.detach().cos()).sum().backward()
    torch.testing.assert_close(new_x.grad, old_x.grad, rtol=1e-10, atol=1e-10)


def test_activation_and_epsilon():
    state, x = random_state(), torch.randn(2, 6, WIDTH).double()
    options = {"activation": "relu", "layer_norm_eps": 0.1}
    encoder, _ = from_state_dict(state, position_embedding_type="relative_key", prefix=AT, **options)
    old = old_encoder(state, x, "relative_key", relu, 0.1)
    torch.testing.assert_close(encoder(x), old, rtol=1e-12, atol=1e-12)


def test_refuses_what_is_no_such_encoder():
    def read(state, prefix=AT):
        return from_state_dict(state, position_embedding_type="relative_key", prefix=prefix)

    state = random_state()
    table = f"{AT}layer.1.attention.self.distance_embedding.weight"
    with pytest.raises(ValueError, match="state must have 1 to 4096 layers under prefix = 'bert', got 0"):
        read(state, "bert")
    with pytest.raises(ValueError, match=f"state must have a tensor named '{table}', got none"):
        read({name: tensor for name, tensor in state.items() if name != table})
    with pytest.raises(ValueError, match="state must have no other tensors .* got 'layer.0.crossattention.weight'"):
        read({**state, f"{AT}layer.0.crossattention.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"distance_embedding.weight'\] must have shape \[13, 4\].*, got \[5, 4\]"):
        read({**state, table: torch.zeros(5, 4).double()})
    with pytest.raises(
        ValueError, match=r"distance_embedding of state must have 2P - 1 rows whose width divides 12, got \[13, 5\]"
    ):
        read({**state, table.replace("1", "0"): torch.zeros(13, 5).double()})
