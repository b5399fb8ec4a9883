"""The graph that labelers read: borders, trees, batches, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg


def index(*edges):
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).T


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_pairs_go_graph_by_graph_and_row_by_row(sizes):
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    query, key = rg.Graph(index(), int(ptr[-1]), ptr=ptr).pairs()
    wanted = [(i, j) for a, b in pairwise(ptr) for i in range(a, b) for j in range(a, b)]
    assert list(zip(query.tolist(), key.tolist(), strict=True)) == wanted


@given(st.data())
def test_parents_come_back(data):
    count = data.draw(st.integers(1, 8))
    parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, count)]
    order = data.draw(st.permutations(range(count)))
    moved = torch.full((count,), -1)
    for node, parent in enumerate(parents):
        moved[order[node]] = -1 if parent < 0 else order[parent]
    graph = rg.Graph.from_parents(moved, edge_type=torch.arange(count))
    torch.testing.assert_close(graph.parents(), moved)
    assert all(int(t) == int(child) for t, child in zip(graph.edge_type, graph.edge_index[1], strict=True))


def test_a_batch_is_its_graphs_end_to_end():
    one = rg.Graph(index((0, 1)), 2, edge_type=torch.tensor([3]), node_type=torch.tensor([-1, 2]))
    two = rg.Graph(index(), 0, edge_type=torch.tensor([], dtype=torch.int64), node_type=torch.tensor([], dtype=torch.int64))  # fmt: skip
    both = rg.Graph.batch([one, two, one])
    assert both == rg.Graph(
        index((0, 1), (2, 3)), 4, edge_type=torch.tensor([3, 3]), node_type=torch.tensor([-1, 2, -1, 2]),
        ptr=torch.tensor([0, 2, 2, 4]),
    )  # fmt: skip
    assert rg.Graph.batch([both, one]).ptr.tolist() == [0, 2, 2, 4, 6]
    assert rg.Graph.batch(graph for graph in (one, two, one)) == both
    assert both.num_graphs == 3
    assert both.graph_of().tolist() == [0, 0, 2, 2]
    assert both != one
    assert both != "graph"


def test_edges_of_one_type():
    graph = rg.Graph(index((0, 1), (1, 0)), 2, edge_type=torch.tensor([0, 1]), node_type=torch.tensor([1, 0]))
    assert graph.of_type(1) == rg.Graph(index((1, 0)), 2, node_type=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="graph must have edge_type to select edges of type 0, got None"):
        graph.of_type(1).of_type(0)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: rg.Graph(index((0, 1)), 2**31), ValueError, "num_nodes must be at most 2147483647, got 2147483648"),
        (lambda: rg.Graph(index((0, 1)), 10**6).pairs(), ValueError, "graph must make at most 4,294,967,296 pairs, .* got 1000000000000"),
        (lambda: rg.Graph(index((0, 1)), 10**6, ptr=torch.tensor([0, 10, 10**6])).pairs(), ValueError, "graph must make at most .* got 999980000200"),
        (lambda: rg.Graph(index((0, 1)), 2).to("meta").pairs(), ValueError, "graph must hold numbers, got tensors on the device meta"),
        (lambda: rg.Graph.from_parents(torch.tensor([-1, 0], device="meta")), ValueError, "parents must hold numbers"),
        (lambda: rg.Graph.batch([rg.Graph(index((0, 1)), 2), rg.Graph(index((0, 1)), 2).to("meta")]), ValueError, r"graphs\[1\] must be on the device of graphs\[0\]"),
    ],
)  # fmt: skip
def test_limits_and_kinds(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_moves_and_prints():
    graph = rg.Graph(index((0, 1)), 2, ptr=torch.tensor([0, 2]))
    assert graph.to("meta").device.type == "meta"
    assert graph.to("cpu") == graph
    assert repr(graph) == "Graph(num_nodes=2, num_edges=1, num_graphs=1)"
    typed = rg.Graph(index((0, 1)), 2, edge_type=torch.tensor([3]), node_type=torch.tensor([0, 1]))
    assert repr(typed) == "Graph(num_nodes=2, num_edges=1, edge_type=<tensor [1]>, node_type=<tensor [2]>)"
    with pytest.raises(AttributeError, match="Graph is immutable: cannot set ptr"):
        graph.ptr = None
    with pytest.raises(TypeError, match="unhashable"):
        hash(graph)


def test_a_forest_has_several_roots():
    forest = rg.Graph(index((0, 1)), 3)
    assert forest.parents(forest=True).tolist() == [-1, 0, -1]
    with pytest.raises(ValueError, match="graph must be a tree, got the roots 0 and 2 in graph 0"):
        forest.parents()
    packed = rg.Graph(index((0, 1)), 3, ptr=torch.tensor([0, 2, 3]))
    assert packed.parents().tolist() == [-1, 0, -1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rg.Graph(index((0, 2)), 2), r"must lie in \[0, 2\), got edge 0: 0 -> 2, out of range at its target"),
        (lambda: rg.Graph(index((0, 1), (2, -1)), 2), "got edge 1: 2 -> -1, out of range at its source and target"),
        (lambda: rg.Graph(index((0, 1)), 2, edge_type=torch.tensor([0, 1])), r"edge_type must have shape \[1\], got \[2\]"),
        (lambda: rg.Graph(index((0, 1)), 2, edge_type=torch.tensor([-1])), "edge_type must be at least 0, got -1"),
        (lambda: rg.Graph(index(), 2, node_type=torch.tensor([0, -2])), "node_type must be at least -1, got -2"),
        (lambda: rg.Graph(index((0, 1)), 2, ptr=torch.tensor([0, 1, 2])), "must not cross from graph to graph, got edge 0: 0 -> 1"),
        (lambda: rg.Graph(index((0, 1)), 2, ptr=torch.tensor([0, 1])), "ptr must start at 0, never fall and end at 2"),
        (lambda: rg.Graph(index((0, 1)).to("meta"), 2, node_type=torch.tensor([0, 0])), "node_type must be on the device of edge_index"),
        (lambda: rg.Graph.from_parents(torch.tensor([-1, 2])), r"parents must lie in \[-1, 2\)"),
        (lambda: rg.Graph.from_parents(torch.tensor([1, 0])), "got a cycle through node"),
        (lambda: rg.Graph(index((0, 2), (1, 2)), 3).parents(), "got node 2 with the parents 0 and 1"),
        (lambda: rg.Graph(index((0, 1), (0, 1)), 2).parents(), "node 1 with the parents 0 and 0: the edge 0 -> 1 is there twice"),
        (lambda: rg.Graph(index((0, 0)), 1).parents(), "got a cycle through node 0"),
        (lambda: rg.Graph.batch([]), "graphs must hold at least one Graph, got none"),
        (lambda: rg.Graph.batch([rg.Graph(index(), 1), rg.Graph(index(), 1, node_type=torch.tensor([0]))]), "node_type must be given for all graphs or for none, got 1 of 2"),
        (lambda: rg.ClippedDistance(1)(rg.Graph(index(), 1), 2), "k_len must not be given with a Graph"),
    ],
)  # fmt: skip
def test_refuses_wrong_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sequence_labelers_count_along_each_graph():
    graph = rg.Graph(index(), 5, ptr=torch.tensor([0, 2, 2, 5]))
    assert rg.ClippedDistance(2)(graph) == rg.ClippedDistance(2)(5, ptr=graph.ptr)
    by_function = rg.FromFunction(lambda i, j: (j - i).clamp(-2, 2) + 2, 5)
    for a, b in zip(by_function(graph).to_dense(), rg.ClippedDistance(2)(graph).to_dense(), strict=True):
        torch.testing.assert_close(a, b)
    alone = rg.Graph(index(), 3)
    assert rg.ClippedDistance(2)(alone) == rg.ClippedDistance(2)(3)
    assert by_function(alone) == by_function(3)


def test_infers_the_number_of_nodes():
    edges = torch.tensor([[0, 4], [1, 2]])
    assert rg.Graph(edges) == rg.Graph(edges, 5)
    assert rg.Graph(edges, node_type=torch.zeros(7).long()).num_nodes == 7
    assert rg.Graph(edges[:, :1], ptr=torch.tensor([0, 3, 6])).num_nodes == 6
    assert rg.Graph(edges[:, :0]).num_nodes == 0
    with pytest.raises(TypeError, match=r"edge_index must be a Tensor, got list: make it a tensor with torch\.tensor"):
        rg.Graph([[0], [1]])
    with pytest.raises(ValueError, match="edge_index must hold numbers, got tensors on the device meta"):
        rg.Graph(edges.to("meta"))
