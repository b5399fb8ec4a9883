"""Graph layers see every change of edges and relations in place, however it was made."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

import relgraph as rg
from relgraph.pyg import RelationConv, RelationGlobalAttention, RelationHeteroConv
from tests.cases import F64, WRITES

N, E, R = 7, 20, 4


class Edgewise(RelationConv):
    """The same layer, made to take the message() path."""

    def _can_fuse(self):
        return False


def conv(kind=RelationConv, **options):
    layer = kind(5, 3, heads=2, num_relations=R, **options).to(F64)
    return lambda x, index, types, _: layer(x, index, types)


def given_labels(**options):
    """A layer that is given labels, whose own tensors change."""
    layer = RelationConv(5, 3, heads=2, num_relations=R, **options).to(F64)
    return lambda x, index, types, kept: layer(x, labels_of(index, types, kept))


def function(impl):
    def call(x, index, types, kept):
        heads, generator = x.view(N, 1, 5), torch.Generator().manual_seed(0)
        tables = [torch.randn(R, 5, dtype=F64, generator=generator) for _ in range(2)]
        return rg.edge_attention(heads, heads, heads, labels_of(index, types, kept), *tables, impl=impl)

    return call


def labels_of(index, types, kept):
    """The labels over the memory of these tensors, the same in each call."""
    if "labels" not in kept:
        kept["labels"] = rg.EdgeLabels._trusted(index, types, R, N, N)
    return kept["labels"]


def global_attention(_=None):
    layer = RelationGlobalAttention(5, heads=1, edge_dim=1).to(F64)
    return lambda x, index, types, _: layer(Data(x=x, edge_index=index, edge_attr=types[:, None].to(F64)))


def hetero(_=None):
    layer = RelationHeteroConv(5, 4, (["paper"], [("paper", "cites", "paper")]), heads=2).to(F64)
    return lambda x, index, types, _: layer({"paper": x}, {("paper", "cites", "paper"): index})["paper"]


LAYERS = {
    "fused": conv,
    "messages": lambda: conv(Edgewise),
    "eager": lambda: conv(impl="edges"),
    "full maps": lambda: conv(key_map="full", value_map="full"),
    "full map of queries": lambda: conv(query_map="full", tables=("value",)),
    "means": lambda: conv(normalize="relation", value_map="full", tables=()),
    "self-loops": lambda: conv(add_self_loops=True),
    "labels": given_labels,
    "labels, full maps": lambda: given_labels(key_map="full", value_map="full"),
    "labels, full map of queries": lambda: given_labels(query_map="full", tables=("value",)),
    "labels, means": lambda: given_labels(normalize="relation", value_map="full", tables=()),
    "function": lambda: function(None),
    "function, eager": lambda: function("edges"),
    "all pairs": global_attention,
    "hetero": hetero,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_see_every_change(name, write):
    torch.manual_seed(0)
    layer, x, kept = LAYERS[name](), torch.randn(N, 5, dtype=F64), {}
    keys = torch.randperm(N * N)[:E]
    index, types = torch.stack([keys % N, keys // N]), torch.randint(R, (E,))
    edges = [index, types]
    for changed in (0, 1) if name != "hetero" else (0,):  # whose relations are its edge types
        for _ in range(2):
            before = layer(x, *edges, kept)
        WRITES[write](edges[changed], (edges[changed] + 1) % (N, R)[changed])
        for _ in range(2):
            got = layer(x, *edges, kept)
            assert not torch.equal(got, before)
            torch.testing.assert_close(got, layer(x, *(one.clone() for one in edges), {}))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["fused", "eager", "full maps", "means", "labels"])
def test_gradients_are_those_of_the_edges_of_forward(name, write):
    torch.manual_seed(0)
    layer, x, kept = LAYERS[name](), torch.randn(N, 5, dtype=F64, requires_grad=True), {}
    index, types = torch.randint(N, (2, E)), torch.randint(R, (E,))
    total = layer(x, index, types, kept).sin().sum()
    (wanted,) = torch.autograd.grad(total, x, retain_graph=True)
    WRITES[write](index, index.flip(0))
    assert torch.equal(torch.autograd.grad(total, x)[0], wanted)


def test_a_change_to_edges_that_do_not_exist_is_refused():
    layer, x, index, types = conv(), torch.randn(N, 5, dtype=F64), torch.randint(N, (2, E)), torch.randint(R, (E,))
    layer(x, index, types, {})
    index.numpy()[0, 3] = N
    with pytest.raises(ValueError, match=r"edge_index: every source must lie in \[0, 7\)"):
        layer(x, index, types, {})
