"""Edge states as published, in loops over nodes.

It takes the states module, queries, keys and values ``[N, H, C]``, vectors of edges and their ends, and gives the nodes
``[N, H, C]`` and a function from the new nodes to the next vectors.
"""

from __future__ import annotations

import math

import torch


def norm(x, part):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * part.weight + part.bias


def relational(s, qkv, f, edge_index):
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
