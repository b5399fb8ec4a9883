"""Biases of the query (Transformer-XL) beside vectors of edges, in compiled code, and refusals; the fuzz checks values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import relgraph as rg
from tests.nn.helpers import F64, close, some_edges

B, H, N, D = 2, 4, 9, 3
BOTH = ("content_bias", "position_bias")


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def inputs(kv_heads: int = H, q_len: int = N) -> list[Tensor]:
    return [leaf(B, H, q_len, D), leaf(B, kv_heads, N, D), leaf(B, kv_heads, N, D + 1)]


def biases(names=BOTH) -> dict[str, Tensor]:
    return {name: leaf(H, D) for name in names}


def test_edge_vectors_in_the_value():
    edges = some_edges(N, 5, None)
    attr, to_value = leaf(edges.ids.shape[0], 2), leaf(D, 2)
    q, k, v, table = leaf(N, H, D), leaf(N, H, D), leaf(N, H, D), leaf(5, D)
    bias = leaf(H, D)
    both = {"content_bias": bias, "position_bias": bias, "edge_attr": attr, "edge_value": to_value}
    wanted = rg.edge_attention(q + bias, k, v, edges, table, edge_attr=attr, edge_value=to_value)
    close(rg.edge_attention(q, k, v, edges, table, **both), wanted)


def test_transforms_and_compiled_code():
    q, k, v = inputs()
    labels, table, given_ = rg.ClippedDistance(2)(N), leaf(5, D), biases()

    def loss(u):
        return (
            rg.relation_attention(
                q, k, v, labels, table, content_bias=u, position_bias=given_["position_bias"], impl="dense"
            )
            .square()
            .sum()
        )

    u = given_["content_bias"]
    close(torch.func.grad(loss)(u), torch.autograd.grad(loss(u), u)[0])

    def call(q):
        return rg.relation_attention(q, k, v, labels, table, **given_)

    close(torch.compile(call, backend="eager", fullgraph=True)(q), call(q))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"position_bias": torch.zeros(H, D, dtype=F64), "key_table": None}, ValueError, "position_bias needs a key_table"),
        (
            {"content_bias": torch.zeros(H, D, dtype=F64), "score": rg.score.Additive(torch.ones(D, dtype=F64))},
            ValueError,
            "content_bias must be None with score=Additive: it is for dot products",
        ),
        (
            {"position_bias": torch.zeros(H, D, dtype=F64), "score": rg.score.Bilinear(torch.ones(5, D, D, dtype=F64))},
            ValueError,
            "position_bias must be None with score=Bilinear: it is for dot products",
        ),
        (
            {
                "content_bias": torch.zeros(H, D, dtype=F64),
                "edge_attr": torch.zeros(1, 2, dtype=F64),
                "edge_key": torch.zeros(D, 2, dtype=F64),
            },
            NotImplementedError,
            "content_bias cannot be added where edge vectors have an edge_key",
        ),
    ],
)  # fmt: skip
def test_refusals(options, error, match):
    q, k, v = inputs()
    labels = rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 5, q_len=N)
    with pytest.raises(error, match=match):
        rg.relation_attention(q, k, v, labels, **{"key_table": leaf(5, D), **options})
