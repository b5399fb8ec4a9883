"""Edge states of RelationConv: each preset against its published equations, written here as loops over nodes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import elu
from torch_geometric.data import Data
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer

import relgraph as rg
from relgraph.nn.edge_states import blocks
from relgraph.pyg import RelationConv
from tests.cases import F64

N, E, F, H, C = 7, 23, 3, 2, 4
PRESETS = ("egt", "grit", "relational")


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


def norm(x, part):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * part.weight + part.bias


def egt(s, q, k, v, f, edge_index, degree):  # noqa: ARG001
    bias, gate = s.in_proj(norm(f, s.norm1)).split(H, -1)
    h, gate = torch.zeros(E, H, dtype=F64), gate.sigmoid()
    z = []
    for i in range(N):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        rows = [((q[i] * k[edge_index[0, e]]).sum(-1) / math.sqrt(C)).clamp(-5, 5) for e in into]
        rows = [row + bias[e] for row, e in zip(rows, into, strict=True)]
        if not into:
            z.append(torch.zeros(H, C, dtype=F64))
            continue
        h = h.index_put((torch.tensor(into),), torch.stack(rows))
        alpha = torch.stack(rows).softmax(0) * gate[into]
        mine = sum(alpha[at, :, None] * v[edge_index[0, e]] for at, e in enumerate(into))
        z.append(mine * (1 + gate[into].sum(0)).log()[:, None] if s.scale_degree else mine)
    new = f + s.out_proj(h)
    return torch.stack(z), lambda _: new + s.linear2(elu(s.linear1(norm(new, s.norm2))))


def grit(s, q, k, v, f, edge_index, degree):
    gain, shift = s.gain(f).view(E, H, C), s.shift(f).view(E, H, C)
    found, z = [None] * E, []
    for i in range(N):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        for e in into:
            product = (q[i] + k[edge_index[0, e]]) * gain[e]
            found[e] = (product.relu().sqrt() - (-product).relu().sqrt() + shift[e]).relu()
        if not into:
            z.append(torch.zeros(H, C, dtype=F64))
            continue
        alpha = torch.stack([(s.score * found[e]).sum(-1).clamp(-5, 5) for e in into]).softmax(0)
        y = sum(alpha[at, :, None] * v[edge_index[0, e]] for at, e in enumerate(into))
        row = sum(alpha[at, :, None] * found[e] for at, e in enumerate(into))
        y = y + torch.stack([row[head] @ s.row[head] for head in range(H)])
        d = len(into) if degree is None else degree[i]
        z.append(y * s.degree[0] + math.log(1 + d) * y * s.degree[1])
    new = f + s.out_proj(torch.stack(found).flatten(1))
    if isinstance(s.norm, nn.LayerNorm):
        return torch.stack(z), lambda _: norm(new, s.norm)
    centred = new - new.mean(0)
    new = centred / (centred.square().mean(0) + 1e-5).sqrt() * s.norm.weight + s.norm.bias
    return torch.stack(z), lambda _: new


def relational(s, q, k, v, f, edge_index, degree):  # noqa: ARG001
    u_q, u_k, u_v = (part(f).view(E, H, C) for part in (s.to_query, s.to_key, s.to_value))
    z, ends = [], edge_index.T.tolist()
    for i in range(N):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        if not into:
            z.append(torch.zeros(H, C, dtype=F64))
            continue
        rows = [((q[i] + u_q[e]) * (k[ends[e][0]] + u_k[e])).sum(-1) / math.sqrt(C) for e in into]
        alpha = torch.stack(rows).softmax(0)
        z.append(sum(alpha[at, :, None] * (v[ends[e][0]] + u_v[e]) for at, e in enumerate(into)))

    def update(x):
        new = []
        for e, (j, i) in enumerate(ends):
            reverse = f[ends.index([i, j])] if [i, j] in ends else torch.zeros(F, dtype=F64)
            u = s.linear2(s.linear1(torch.cat([f[e], reverse, x[j], x[i]])).relu())
            u = norm(f[e] + u, s.norm1)
            new.append(norm(u + s.linear4(s.linear3(u).relu()), s.norm2))
        return torch.stack(new)

    return torch.stack(z), update


LAYERS = {
    "egt": (egt, "egt", {}), "egt, scaled": (egt, rg.nn.EGTEdges(F, H, C, scale_degree=True, hidden=5), {"beta": True}),
    "grit": (grit, "grit", {"root_weight": False}), "grit, layer norm": (grit, rg.nn.GRITEdges(F, H, C, norm="layer"), {}),
    "relational": (relational, "relational", {}), "relational, mean of heads": (relational, True, {"concat": False}),
}  # fmt: skip


@pytest.mark.parametrize("numbers", [1 << 18, 3 * H * C, 1])
@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
@pytest.mark.parametrize("name", LAYERS)
def test_equations_with_all_gradients(name, kind, numbers, graph, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_NUMBERS", numbers)  # all edges at once, several targets, one target
    oracle, update, options = LAYERS[name]
    conv = layer(copy.deepcopy(update), kind, **options)
    x, edge_index, edge_attr = graph
    degree = torch.arange(N) if oracle is grit else None
    found = []
    for ours in (True, False):
        nodes, states = x.clone().requires_grad_(), edge_attr.clone().requires_grad_()
        if ours:
            out, new = conv(nodes, edge_index, edge_attr=states, degree=degree)
        else:
            q, k, v = (lin(nodes).view(N, H, C) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
            z, change = oracle(conv.edge_states, q, k, v, states, edge_index, degree)
            out = conv._with_root(z.flatten(1) if conv.concat else z.mean(1), nodes)
            new = change(out)
        leaves = [nodes, states, *conv.parameters()]
        found.append([out, new, *torch.autograd.grad(out.sin().sum() + new.cos().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)
