"""Edge states as published, in loops over nodes.

Each takes the states module, queries, keys and values ``[N, H, C]``, vectors of edges and their ends, and gives the nodes
``[N, H, C]`` and a function from the new nodes to the next vectors.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import elu


def norm(x, part):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * part.weight + part.bias


def egt(s, qkv, f, edge_index, degree=None):
    q, k, v = qkv
    bias, gate = s.in_proj(norm(f, s.norm1)).split(q.shape[1], -1)
    h, gate = torch.zeros_like(gate), gate.sigmoid()
    z = []
    for i in range(len(q)):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        rows = [((q[i] * k[edge_index[0, e]]).sum(-1) / math.sqrt(q.shape[-1])).clamp(-5, 5) for e in into]
        rows = [row + bias[e] for row, e in zip(rows, into, strict=True)]
        if not into:
            z.append(torch.zeros_like(q[i]))
            continue
        h = h.index_put((torch.tensor(into),), torch.stack(rows))
        alpha = torch.stack(rows).softmax(0) * gate[into]
        mine = sum(alpha[at, :, None] * v[edge_index[0, e]] for at, e in enumerate(into))
        z.append(mine * (1 + gate[into].sum(0)).log()[:, None] if s.scale_degree else mine)
    new = f + s.out_proj(h)
    return torch.stack(z), lambda _: new + s.linear2(elu(s.linear1(norm(new, s.norm2))))


def grit(s, qkv, f, edge_index, degree=None):
    q, k, v = qkv
    gain, shift = s.gain(f).view(len(f), *q.shape[1:]), s.shift(f).view(len(f), *q.shape[1:])
    found, z = [q[0]] * len(f), []
    for i in range(len(q)):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        for e in into:
            product = (q[i] + k[edge_index[0, e]]) * gain[e]
            found[e] = (product.relu().sqrt() - (-product).relu().sqrt() + shift[e]).relu()
        if not into:
            z.append(torch.zeros_like(q[i]))
            continue
        alpha = torch.stack([(s.score * found[e]).sum(-1).clamp(-5, 5) for e in into]).softmax(0)
        y = sum(alpha[at, :, None] * v[edge_index[0, e]] for at, e in enumerate(into))
        row = sum(alpha[at, :, None] * found[e] for at, e in enumerate(into))
        y = y + torch.stack([row[head] @ s.row[head] for head in range(q.shape[1])])
        d = len(into) if degree is None else degree[i]
        z.append(y * s.degree[0] + math.log(1 + d) * y * s.degree[1])
    new = f + s.out_proj(torch.stack(found).flatten(1))
    if isinstance(s.norm, nn.LayerNorm):
        return torch.stack(z), lambda _: norm(new, s.norm)
    centred = new - new.mean(0)
    new = centred / (centred.square().mean(0) + 1e-5).sqrt() * s.norm.weight + s.norm.bias
    return torch.stack(z), lambda _: new


def relational(s, qkv, f, edge_index, degree=None):
    q, k, v = qkv
    u_q, u_k, u_v = (part(f).view(len(f), *q.shape[1:]) for part in (s.to_query, s.to_key, s.to_value))
    z, ends = [], edge_index.T.tolist()
    for i in range(len(q)):
        into = (edge_index[1] == i).nonzero()[:, 0].tolist()
        if not into:
            z.append(torch.zeros_like(q[i]))
            continue
        rows = [((q[i] + u_q[e]) * (k[ends[e][0]] + u_k[e])).sum(-1) / math.sqrt(q.shape[-1]) for e in into]
        alpha = torch.stack(rows).softmax(0)
        z.append(sum(alpha[at, :, None] * (v[ends[e][0]] + u_v[e]) for at, e in enumerate(into)))

    def update(x):
        new = []
        for e, (j, i) in enumerate(ends):
            reverse = f[ends.index([i, j])] if [i, j] in ends else torch.zeros_like(f[e])
            u = s.linear2(s.linear1(torch.cat([f[e], reverse, x[j], x[i]])).relu())
            u = norm(f[e] + u, s.norm1)
            new.append(norm(u + s.linear4(s.linear3(u).relu()), s.norm2))
        return torch.stack(new)

    return torch.stack(z), update


ORACLES = {"egt": egt, "grit": grit, "relational": relational}
