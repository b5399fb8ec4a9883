"""networkx graphs both ways, and a labeling as a networkx graph."""

from __future__ import annotations

import runpy
import sys

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.interop import networkx as interop
from relgraph.interop.networkx import from_networkx, labels_to_networkx, to_networkx


@st.composite
def graphs(draw, packed=False):
    """Any graph of ours: self-loops, parallel edges, isolated nodes, empty graphs, nodes without a type."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)) if packed else [draw(st.integers(0, 5))]
    made = []
    for count in sizes:
        node = st.integers(0, max(count - 1, 0))
        edges = draw(st.lists(st.tuples(node, node, st.integers(0, 2)), max_size=6 if count else 0))
        table = torch.tensor(edges, dtype=torch.int64).view(-1, 3).T
        node_type = torch.tensor(draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count)), dtype=torch.int64)
        made.append(rg.Graph(table[:2], count, edge_type=table[2], node_type=node_type))
    return rg.Graph.batch(made) if packed else made[0]


def listed(graph):
    """Edges with their types in any order."""
    return sorted(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))


@given(graphs())
@settings(max_examples=50)
def test_our_graphs_come_back(graph):
    back = from_networkx(
        to_networkx(graph, types=["a", "b", "c"], node_types=["A", "B"]),
        edge_type="edge_type",
        types=["a", "b", "c"],
        node_type="node_type",
        node_types=["A", "B"],
    )
    assert back.nodes == tuple(range(graph.num_nodes))
    assert listed(back.graph) == listed(graph)
    assert torch.equal(back.graph.node_type, graph.node_type)


@given(graphs())
def test_ids_stand_for_themselves_without_names(graph):
    made = to_networkx(graph)
    assert isinstance(made, nx.MultiDiGraph)
    assert sorted(made.edges(data="edge_type")) == listed(graph)
    assert [of["node_type"] for _, of in made.nodes(data=True)] == [
        None if kind < 0 else kind for kind in graph.node_type.tolist()
    ]


NODES = ["b", "a", ("c", 1), 7, frozenset({2})]


@given(
    st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]),
    st.lists(st.sampled_from(NODES), unique=True),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from("xyz")), max_size=8),
)
@settings(max_examples=50)
def test_their_graphs_against_their_own_view(kind, nodes, edges):
    theirs = kind()
    theirs.add_nodes_from(nodes)
    for u, v, name in edges:
        if NODES[u] in theirs and NODES[v] in theirs:
            theirs.add_edge(NODES[u], NODES[v], kind=name)
    graph, order, types, node_types, *_ = from_networkx(theirs, edge_type="kind")
    assert order == tuple(theirs.nodes)
    assert types == tuple(sorted({name for _, _, name in theirs.edges(data="kind")}))
    assert node_types == () and graph.node_type is None
    got = sorted((str(order[u]), str(order[v]), types[t]) for u, v, t in listed(graph))
    assert got == sorted((str(u), str(v), name) for u, v, name in theirs.to_directed().edges(data="kind"))


def test_direction():
    theirs = nx.DiGraph([("looked at", "receives")])
    ids, attend = rg.EdgeType(1)(from_networkx(theirs).graph).to_dense()
    assert attend[0].tolist() == [[False, False], [True, False]]
    assert ids[0, 1, 0] == 0


def test_types_by_function_see_each_direction():
    theirs = nx.Graph()
    theirs.add_edge(2, 1)
    theirs.add_edge(1, 1)
    made = from_networkx(
        theirs,
        edge_type=lambda u, v, of: "up" if u < v else "down",
        types=["up", "down", "unused"],
        node_type=lambda node, of: None if node == 1 else "even",
    )
    assert made.types == ("up", "down", "unused")
    assert [(made.nodes[u], made.nodes[v], made.types[t]) for u, v, t in listed(made.graph)] == [
        (2, 1, "down"),
        (1, 2, "up"),
        (1, 1, "down"),
    ]
    assert made.node_types == ("even",)
    assert made.graph.node_type.tolist() == [0, -1]


@given(graphs(packed=True))
def test_a_labeling_as_a_graph(graph):
    labeler = rg.EdgeType(["a", "b", "c"], duplicates="first", attend="all") | rg.ClippedDistance(1)
    made = labels_to_networkx(labeler(graph), labeler.names)
    ids, _ = labeler(graph).to_dense()
    wanted = [(int(j), int(i), int(ids[0, i, j])) for _, i, j in (ids >= 0).nonzero()]
    assert sorted(made.edges(data="id")) == sorted(wanted)
    assert all(labeler.names[of["id"]] == of["label"] for _, _, of in made.edges(data=True))
    assert list(made) == list(range(graph.num_nodes))


def test_parallel_edges_and_sums_of_a_labeling():
    graph = rg.Graph(torch.tensor([[0, 0], [1, 1]]), 2, edge_type=torch.tensor([0, 1]))
    made = labels_to_networkx(rg.EdgeType(2)(graph))
    assert list(made.edges(data="label")) == [(0, 1, "0"), (0, 1, "1")]
    labeler = rg.EdgeType(["e"], attend="all") + rg.ClippedDistance(0)
    one = rg.Graph(torch.tensor([[0], [1]]), 2)
    made = labels_to_networkx(labeler(one), labeler.names)
    assert sorted((u, v, of["part"], of["label"]) for u, v, of in made.edges(data=True)) == [
        (0, 0, 1, "0"),
        (0, 1, 0, "e"),
        (0, 1, 1, "0"),
        (1, 0, 1, "0"),
        (1, 1, 1, "0"),
    ]


def test_refuses_bad_graphs():
    typed = nx.DiGraph([("u", "v", {"kind": "k"})])
    with pytest.raises(ValueError, match=r"edge 'u' -> 'v' must have the attribute 'type', got \['kind'\]"):
        from_networkx(typed, edge_type="type")
    with pytest.raises(TypeError, match=r"edge_type must give hashable types, got \[\] at edge 'u' -> 'v'"):
        from_networkx(typed, edge_type=lambda u, v, of: [])
    with pytest.raises(ValueError, match="edge_type must say where the types are when types is given, got None"):
        from_networkx(typed, types=["k"])
    with pytest.raises(ValueError, match="types must hold the type of every edge, got 'k' at edge 'u' -> 'v'"):
        from_networkx(typed, edge_type="kind", types=["other"])
    with pytest.raises(ValueError, match="types must be different, got <list>"):
        from_networkx(typed, edge_type="kind", types=[10**5000, 10**5000])
    typed.add_edge("v", "w", kind=1)
    with pytest.raises(ValueError, match="types must be given where types cannot be sorted: '<' not supported"):
        from_networkx(typed, edge_type="kind")


def test_refuses_bad_names_and_labels():
    graph = rg.Graph(torch.tensor([[0], [1]]), 2, edge_type=torch.tensor([1]))
    with pytest.raises(ValueError, match="types must have a name for each of the 2 types, got 1"):
        to_networkx(graph, types=["a"])
    with pytest.raises(ValueError, match=r"node_types must be left out for a graph without such types, got \['a'\]"):
        to_networkx(graph, node_types=["a"])
    with pytest.raises(ValueError, match="labels must be of one graph or a packed batch against itself"):
        labels_to_networkx(rg.ClippedDistance(1)(2, 3))
    with pytest.raises(ValueError, match=r"names must be \[3\] names, as a labeler's are, got \['-1', '0'\]"):
        labels_to_networkx(rg.ClippedDistance(1)(2), ["-1", "0"])


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"relgraph.interop.networkx needs networkx: pip install networkx"):
        runpy.run_path(interop.__file__)


def test_types_that_tensors_hold_are_numbers():
    graph = nx.DiGraph()
    for at, kind in enumerate((torch.tensor(1), torch.tensor(0), torch.tensor(1))):
        graph.add_edge(at, at + 1, kind=kind)
    read = from_networkx(graph, edge_type="kind")
    assert read.types == (0, 1)
    assert read.graph.edge_type.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", [torch.ones(2), float("nan")])
def test_what_is_never_equal_is_no_type(kind):
    graph = nx.DiGraph([(0, 1, {"kind": kind})])
    with pytest.raises(TypeError, match="edge_type must give hashable types, got .* at edge 0 -> 1"):
        from_networkx(graph, edge_type=lambda u, v, of: of["kind"])
