"""Edge states in attention over listed pairs, encoder layers and stacks, against the published equations."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from tests.cases import F64
from tests.edge_states import relational

N, P, F, H, E = 6, 15, 3, 2, 8


def made(layers=2, **options):
    """A stack in float64, with norms that are not the identity."""
    torch.manual_seed(1)
    attention = rg.RelationAttention(E, H, edge_dim=F, edge_update="relational")
    layer = rg.RelationEncoderLayer(E, H, 12, 0.0, attention=attention, **options)
    stack = rg.RelationEncoder(layer, layers).to(F64)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return stack


def by_loops(layer, x, f, edge_index):
    """One encoder layer over all rows ``[T, E]``: new rows and edges."""
    attention = layer.self_attn
    y = layer.norm1(x) if layer.norm_first else x
    q, k, v = (y @ attention.in_proj_weight.T + attention.in_proj_bias).view(len(x), 3, H, -1).unbind(1)
    z, change = relational(attention.edge_states, (q, k, v), f, edge_index)
    z = attention.out_proj(z.flatten(1))

    def forward(x):
        return layer.linear2(layer.linear1(x).relu())

    if layer.norm_first:
        x = x + z
        x = x + forward(layer.norm2(x))
    else:
        x = layer.norm1(x + z)
        x = layer.norm2(x + forward(x))
    return x, change(x)


def edges(form):
    """The shape of the input, its labels, and the ends of the edges among all rows."""
    torch.manual_seed(0)
    pairs, none = torch.randint(N - 1, (2, P)), torch.full((P,), -1)
    pairs[:, 1] = pairs[:, 0].flip(0)
    if form == "one graph":
        return (N, E), rg.EdgeLabels(pairs, none, 0, q_len=N), pairs
    if form == "packed":
        pairs = torch.cat([pairs, pairs[:, :4] + N], 1)
        ptr = torch.tensor([0, N, 2 * N])
        return (2 * N, E), rg.EdgeLabels(pairs, none.new_full((P + 4,), -1), 0, q_len=2 * N, ptr=ptr), pairs
    batch = torch.randint(2, (P,))  # not in the order of the rows
    return (2, N, E), rg.EdgeLabels(pairs, none, 0, q_len=N, batch=batch, batch_size=2), pairs + N * batch


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("form", ["one graph", "packed", "batch"])
def test_stacks_carry_the_vectors_of_edges(form, norm_first):
    stack = made(norm_first=norm_first)
    shape, labels, ends = edges(form)
    x, attr = torch.randn(shape, dtype=F64), torch.randn(ends.shape[1], F, dtype=F64)
    found = []
    for ours in (True, False):
        rows, f = x.clone().requires_grad_(), attr.clone().requires_grad_()
        if ours:
            out, new = stack(rows, labels=labels, edge_attr=f)
        else:
            out, new = rows.view(-1, E), f
            for layer in stack.layers:
                out, new = by_loops(layer, out, new, ends)
            out = out.view(shape)
        grads = torch.autograd.grad(out.sin().sum() + new.cos().sum(), [rows, f, *stack.parameters()])
        found.append([out, new, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_attention_alone_reads_its_own_output_and_gives_weights():
    attention = made(1).layers[0].self_attn
    alone = rg.RelationAttention(E, H, edge_dim=F, edge_update="relational").to(F64)
    alone.load_state_dict(attention.state_dict())
    _, labels, ends = edges("one graph")
    x, f = torch.randn(N, E, dtype=F64), torch.randn(P, F, dtype=F64)
    out, new, weights = alone(x, labels=labels, edge_attr=f, need_weights=True)
    q, k, v = (x @ alone.in_proj_weight.T + alone.in_proj_bias).view(N, 3, H, -1).unbind(1)
    z, change = relational(alone.edge_states, (q, k, v), f, ends)
    expected = alone.out_proj(z.flatten(1))
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(new, change(expected), atol=1e-10, rtol=1e-10)
    assert weights.shape == (P, H)
    sums = torch.zeros(N, H, dtype=F64).index_add(0, ends[1], weights)
    torch.testing.assert_close(sums[ends[1]], torch.ones(P, H, dtype=F64))


def test_records_of_a_stack():
    stack = made()
    _, labels, _ = edges("one graph")
    x, f = torch.randn(N, E, dtype=F64), torch.randn(P, F, dtype=F64)
    expected = stack(x, labels=labels, edge_attr=f)
    with rg.record_attention(stack, weights=True) as record:
        found = stack(x, labels=labels, edge_attr=f)
    torch.testing.assert_close(found, expected)
    assert [calls[0].weights.shape for calls in record.values()] == [(P, H)] * 2


def test_what_edge_states_refuse():
    attention = rg.RelationAttention(E, H, edge_dim=F, edge_update="relational")
    _, labels, _ = edges("one graph")
    x, f = torch.randn(N, E), torch.randn(P, F)
    given = {"labels": labels, "edge_attr": f}
    for name, value in {"key": x, "is_causal": True, "need_label_mass": True, "cache": rg.KVCache()}.items():
        with pytest.raises(NotImplementedError, match=f"{name} must be left out with edge_update"):
            attention(x, **given, **{name: value})
    with pytest.raises(ValueError, match="labels must have a batch axis"):
        attention(x.expand(2, N, E), **given)
    everywhere = rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([-1]), 0, q_len=N, default=-1)
    with pytest.raises(NotImplementedError, match="labels must have default=None"):
        attention(x, labels=everywhere, edge_attr=f[:1])
    for options in ({"num_labels": 3}, {"score": rg.score.Softcap(5.0)}, {"impl": "dense"}, {"num_kv_heads": 1}):
        with pytest.raises(NotImplementedError, match="must be left out with edge_update"):
            rg.RelationAttention(E, H, edge_dim=F, edge_update="relational", **options)
    with pytest.raises(ValueError, match="edge_dim must be given"):
        rg.RelationAttention(E, H, edge_update="relational")
    with pytest.raises(NotImplementedError, match="self_attention must have no edge_dim"):
        rg.RelationDecoderLayer(E, H, self_attention=attention)
    with pytest.raises(NotImplementedError, match="custom_encoder must have attentions without edge_update"):
        rg.RelationTransformer(E, H, custom_encoder=made(1))
