"""Sinks: every implementation against a softmax with one more column, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import relgraph as rg
from tests.nn.helpers import F64, some_edges

B, H, N, D = 2, 4, 9, 3
IMPLS = ("reference", "dense", "chunked", "native", "edges", None)
LABELS = {
    "distance": lambda: rg.ClippedDistance(2)(N),
    "edges over a label": lambda: some_edges(N, 5, 2),
    "edges": lambda: some_edges(N, 5, None),
}


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def close(got, wanted, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


def written_out(q, k, v, labels, key_table, value_table, sink, seen=True) -> tuple[Tensor, Tensor, Tensor]:
    """Output, weights and log-sum-exp, with the sink as a last column whose value is zero."""
    ids, attend = (x[:, None] for x in labels.to_dense())
    labeled = (ids >= 0)[..., None]
    keys, values = (table[ids.clamp(min=0)] * labeled for table in (key_table, value_table))
    scores = (q[:, :, :, None] * (k[:, :, None] + keys)).sum(-1) * D**-0.5
    scores = scores.masked_fill(~(attend & seen), float("-inf"))
    scores = torch.cat([scores, sink[:, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    return (weights[..., None] * (v[:, :, None] + values)).sum(-2), weights, scores.logsumexp(-1)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", LABELS)
def test_values_and_gradients_and_blind_rows(impl, kind):
    if impl == "edges" and kind != "edges":
        pytest.skip("for listed pairs only")
    torch.manual_seed(0)
    labels, seen = LABELS[kind](), torch.rand(N, N) < 0.7
    seen[3] = False
    learned = [leaf(B, H, N, D), leaf(B, H, N, D), leaf(B, H, N, D + 1), leaf(5, D), leaf(5, D + 1), leaf(H)]
    q, k, v, key_table, value_table, sink = learned
    options = {"need_label_mass": True, "need_lse": True, "need_weights": impl in ("reference", "dense")}
    z, aux = rg.relation_attention_with_aux(
        q, k, v, labels, key_table, value_table, attn_mask=seen, sink=sink, impl=impl, **options
    )
    wanted, weights, lse = written_out(q, k, v, labels, key_table, value_table, sink, seen)
    one_hot = labels.to_dense()[0][:, None, :, :, None] == torch.arange(5)
    mass = (weights[..., None] * one_hot).sum(-2)
    got, expected = [z, aux.label_mass, aux.lse], [wanted, mass, lse]
    if aux.weights is not None:
        got, expected = [*got, aux.weights], [*expected, weights]
    close(got, expected)
    assert z[:, :, 3].abs().max() == 0
    directions = [torch.randn_like(x) for x in expected]
    close(*(torch.autograd.grad(x, learned, directions) for x in (got, expected)))


@pytest.mark.parametrize("impl", ["reference", "edges", "native", None])
def test_rows_that_see_nothing_give_no_nan(impl):
    nothing = rg.EdgeLabels(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 5, q_len=N)
    inputs = [leaf(1, H, N, D) for _ in range(3)]
    sink = torch.tensor([0.0, -1e30, 1e30, float("-inf")], dtype=F64, requires_grad=True)
    z = rg.relation_attention(*inputs, nothing, leaf(5, D), sink=sink, impl=impl)
    assert z.abs().max() == 0
    assert all(g.abs().max() == 0 for g in torch.autograd.grad(z.sum(), [*inputs, sink]))


@pytest.mark.parametrize("grows", [True, False])
def test_further_calls_of_a_form_and_packed_layouts(grows):
    """The second call of a form is prepared, in the layout of the caller."""
    torch.manual_seed(0)
    packed = rg.ClippedDistance(2)(N, ptr=torch.tensor([0, 4, N]))
    edges, key_table, value_table, sink = some_edges(N, 5, None), leaf(5, D), leaf(5, D), leaf(H)
    for labels, attend in ((packed, rg.relation_attention), (edges, rg.edge_attention)):
        for _ in range(3):
            inputs = [leaf(N, H, D) for _ in range(3)]
            learned = [*inputs, key_table, value_table, sink]
            with torch.set_grad_enabled(grows):
                z = attend(*inputs, labels, key_table, value_table, sink=sink)
            whole = [x.transpose(0, 1)[None] for x in inputs]
            wanted = written_out(*whole, labels, key_table, value_table, sink)[0][0].transpose(0, 1)
            close(z, wanted)
            if grows:
                direction = torch.randn_like(z)
                close(*(torch.autograd.grad(x, learned, direction) for x in (z, wanted)))
    z, weights = rg.edge_attention(*inputs, edges, key_table, sink=sink, need_weights=True)
    alone = rg.relation_attention_with_aux(*whole, edges, key_table, sink=sink, need_weights=True, impl="reference")[
        1
    ].weights
    source, target = edges.edge_index
    close(weights, alone[0, :, target, source].T)


@pytest.mark.parametrize(
    ("sink", "error", "match"),
    [
        (torch.zeros(H + 1), ValueError, r"sink must have shape \[H\] = \[4\], got \[5\]"),
        (0.0, TypeError, "sink must be a Tensor, got float"),
        (torch.zeros(H, dtype=torch.int64), ValueError, "sink must have a floating dtype, got torch.int64"),
    ],
)
def test_bad_sinks(sink, error, match):
    x = torch.zeros(1, H, N, D)
    with pytest.raises(error, match=match):
        rg.relation_attention(x, x, x, None, sink=sink)
