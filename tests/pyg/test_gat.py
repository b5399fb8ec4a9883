"""GATConv from edge_attention: a rank-one score, a bias table and a leaky ReLU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops, remove_self_loops

import relgraph as rg
from tests.cases import F64

NODES, EDGES, TYPES, HEADS, WIDTH = 6, 20, 4, 2, 3


def gat(conv, x, edge_index, edge_type):
    """What a GATConv with one-hot edge types computes, by its own parameters."""
    hidden = conv.lin(x).view(-1, HEADS, WIDTH)
    u, v = ((hidden * a).sum(-1) for a in (conv.att_dst, conv.att_src))
    one = torch.ones_like(u)
    bias = (conv.lin_edge.weight.view(HEADS, WIDTH, TYPES) * conv.att_edge[0, :, :, None]).sum(1)
    labels = rg.EdgeLabels(edge_index, edge_type, TYPES, q_len=x.shape[0])
    z, weights = rg.edge_attention(
        torch.stack([u, one], -1), torch.stack([one, v], -1), hidden, labels, bias_table=bias,
        score=rg.score.LeakyReLU(conv.negative_slope), scale=1.0, need_weights=True,
    )  # fmt: skip
    return z.flatten(1) + conv.bias, weights


@pytest.mark.parametrize(("loops", "slope"), [(False, 0.2), (True, 0.0), (True, 0.7)])
def test_values_and_gradients(loops, slope):
    conv = GATConv(5, WIDTH, HEADS, True, slope, add_self_loops=loops, edge_dim=TYPES, fill_value=0.0).to(F64)
    x = torch.randn(NODES, 5, dtype=F64, requires_grad=True)
    edge_index, edge_type = torch.randint(NODES, (2, EDGES)), torch.randint(TYPES, (EDGES,))
    expected, (index, alpha) = conv(x, edge_index, one_hot(edge_type, TYPES).to(F64), return_attention_weights=True)
    if loops:
        edge_index, edge_type = remove_self_loops(edge_index, edge_type)
        edge_index, edge_type = add_self_loops(edge_index, edge_type, fill_value=-1, num_nodes=NODES)
        assert torch.equal(edge_index, index)
    out, weights = gat(conv, x, edge_index, edge_type)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(weights, alpha, atol=1e-10, rtol=0)
    leaves = [x, *conv.parameters()]
    mine = torch.autograd.grad(out.sin().sum(), leaves)
    theirs = torch.autograd.grad(expected.sin().sum(), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_features_of_edges_that_are_not_one_hot():
    conv = GATConv(5, WIDTH, HEADS, add_self_loops=False, edge_dim=TYPES).to(F64)
    x, attr = torch.randn(NODES, 5, dtype=F64), torch.randn(EDGES, TYPES, dtype=F64)
    edge_index = torch.randint(NODES, (2, EDGES))
    hidden = conv.lin(x).view(-1, HEADS, WIDTH)
    u, v = ((hidden * a).sum(-1) for a in (conv.att_dst, conv.att_src))
    bias = (conv.lin_edge.weight.view(HEADS, WIDTH, TYPES) * conv.att_edge[0, :, :, None]).sum(1)
    query, key = torch.stack([u, torch.ones_like(u)], -1), torch.stack([torch.ones_like(v), v], -1)
    labels = rg.EdgeLabels(edge_index, torch.full((EDGES,), -1), 0, q_len=NODES)
    out = rg.edge_attention(
        query, key, hidden, labels, edge_attr=attr, edge_key=torch.stack([torch.zeros_like(bias), bias], 1),
        score=rg.score.LeakyReLU(), scale=1.0,
    )  # fmt: skip
    torch.testing.assert_close(out.flatten(1) + conv.bias, conv(x, edge_index, attr), atol=1e-10, rtol=0)
