"""Edge states of RelationConv against their published equations, in loops over nodes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

import relgraph as rg
from relgraph.nn.edge_states import blocks
from relgraph.pyg import RelationConv
from tests.cases import F64
from tests.edge_states import relational

N, E, F, H, C = 7, 23, 3, 2, 4


class Edgewise(RelationConv):
    """The same layer, made to take the message() path."""

    def _can_fuse(self):
        return False


@pytest.fixture
def graph():
    """Nodes, edges and their states; node N - 1 has no edges, some edges are parallel, some have no reverse."""
    torch.manual_seed(0)
    edge_index = torch.randint(N - 1, (2, E))
    edge_index[:, 1] = edge_index[:, 0]
    edge_index[:, 2] = edge_index[:, 0].flip(0)
    return torch.randn(N, 5, dtype=F64), edge_index, torch.randn(E, F, dtype=F64)


def layer(update, kind=RelationConv, **options):
    torch.manual_seed(1)
    conv = kind(5, C, H, edge_dim=F, edge_update=update, **options).to(F64)
    with torch.no_grad():  # away from norms that begin as the identity
        for parameter in conv.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return conv


LAYERS = {
    "default": ("relational", {}), "mean of heads": ("relational", {"concat": False}),
    "hidden, gated": (rg.nn.RelationalEdges(F, H, C, hidden=5), {"beta": True}),
}  # fmt: skip


@pytest.mark.parametrize("numbers", [1 << 18, 3 * H * C, 1])
@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
@pytest.mark.parametrize("name", LAYERS)
def test_equations_with_all_gradients(name, kind, numbers, graph, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_NUMBERS", numbers)  # all edges at once, several targets, one target
    update, options = LAYERS[name]
    conv = layer(copy.deepcopy(update), kind, **options)
    x, edge_index, edge_attr = graph
    found = []
    for ours in (True, False):
        nodes, states = x.clone().requires_grad_(), edge_attr.clone().requires_grad_()
        if ours:
            out, new = conv(nodes, edge_index, edge_attr=states)
        else:
            q, k, v = (lin(nodes).view(N, H, C) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
            z, change = relational(conv.edge_states, (q, k, v), states, edge_index)
            out = conv._with_root(z.flatten(1) if conv.concat else z.mean(1), nodes)
            new = change(out)
        leaves = [nodes, states, *conv.parameters()]
        found.append([out, new, *torch.autograd.grad(out.sin().sum() + new.cos().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_weights_come_last_and_a_record_leaves_them_out(graph):
    conv = layer("relational")
    x, edge_index, edge_attr = graph
    expected = conv(x, edge_index, edge_attr=edge_attr)
    *found, (_, alpha) = conv(x, edge_index, edge_attr=edge_attr, return_attention_weights=True)
    with rg.record_attention(conv, weights=True) as record:
        recorded = conv(x, edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(tuple(found), expected)
    torch.testing.assert_close(recorded, expected)
    torch.testing.assert_close(record[""][0].weights, alpha)
    assert alpha.shape == (E, H)


def test_an_explainer_masks_what_edges_bring(graph):
    """With a mask that lets nothing pass, a layer gives nodes its root term only; the next states are still made."""
    conv = layer("relational").eval()
    x, edge_index, edge_attr = graph
    set_masks(conv, torch.full((E,), -torch.inf, dtype=F64), edge_index)
    z, states = conv(x, edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(z, conv.lin_skip(x))
    assert states.shape == edge_attr.shape
    clear_masks(conv)
    assert not torch.allclose(conv(x, edge_index, edge_attr=edge_attr)[0], z)


def test_second_derivatives_over_several_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_NUMBERS", 8)
    torch.manual_seed(0)
    conv = RelationConv(3, 2, 2, edge_dim=2, edge_update="relational").to(F64)
    edge_index = torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, 2, 0]])
    leaves = [torch.randn(3, 3, dtype=F64, requires_grad=True), torch.randn(5, 2, dtype=F64, requires_grad=True)]

    def both(x, edge_attr):
        return tuple(out.sin() for out in conv(x, edge_index, edge_attr=edge_attr))

    first, again = (
        torch.autograd.grad(sum(out.sum() for out in both(*leaves)), leaves, create_graph=create) for create in (0, 1)
    )
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradgradcheck(both, leaves)


def test_dropout_and_half_types(graph):
    x, edge_index, edge_attr = graph
    conv = layer("relational", dropout=0.5)
    with torch.no_grad():
        wet, _, (_, alpha) = conv(x, edge_index, edge_attr=edge_attr, return_attention_weights=True)
        dry, new, (_, same) = conv.eval()(x, edge_index, edge_attr=edge_attr, return_attention_weights=True)
    torch.testing.assert_close(alpha, same)
    assert not torch.allclose(wet, dry)
    half = copy.deepcopy(conv).bfloat16()
    found = half(x.bfloat16(), edge_index, edge_attr=edge_attr.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = conv.float()(x.float(), edge_index, edge_attr=edge_attr.float())
    assert {one.dtype for one in found} == {torch.bfloat16}
    for one, other in zip((*found, *mixed), (dry, new) * 2, strict=True):
        torch.testing.assert_close(one.double(), other, atol=0.2, rtol=0.1)


@pytest.mark.parametrize(("kind", "match", "options"), [
    (ValueError, "edge_dim must be given with edge_update", {"edge_dim": None}),
    (ValueError, "edge_update must have heads = 2", {"edge_update": rg.nn.RelationalEdges(F, H + 1, C)}),
    (ValueError, "edge_update must have width = 8", {"edge_update": rg.nn.RelationalEdges(F, H, C, width=3)}),
    (NotImplementedError, "num_relations must be left out with edge_update, got 2: add", {"num_relations": 2}),
    (NotImplementedError, "add_self_loops must be left out", {"add_self_loops": True}),
    (NotImplementedError, "impl must be left out", {"impl": "edges"}),
    (NotImplementedError, "edge_terms must be left out", {"edge_terms": ("key",)}),
    (NotImplementedError, "tie_projections must be left out", {"tie_projections": ("edge",)}),
    (NotImplementedError, "flow must be left out", {"flow": "target_to_source"}),
])  # fmt: skip
def test_refused_options(kind, match, options):
    with pytest.raises(kind, match=match):
        RelationConv(5, C, H, **{"edge_dim": F, "edge_update": "relational", **options})


def test_sources_and_targets_must_be_the_same(graph):
    x, edge_index, edge_attr = graph
    with pytest.raises(ValueError, match="x must be one tensor with edge_update"):
        layer("relational")((torch.cat([x, x[:2]]), x), edge_index, edge_attr=edge_attr)
