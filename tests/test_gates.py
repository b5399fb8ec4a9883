"""Gates, a vector per label that multiplies keys or values, beside other terms, and refusals; the fuzz checks values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import relgraph as rg
from tests.nn.helpers import F64, some_edges

B, H, N, D, R = 2, 4, 7, 3, 5


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def close(got, wanted) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0.0)


def edges(default) -> rg.EdgeLabels:
    made = some_edges(N, R, default)
    return rg.EdgeLabels(made.edge_index, made.ids.masked_fill(made.ids == 1, -1), R, q_len=N, default=default)


def test_edge_vectors_biases_of_queries_and_functions_of_scores():
    """Beside gates they mean what they mean without: all ways agree with the equations to the letter."""
    torch.manual_seed(0)
    labels, inputs = edges(None), [leaf(N, H, D) for _ in range(3)]
    options = {
        "key_gate": leaf(R, D), "value_gate": leaf(H, R, D), "key_table": leaf(R, D),
        "score": rg.score.Softcap(2.0),
    }  # fmt: skip
    vectors = {"edge_attr": leaf(len(labels.ids), 2), "edge_key": leaf(D, 2), "edge_value": leaf(H, D, 2)}
    biases = {"content_bias": leaf(H, D), "position_bias": leaf(H, D)}
    whole = [x.transpose(0, 1)[None] for x in inputs]
    for more in (vectors, biases):
        given = {**options, **more}
        learned = [*inputs, *(x for x in given.values() if isinstance(x, Tensor))]
        wanted = rg.relation_attention(*whole, labels, **given, impl="reference")[0].transpose(0, 1)
        direction = torch.randn_like(wanted)
        expected = torch.autograd.grad(wanted, learned, direction, retain_graph=True)
        for impl in ("edges", "native"):
            got = rg.edge_attention(*inputs, labels, **given, impl=impl)
            close(got, wanted)
            close(torch.autograd.grad(got, learned, direction), expected)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"key_gate": torch.zeros(R, D + 1)}, ValueError, r"key_gate must have shape \[R, D\] or \[H, R, D\] = \[5, 3\]"),
        ({"value_gate": [1.0]}, TypeError, "value_gate must be a Tensor, got list"),
        ({"value_gate": torch.zeros(R, D), "labels": None}, ValueError, "value_gate needs labels, got None"),
        (
            {"key_gate": torch.zeros(R, D), "labels": rg.SumLabels(rg.ClippedDistance(1)(N), rg.ClippedDistance(2)(N))},
            NotImplementedError, "key_gate needs one label per pair, got a sum of 2 labels",
        ),
        (
            {"key_gate": torch.zeros(R, D), "score": rg.score.Additive(torch.zeros(D))}, ValueError,
            "key_gate must be None with score=Additive: it is for dot products",
        ),
        (
            {"value_gate": torch.zeros(R, D), "value_map": torch.zeros(R, D, D)}, ValueError,
            "value_gate must be None with a value_map",
        ),
        ({"key_gate": torch.zeros(R, D), "impl": "triton"}, NotImplementedError, "has no key_gate or value_gate; use"),
    ],
)  # fmt: skip
def test_gates_that_do_not_fit(options, error, match):
    x = torch.zeros(1, H, N, D)
    given = {"labels": rg.ClippedDistance(2)(N), **options}
    with pytest.raises(error, match=match):
        rg.relation_attention(x, x, x, given.pop("labels"), **given)
