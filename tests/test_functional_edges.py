"""Attention over edges with labels and vectors, against a loop over the edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.impl.eager import sparse
from tests.cases import F64


def inputs(n_q=6, n_k=5, heads=2, size=3, value_size=4, pairs=11, labels=3, width=2, seed=0):
    torch.manual_seed(seed)
    rand = lambda *shape: torch.randn(*shape, dtype=F64, requires_grad=True)  # noqa: E731
    index = torch.stack([torch.randint(n_k, (pairs,)), torch.randint(n_q, (pairs,))])
    edges = rg.EdgeLabels(index, torch.randint(-1, labels, (pairs,)), labels, q_len=n_q, k_len=n_k)
    tensors = {
        "query": rand(n_q, heads, size), "key": rand(n_k, heads, size), "value": rand(n_k, heads, value_size),
        "key_table": rand(heads, labels, size), "value_table": rand(labels, value_size),
        "query_table": rand(labels, size), "bias_table": rand(heads, labels),
        "edge_attr": rand(pairs, width), "edge_key": rand(heads, size, width), "edge_value": rand(value_size, width),
    }  # fmt: skip
    return edges, tensors


def looped(edges, t):
    """Compute edge attention edge by edge."""
    n, heads, size = t["query"].shape
    index, ids = edges.edge_index, edges.ids.long()
    rows, weights = [], {}
    for i in range(n):
        mine = [e for e in range(ids.shape[0]) if int(index[1, e]) == i]
        for h in range(heads):
            scores, values = [], []
            for e in mine:
                key, value = t["key"][index[0, e], h], t["value"][index[0, e], h]
                extra_key = t["edge_key"][h] @ t["edge_attr"][e]
                value = value + t["edge_value"] @ t["edge_attr"][e]
                bias = torch.zeros((), dtype=F64)
                query_row = torch.zeros(size, dtype=F64)
                if ids[e] >= 0:
                    extra_key = extra_key + t["key_table"][h, ids[e]]
                    value = value + t["value_table"][ids[e]]
                    bias, query_row = t["bias_table"][h, ids[e]], t["query_table"][ids[e]]
                scores.append((t["query"][i, h] @ (key + extra_key) + query_row @ key) / math.sqrt(size) + bias)
                values.append(value)
            alpha = torch.stack(scores).softmax(0) if mine else torch.zeros(0, dtype=F64)
            weights.update({(e, h): a for e, a in zip(mine, alpha, strict=True)})
            total = t["value"].new_zeros(t["value"].shape[-1])
            rows.append(sum((a * v for a, v in zip(alpha, values, strict=True)), total))
    alpha = torch.stack([torch.stack([weights[e, h] for h in range(heads)]) for e in range(ids.shape[0])])
    return torch.stack(rows).unflatten(0, (n, heads)), alpha


@pytest.mark.parametrize("gathered", [0, 1 << 40])
def test_against_a_loop_with_all_gradients(gathered, monkeypatch):
    monkeypatch.setattr(sparse, "GATHERED", gathered)
    edges, t = inputs()
    wanted, got = looped(edges, t), rg.edge_attention(labels=edges, need_weights=True, **t)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
    pull = [torch.randn_like(x) for x in wanted]
    for a, b in zip(
        torch.autograd.grad(got, list(t.values()), pull),
        torch.autograd.grad(wanted, list(t.values()), pull),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 7), pairs=st.integers(0, 15), seed=st.integers(0, 99))
def test_order_and_numbering_do_not_matter(n, pairs, seed):
    edges, t = inputs(n, n, pairs=pairs, seed=seed)
    with torch.no_grad():
        wanted, weights = rg.edge_attention(labels=edges, need_weights=True, **t)
        order, node = torch.randperm(pairs), torch.randperm(n)
        moved = rg.EdgeLabels(node[edges.edge_index[:, order]], edges.ids[order], 3, q_len=n)
        nodes = {name: torch.empty_like(t[name]).index_copy(0, node, t[name]) for name in ("query", "key", "value")}
        got, their = rg.edge_attention(
            labels=moved, need_weights=True, **t | nodes | {"edge_attr": t["edge_attr"][order]}
        )
    torch.testing.assert_close(got[node], wanted)
    torch.testing.assert_close(their, weights[order])


EDGES, GOOD = inputs()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": rg.EdgeLabels(torch.zeros(2, 0).long(), torch.zeros(0).long(), 3, q_len=6, k_len=5, default=-1)}, ValueError, "labels must have default=None and no batch axis"),
        ({"edge_attr": GOOD["edge_attr"][:4]}, ValueError, r"edge_attr must be floating of shape \[E, F\] = \[11, F\], got torch.float64 \[4, 2\]"),
        ({"edge_attr": None}, ValueError, "edge_key must be left out without edge_attr, got Tensor"),
        ({"edge_key": None, "edge_value": None}, ValueError, "edge_attr needs edge_key or edge_value"),
        ({"edge_value": GOOD["edge_key"]}, ValueError, r"edge_value must have shape \[D_v, F\] or \[H, D_v, F\] = \[4, 2\] or \[2, 4, 2\], got \[2, 3, 2\]"),
        ({"row_scores": torch.zeros(2, 6, 3, dtype=F64), "key_table": None}, ValueError, r"row_scores must have shape \[N_q, H, R\] = \[6, 2, 3\], got \[2, 6, 3\]"),
    ],
)  # fmt: skip
def test_refuses_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        rg.edge_attention(**{"labels": EDGES, **GOOD} | change)


@pytest.mark.cuda
@pytest.mark.parametrize("parallel", [False, True])
def test_kernels_give_what_plain_torch_gives(parallel):
    pytest.importorskip("triton", reason="triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    edges, t = inputs(pairs=11 if parallel else 4)
    t = {k: x.detach().float().to(device).requires_grad_() for k, x in t.items() if not k.startswith("edge_")}
    edges = edges.to(device)
    found = []
    for impl in ("edges", "triton"):
        z = rg.edge_attention(**t, labels=edges, impl=impl)
        found.append([z, *torch.autograd.grad(z.square().sum(), list(t.values()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_what_kernels_over_edges_refuse():
    edges, t = inputs()
    few = {name: t[name].float() for name in ("query", "key", "value")}
    with pytest.raises(NotImplementedError, match="has no edge_attr; use impl='edges'"):
        rg.edge_attention(**few, labels=edges, edge_attr=t["edge_attr"], edge_key=t["edge_key"], impl="triton")
    with pytest.raises(NotImplementedError, match="does not support need_weights here; use impl='edges'"):
        rg.edge_attention(**few, labels=edges, need_weights=True, impl="triton")
