"""Several networkx graphs read at once with the same types, and nodes that keep their names on the way back."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

import relgraph as rg
from relgraph.interop.networkx import from_networkx, to_networkx


def molecules():
    """A ring and a chain over the same names, one directed and one not; what occurs in each differs."""
    ring, chain = nx.Graph(), nx.DiGraph()
    ring.add_node("a", atom="C", charge=0.5)
    ring.add_node("b", atom="N", charge=1.0)
    ring.add_edge("a", "b", kind="ring", length=1.5)
    chain.add_node("b", atom="N", charge=2.0)
    chain.add_node("c", atom="H", charge=3.0)
    chain.add_node("a", atom=None, charge=4.0)
    chain.add_edge("c", "b", kind="bond", length=2.5)
    return ring, chain


def test_ids_mean_the_same_in_every_graph():
    read = from_networkx(
        molecules(), edge_type="kind", node_type="atom", node_features="charge", edge_features="length"
    )
    assert read.types == ("bond", "ring") and read.node_types == ("C", "H", "N")
    assert read.nodes == ((0, "a"), (0, "b"), (1, "b"), (1, "c"), (1, "a"))
    assert read.graph.ptr.tolist() == [0, 2, 5]
    assert read.graph.edge_index.tolist() == [[0, 1, 3], [1, 0, 2]]
    assert read.graph.edge_type.tolist() == [1, 1, 0]
    assert read.graph.node_type.tolist() == [0, 2, 2, 1, -1]
    assert read.x.tolist() == [[0.5], [1.0], [2.0], [3.0], [4.0]]
    assert read.edge_attr.tolist() == [[1.5], [1.5], [2.5]]


def test_it_is_the_batch_of_graphs_that_were_read_with_the_same_types():
    options = {"edge_type": "kind", "types": ["ring", "bond"], "node_type": "atom", "node_types": ["N", "C", "H"]}
    alone = [from_networkx(one, **options).graph for one in molecules()]
    together = from_networkx((one for one in molecules()), **options).graph
    assert together == rg.Graph.batch(alone)
    labeler = rg.EdgeType(["ring", "bond"], attend="all") | rg.ShortestPath(2)
    ids, attend = labeler(together).to_dense()
    assert torch.equal(ids[0, 2:, 2:], labeler(alone[1]).to_dense()[0][0])
    assert not attend[0, :2, 2:].any()


def test_one_graph_in_a_list_and_graphs_without_nodes():
    ring, _ = molecules()
    read = from_networkx([nx.Graph(), ring, nx.Graph()], edge_type="kind")
    assert read.graph.ptr.tolist() == [0, 0, 2, 2] and read.nodes == ((1, "a"), (1, "b"))
    assert from_networkx([ring]).graph.ptr.tolist() == [0, 2]
    assert from_networkx(ring).graph.ptr is None


def test_refuses_bad_graphs():
    ring, chain = molecules()
    with pytest.raises(TypeError, match=r"graphs\[1\] must be a networkx graph, got Graph"):
        from_networkx([ring, from_networkx(chain).graph])
    with pytest.raises(ValueError, match=r"types must hold the type of every edge, got 'bond' at edge 'c' -> 'b' of"):
        from_networkx([ring, chain], edge_type="kind", types=["ring"])
    with pytest.raises(ValueError, match=r"node 'a' of graphs\[0\] must have the attribute 'age', got \['atom', 'ch"):
        from_networkx([ring, chain], node_features="age")


@pytest.mark.parametrize("value", [2.5, float("nan")])
def test_refuses_numbers_as_types(value):
    theirs = nx.DiGraph([("u", "v", {"hours": value, "count": 2.0})])
    theirs.add_node("u", age=value)
    theirs.add_node("v", age=1)
    with pytest.raises(
        ValueError,
        match=f"edge_type must be an attribute with few kinds of values, got the number {value} at edge 'u' -> 'v': "
        "read numbers with edge_features='hours', make kinds of them with a function, or list them in types",
    ):
        from_networkx(theirs, edge_type="hours")
    with pytest.raises(ValueError, match=f"node_type must .* number {value} at node 'u': .* node_features='age'"):
        from_networkx(theirs, node_type="age")
    assert from_networkx(theirs, edge_type="count").types == (2.0,)
    assert from_networkx(theirs, edge_type=lambda u, v, of: 0.5).types == (0.5,)
    listed = nx.DiGraph([("u", "v", {"order": 1.5}), ("v", "w", {"order": 1})])
    assert from_networkx(listed, edge_type="order", types=[1, 1.5]).graph.edge_type.tolist() == [1, 0]
    large = nx.DiGraph([("u", "v", {"order": 10**400})])
    assert from_networkx(large, edge_type="order").types == (10**400,)


def test_nodes_get_their_names_back():
    read = from_networkx(molecules(), edge_type="kind", node_features="charge")
    back = to_networkx(read.graph, nodes=read.nodes, types=read.types, x=read.x)
    assert tuple(back) == read.nodes
    assert sorted(back.edges(data="edge_type")) == [
        ((0, "a"), (0, "b"), "ring"),
        ((0, "b"), (0, "a"), "ring"),
        ((1, "c"), (1, "b"), "bond"),
    ]
    assert back.nodes[1, "c"] == {"x": [3.0], "batch": 1}


def test_refuses_bad_names_of_nodes():
    graph = rg.Graph(torch.tensor([[0], [1]]), 2)
    with pytest.raises(ValueError, match="nodes must be one for each of the 2 nodes of the graph, got 3"):
        to_networkx(graph, nodes=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"nodes must be different, got \['a', 'a'\]"):
        to_networkx(graph, nodes=["a", "a"])
    with pytest.raises(TypeError, match=r"nodes must be hashable, got \[\[0\], \[1\]\]"):
        to_networkx(graph, nodes=[[0], [1]])
