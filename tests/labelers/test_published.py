"""The labels of published graph Transformers, held to their papers' formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import relgraph as rg
from relgraph.labelers import PathEdges, ShortestPath, ShortestPathTypes

from .conformance import Case, LabelerSuite

EDGES = torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 1, 4]])
ONE = rg.Graph(EDGES, 6, edge_type=torch.tensor([0, 1, 0, 1, 1]), node_type=torch.tensor([0, 0, 0, 0, 0, 9]))
BATCH = rg.Graph.batch([ONE, ONE.with_edges(EDGES.flip(0), ONE.edge_type)])


class TestConformance(LabelerSuite):
    cases = (
        Case(rg.labelers.graphormer(3, 2, max_path=2), (BATCH,)),
        Case(rg.labelers.graphormer(4, ["single", "double"], max_path=1), (ONE,)),
        Case(rg.labelers.graphormer(2, 2, beyond="label", unreachable="unlabeled", virtual_node=9), (BATCH,)),
        Case(rg.labelers.graphormer(2, 2, max_path=2, start="query"), (ONE,)),
        Case(rg.labelers.grpe(2, 2), (BATCH,)),
        Case(rg.labelers.grpe(2, ["single", "double"], directed=True, duplicates="first"), (ONE,)),
    )


def test_graphormer_is_a_sum():
    wanted = ShortestPath(4, directed=True) + PathEdges(3, 2, directed=True)
    assert rg.labelers.graphormer(4, 2, max_path=3) == wanted
    assert rg.labelers.graphormer(4, 2).num_labels == (6, 10, 8, 6, 4, 2)


class MeanOverHops(nn.Module):
    """Graphormer's edge term, one scalar per head and path: the mean over its edges of w_n(type)."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(weights)  # [H, hops, types]

    def forward(self, paths):
        hops = torch.arange(paths.shape[1])
        terms = self.weights[:, hops, paths.clamp(min=0)] * (paths >= 0)
        return terms.sum(-1) / (paths >= 0).sum(1).clamp(min=1)


@pytest.mark.parametrize("graph", [ONE, BATCH])
def test_graphormer_gives_the_paper_s_bias(graph):
    torch.manual_seed(0)
    heads, hops, types = 2, 4, 2
    distance = torch.randn(heads, 6, dtype=torch.float64)
    weights = torch.randn(heads, hops, types, dtype=torch.float64)
    per_hop = [
        torch.cat([weights[:, hop - 1] / length for length in range(hop, hops + 1)], 1) for hop in range(1, hops + 1)
    ]
    q, k, v = torch.randn(3, 1, heads, graph.num_nodes, 3, dtype=torch.float64)
    q, k, v = (x if graph.ptr is None else x[0].transpose(0, 1) for x in (q, k, v))
    labels = rg.labelers.graphormer(4, types, max_path=hops)(graph)
    got = rg.relation_attention(q, k, v, labels, bias_table=(distance, *per_hop))
    path, paths = ShortestPathTypes(hops, types, directed=True)(graph)
    tied = rg.labels.total(ShortestPath(4, directed=True)(graph), path)
    bank = MeanOverHops(weights)
    torch.testing.assert_close(rg.relation_attention(q, k, v, tied, bias_table=(distance, bank(paths))), got)


def hops_from(query, edges, types):
    """Return, for each key that edges lead to from the query, the types of the edges on the way."""
    found, fresh = {query: []}, [query]
    while fresh:
        now = fresh.pop(0)
        for (source, target), kind in zip(edges, types, strict=True):
            if source == now and target not in found:
                found[target] = [*found[now], kind]
                fresh.append(target)
    return found


@pytest.mark.parametrize("hidden_from", [2, 3, 20])
def test_graphormer_as_released(hidden_from):
    """Paths begin at the query, far and unreachable pairs are hidden, and the virtual node 5 has one scalar."""
    torch.manual_seed(0)
    heads, hops, types = 2, 2, 2
    spatial = torch.randn(heads, 23, dtype=torch.float64)  # row of distance d: 1 + d
    weights = torch.randn(heads, hops, types, dtype=torch.float64)
    token = torch.randn(heads, 1, dtype=torch.float64)
    bias = torch.full((heads, 6, 6), -torch.inf, dtype=torch.float64)
    for i in range(5):
        for j, path in hops_from(i, EDGES.T.tolist(), ONE.edge_type.tolist()).items():
            if len(path) < hidden_from:
                counted = path[:hops]
                mean = sum(weights[:, n, kind] for n, kind in enumerate(counted)) / max(len(counted), 1)
                bias[:, i, j] = spatial[:, 1 + len(path)] + mean
    bias[:, 5], bias[:, :, 5] = token, token
    q, k, v = torch.randn(3, 1, heads, 6, 3, dtype=torch.float64)
    wanted = (q @ k.mT / 3**0.5 + bias).softmax(-1) @ v
    released = {"beyond": "unreachable", "unreachable": None, "virtual_node": 9, "start": "query"}
    labeler = rg.labelers.graphormer(hidden_from - 1, types, max_path=hops, **released)
    assert labeler.names[0][:4] == ("node→virtual", "virtual→node", "virtual→virtual", "0")
    distances = torch.cat([token.expand(heads, 3), spatial[:, 1 : hidden_from + 1]], 1)
    per_hop = [
        torch.cat([weights[:, hop - 1] / length for length in range(hop, hops + 1)], 1) for hop in range(1, hops + 1)
    ]
    got = rg.relation_attention(q, k, v, labeler(ONE), bias_table=(distances, *per_hop))
    torch.testing.assert_close(got, wanted)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=16), st.integers(1, 5))
def test_distances_of_graphormer_as_released(edges, hidden_from):
    index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).T
    graph = rg.Graph(
        index, 8, edge_type=torch.zeros(len(edges), dtype=torch.int64), node_type=torch.tensor([0] * 7 + [1])
    )
    released = {"beyond": "unreachable", "unreachable": None, "virtual_node": 1, "start": "query"}
    labels = rg.labelers.graphormer(hidden_from - 1, 1, max_path=1, **released)(graph)
    ids, attend = labels.parts[0].to_dense()
    for i in range(7):
        found = hops_from(i, edges, [0] * len(edges))
        for j in range(7):
            seen = j in found and len(found[j]) < hidden_from
            assert bool(attend[0, i, j]) == seen
            assert not seen or int(ids[0, i, j]) == 3 + len(found[j])
    assert ids[0, 7].tolist() == [1] * 7 + [2]
    assert ids[0, :, 7].tolist() == [0] * 7 + [2]
    assert bool(attend[0, 7].all() & attend[0, :, 7].all())


def test_grpe_of_graphs_with_self_loops_needs_a_choice():
    graph = rg.Graph(torch.tensor([[0, 0], [0, 1]]), 2, edge_type=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="duplicates must be 'first' or 'sum' .* more than one edge from 0 to 0"):
        rg.labelers.grpe(2, 2)(graph)
    assert rg.labelers.grpe(2, 2, duplicates="first")(graph).parts[1].to_dense()[0].tolist() == [[[1, 3], [0, 2]]]
    assert rg.labelers.grpe(2, 2, duplicates="sum")(graph).parts[1].ids.tolist() == [1, 0, 2, 2]
