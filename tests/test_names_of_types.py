"""Graphs carry the names of their types, and labelers that name types compare them."""

from __future__ import annotations

import copy
import pickle

import networkx as nx
import pytest
import torch
from torch_geometric.data import HeteroData

import relgraph as rg
from relgraph.interop import conllu, python
from relgraph.interop.networkx import from_networkx, to_networkx
from relgraph.interop.transformers.aligning import _of_graph

EDGES = torch.tensor([[0, 1], [1, 2]])
NAMES, KINDS = ("ferry", "rail"), ("port", "town")


def graph(**names):
    types = {"edge_type": torch.tensor([0, 1]), "node_type": torch.tensor([0, 1, 1])}
    return rg.Graph(EDGES, 3, **types, **{"edge_types": NAMES, "node_types": KINDS, **names})


KEPT = {
    "to": lambda one: one.to("cpu"),
    "a batch": lambda one: rg.Graph.batch([one, one]),
    "a batch with a graph of fewer types": lambda one: rg.Graph.batch(
        [rg.Graph(EDGES, 3, edge_type=torch.zeros(2).long(), node_type=torch.zeros(3).long(),
                  edge_types=NAMES[:1], node_types=KINDS[:1]), one]
    ),
    "other edges": lambda one: one.with_edges(EDGES.flip(0), one.edge_type),
    "a copy": copy.deepcopy,
    "a pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "tokens of words": lambda one: _of_graph(one, torch.tensor([0, 0, 1, 2, -1])),
}  # fmt: skip


@pytest.mark.parametrize("way", KEPT)
def test_names_stay_with_the_graph(way):
    made = KEPT[way](graph())
    assert (made.edge_types, made.node_types) == (NAMES, KINDS)


def test_names_end_with_their_types():
    one = graph()
    assert one.of_type(1).edge_types is one.with_edges(EDGES).edge_types is None
    assert one.of_type(1).node_types == KINDS


def test_names_are_part_of_the_value():
    assert graph() == graph()
    assert graph() != graph(edge_types=NAMES[::-1])
    assert graph() != graph(node_types=None)


def by_networkx():
    flow = nx.DiGraph()
    flow.add_node("a", kind="port")
    flow.add_node("b", kind="town")
    flow.add_edge("a", "b", by="rail")
    flow.add_edge("b", "a", by="ferry")
    return from_networkx(flow, edge_type="by", node_type="kind").graph, NAMES, KINDS


def by_conllu():
    text = "1\tcats\tcat\tNOUN\t_\t_\t2\tnsubj\n2\tsleep\tsleep\tVERB\t_\t_\t0\troot\n"
    relations, tags = ("obj", "nsubj"), ("NOUN", "VERB")
    return conllu.parse(text, relations=relations, tags=tags)[0].graph, relations, tags


def by_python():
    return python.read("f(x)").only([0, 1, 2]).graph, python.EDGE_TYPES, python.TOKEN_KINDS


def by_hetero():
    data = HeteroData()
    data["town"].num_nodes, data["port"].num_nodes = 2, 1
    data["town", "rail", "town"].edge_index = torch.tensor([[0], [1]])
    data["port", "ferry", "town"].edge_index = torch.tensor([[0], [1]])
    read = rg.pyg.from_hetero_data(data)
    return read.graph, ("town__rail__town", "port__ferry__town"), ("town", "port")


@pytest.mark.parametrize("read", [by_networkx, by_conllu, by_python, by_hetero])
def test_readers_name_the_types(read):
    made, edges, nodes = read()
    assert (made.edge_types, made.node_types) == (edges, nodes)
    rg.EdgeType(edges, attend="all", duplicates="first")(made)
    with pytest.raises(ValueError, match="types must be the edge_types of the graph"):
        rg.EdgeType(edges[::-1], attend="all", duplicates="first")(made)


def test_types_that_are_no_strings_have_no_names():
    read = from_networkx(nx.DiGraph([(0, 1, {"by": 7})]), edge_type="by")
    assert read.types == (7,) and read.graph.edge_types is None
    rg.EdgeType(["rail"])(read.graph)


LABELERS = {
    "edges": lambda edges, nodes: rg.EdgeType(edges),
    "their inverses": lambda edges, nodes: rg.EdgeType(edges, inverse=True, attend="all", duplicates="first"),
    "a sum": lambda edges, nodes: rg.EdgeType(edges, attend="all") + rg.ShortestPath(2),
    "trees": lambda edges, nodes: rg.labelers.dependency_relations(edges),
    "nodes": lambda edges, nodes: rg.NodeType(nodes),
}


@pytest.mark.parametrize("kind", LABELERS)
def test_labelers_compare_names(kind):
    make, one = LABELERS[kind], graph()
    what, first, other = ("node", "port", "town") if kind == "nodes" else ("edge", "ferry", "rail")
    make(NAMES, KINDS)(one)
    make([*NAMES, "road"], [*KINDS, "isle"])(one)  # of which this graph has none
    with pytest.raises(ValueError, match=rf"{what}_types of the graph, \['{first}', '{other}'\], got \['{other}', '{first}'\]: "
                       rf"type 0 is '{first}' there and '{other}' here"):  # fmt: skip
        make(NAMES[::-1], KINDS[::-1])(one)
    nameless = graph(edge_types=None, node_types=None)
    make(NAMES[::-1], KINDS[::-1])(nameless)
    make(2, 2)(one)  # numbers are no names


def test_relations_of_code_need_the_types_of_code():
    with pytest.raises(ValueError, match=r"types must be the edge_types .* type 0 is 'ferry' there and 'CFG_NEXT'"):
        rg.CodeRelations()(graph())


def test_networkx_gets_the_same_names():
    assert sorted(t for *_, t in to_networkx(graph()).edges(data="edge_type")) == [*NAMES]
    assert [t for _, t in to_networkx(graph()).nodes(data="node_type")] == ["port", "town", "town"]
    assert from_networkx(to_networkx(graph()), edge_type="edge_type", node_type="node_type").graph == graph()
    with pytest.raises(ValueError, match="types must be the edge_types of the graph"):
        to_networkx(graph(), types=NAMES[::-1])


def test_graphs_of_a_batch_have_the_same_names():
    with pytest.raises(
        ValueError,
        match=r"graphs\[1\].node_types must be the node_types of the other graphs, .* type 0 is 'port' there and 'town' here",
    ):
        rg.Graph.batch([graph(), graph(node_types=KINDS[::-1])])
    assert rg.Graph.batch([graph(), graph(edge_types=None)]).edge_types is None


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"edge_types": "ab"}, TypeError, "edge_types must be a sequence of strings or None, got 'ab'"),
        ({"edge_types": (1, 2)}, TypeError, r"edge_types must be a sequence of strings or None, got \(1, 2\)"),
        ({"node_types": KINDS[:1]}, ValueError, r"node_type must lie in \[-1, 1\), got values from 0 to 1"),
        ({"node_types": ["town"] * 2}, ValueError, r"node_types must be different names, got \['town', 'town'\]"),
        ({"edge_type": None}, ValueError, "edge_types must be left out without edge_type, whose numbers they name"),
    ],
)
def test_names_that_do_not_fit(given, error, match):
    with pytest.raises(error, match=match):
        graph(**given) if "edge_type" not in given else rg.Graph(EDGES, 3, edge_types=NAMES)
