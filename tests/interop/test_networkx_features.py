"""Numbers on networkx's nodes and edges as rows of tensors, and back."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
import torch

from relgraph.interop.networkx import from_networkx, to_networkx


def towns(kind=nx.Graph):
    made = kind()
    made.add_node("b", people=2, at=(0.5, 1.5))
    made.add_node("a", people=7.5, at=torch.tensor([2.0, 3.0]))
    made.add_edge("b", "a", hours=3, open=True)
    made.add_edge("a", "a", hours=0.5, open=False)
    return made


def test_nodes_stand_in_their_order_and_edges_have_their_features_in_both_directions():
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        read = from_networkx(towns(), node_features=["at", "people"])
        assert read.x.dtype == dtype
    assert read.nodes == ("b", "a")
    assert read.x.tolist() == [[0.5, 1.5, 2.0], [2.0, 3.0, 7.5]]
    assert read.edge_attr is None
    read = from_networkx(towns(), edge_features=("hours", "open"))
    assert read.graph.edge_index.tolist() == [[0, 1, 1], [1, 0, 1]]
    assert read.edge_attr.tolist() == [[3.0, 1.0], [3.0, 1.0], [0.5, 0.0]]
    assert read.x is None


def test_a_directed_edge_has_its_features_once_and_each_parallel_one_its_own():
    assert from_networkx(towns(nx.DiGraph), edge_features="hours").edge_attr.tolist() == [[3.0], [0.5]]
    many = towns(nx.MultiDiGraph)
    many.add_edge("b", "a", hours=9)
    read = from_networkx(many, edge_features="hours")
    assert sorted(zip(*read.graph.edge_index.tolist(), read.edge_attr[:, 0].tolist(), strict=True)) == [
        (0, 1, 3.0),
        (0, 1, 9.0),
        (1, 1, 0.5),
    ]


def test_features_by_function_see_each_direction():
    read = from_networkx(
        towns(), edge_features=lambda u, v, of: [of["hours"], u < v], node_features=lambda node, of: of["people"] * 2
    )
    assert read.edge_attr.tolist() == [[3.0, 0.0], [3.0, 1.0], [0.5, 0.0]]
    assert read.x.tolist() == [[4.0], [15.0]]


def test_what_numbers_may_be():
    numpy = pytest.importorskip("numpy")
    theirs = nx.DiGraph([("a", "b", {"weight": float("-inf")})])
    theirs.add_node("a", of=numpy.array([1, 2]), on=numpy.float32(0.25))
    theirs.add_node("b", of=[3, 4], on=torch.tensor(0.5))
    read = from_networkx(theirs, node_features=["of", "on"], edge_features="weight")
    assert read.x.tolist() == [[1.0, 2.0, 0.25], [3.0, 4.0, 0.5]]
    assert read.edge_attr.tolist() == [[float("-inf")]]


def test_a_graph_without_nodes_or_edges_has_no_rows():
    read = from_networkx(nx.Graph(), node_features=["a", "b"], edge_features=lambda u, v, of: 1)
    assert read.x.shape == (0, 2) and read.edge_attr.shape == (0, 0)


def test_features_come_back():
    read = from_networkx(towns(), node_features="at", edge_features="hours")
    theirs = to_networkx(read.graph, x=read.x, edge_attr=read.edge_attr[:, 0])
    assert theirs.nodes(data="x")[1] == [2.0, 3.0]
    assert sorted(theirs.edges(data="edge_attr")) == [(0, 1, 3.0), (1, 0, 3.0), (1, 1, 0.5)]
    back = from_networkx(theirs, node_features="x", edge_features="edge_attr")
    assert torch.equal(back.x, read.x)
    assert sorted(back.edge_attr.tolist()) == sorted(read.edge_attr.tolist())
    plain = to_networkx(read.graph)
    assert "x" not in plain.nodes[0] and "edge_attr" not in next(iter(plain.edges(data=True)))[2]


@pytest.mark.parametrize("number", [10**400, -(10**400), Fraction(10**400, 3), 1e300, 10**39])
def test_numbers_that_no_float_holds(number):
    theirs = nx.DiGraph()
    theirs.add_edge("a", "b", weight=number, kind="far")
    with pytest.raises(
        ValueError,
        match="edge_features must be numbers that torch.float32 holds, got a larger one in 'weight' at edge 'a' -> 'b'",
    ):
        from_networkx(theirs, edge_features="weight")
    with pytest.raises(ValueError, match="node_features must be numbers .*, got a larger one at node 'a'"):
        from_networkx(theirs, node_features=lambda node, of: [0.5, number])


def test_refuses_bad_features():
    theirs = towns()
    with pytest.raises(ValueError, match=r"edge 'b' -> 'a' must have the attribute 'weight', got \['hours', 'open'\]"):
        from_networkx(theirs, edge_features="weight")
    with pytest.raises(TypeError, match="edge_features must be numbers, got 'far' at edge 'b' -> 'a'"):
        from_networkx(theirs, edge_features=lambda u, v, of: "far")
    with pytest.raises(TypeError, match=r"node_features must be numbers, got \[1, None\] at node 'b'"):
        from_networkx(theirs, node_features=lambda node, of: [1, None])
    with pytest.raises(ValueError, match="node_features must be as many for every node, 1 at 'b', got 2 at node 'a'"):
        from_networkx(theirs, node_features=lambda node, of: [1] if node == "b" else [1, 2])
    graph = from_networkx(theirs).graph
    with pytest.raises(ValueError, match=r"edge_attr must have shape \[3\] or \[3, F\], got \[2, 1\]"):
        to_networkx(graph, edge_attr=torch.zeros(2, 1))
