"""Refusals whose message says more than which argument is wrong; the others are in tests/test_bad_input.py."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph import plot
from relgraph.functional import AttentionAux
from relgraph.plot._layout import given_positions, graph_layout

PATH, EYE = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3), torch.eye(3)
NUMBERED = nx.DiGraph([(10, 20), (20, 30)])
SUM = rg.ClippedDistance(1) + rg.ClippedDistance(2)
CALL, OTHER = (AttentionAux(label_mass=torch.ones(1, 2, 3, count)) for count in (4, 5))
PAD = torch.ones(1, 3, dtype=torch.bool)


def raises(error, match, draw, *given, **options):
    with pytest.raises(error, match=match):
        draw(*given, **options)


def test_graphs_and_trees():
    draw, none = plot.attention_graph, torch.zeros(2, 0, dtype=torch.int64)
    raises(ValueError, "graph must have at least one node, got none", draw, EYE, rg.Graph(none, 0))
    raises(ValueError, r"weights must be for the 3 nodes of the graph, \[3, 3\], got", draw, torch.eye(2), PATH)
    raises(ValueError, "weights must not be negative, got values down to -1", draw, -EYE, PATH)
    raises(ValueError, "node_names must be one for each of the 3 nodes, got 1", draw, EYE, PATH, node_names=["a"])
    raises(TypeError, "labels must not be a sum, which has several per pair", draw, EYE, PATH, labels=SUM(3))
    raises(ValueError, "labels must be of the graph's 3 nodes, got Dist", draw, EYE, PATH, labels=rg.Window(1)(4))
    batch = rg.DenseLabels(torch.zeros(2, 3, 3, dtype=torch.int64), 1)
    raises(ValueError, "labels must be of the graph's 3 nodes, got DenseLabels", draw, EYE, PATH, labels=batch)
    two_parents, cycle = (rg.Graph(torch.tensor(edges), 3) for edges in ([[0, 1], [2, 2]], [[0, 1], [1, 0]]))
    raises(ValueError, "must be a tree, got node 2 with the parents 0 and 1", plot.attention_tree, EYE, two_parents)
    raises(ValueError, "graph must be a tree, got a cycle through node", plot.attention_tree, EYE, cycle)


def test_queries():
    draw = plot.attention_graph
    raises(ValueError, "query must be at most 2, got 3", draw, EYE, PATH, query=3)
    raises(TypeError, r"number of a node, got 'Ann'; .* nodes.index\('Ann'\) is it", draw, EYE, PATH, query="Ann")
    raises(ValueError, "query must be a node of the graph or its number, got 'A'", draw, EYE, NUMBERED, query="A")
    raises(ValueError, r"list\(graph.nodes\).index\(30\) = 2 for the node 30", draw, EYE, NUMBERED, query=30)
    for query in (torch.tensor(1), np.int64(1)):
        raises(TypeError, "query must be a node of the graph or its number, an int", draw, EYE, NUMBERED, query=query)


def test_places():
    wanted = r"pos must be a mapping from nodes to places or a Tensor \[N, 2\], got list"
    raises(TypeError, wanted, given_positions, [[0, 1]], None, 1)
    raises(ValueError, "pos must have a place for every node, got none for 'b'", given_positions, {}, ["b"], 1)
    for place, error, match in (
        ((0,), ValueError, "must be two numbers, got 1"), (range(10**30), ValueError, "must be two numbers, got more"),
        ("01", TypeError, "must be two numbers, got str"), (("0", "1"), TypeError, "must be two numbers, got str"),
        ((0, float("nan")), ValueError, r"must be finite and at most 1e\+100, got \(0, nan\)"),
        ((10**400, 0), ValueError, r"must be finite and at most 1e\+100, got"),
    ):  # fmt: skip
        raises(error, rf"pos\['a'\] {match}", given_positions, {"a": place}, ["a"], 1)
    raises(ValueError, "pos must be finite and at most 1e", given_positions, torch.tensor([[0.0, torch.inf]]), None, 1)
    raises(ValueError, "real numbers, got torch.complex64", given_positions, torch.zeros(1, 2).cfloat(), None, 1)
    large = rg.Graph(torch.zeros(2, 0, dtype=torch.int64), 1001)
    raises(ValueError, "pos must be given for a graph of more than 1000 nodes, got None for 1001", graph_layout, large)


def test_matrices_and_tokens():
    labels = rg.ClippedDistance(1)(3)
    raises(ValueError, "labels must cover at least one pair", plot.label_matrix, rg.ClippedDistance(1)(0))
    raises(ValueError, "names must be 2 tuples of names, one per part", plot.label_matrix, SUM(3), ["a", "b", "c"])
    raises(ValueError, "each of the 3 labels, got 2: pass labeler.names", plot.label_matrix, labels, ["a", "b"])
    raises(ValueError, "tokens must be 3 of queries and 3 of keys", plot.label_matrix, labels, tokens=["a", "b"])
    raises(TypeError, "tokens must be a sequence of strings, got 'abc'", plot.label_matrix, labels, tokens="abc")
    raises(ValueError, r"must not be empty, got shape \[0, 0\]", plot.attention_tokens, torch.zeros(0, 0), None)
    raises(ValueError, "finite, got 4 values that", plot.attention_tokens, torch.full((2, 2), float("nan")), None)


def test_tables():
    bank, shared = rg.nn.LabelTable(None, 4, bank=nn.Linear(2, 4)), torch.ones(2, 3)
    for draw in (plot.table_norms, plot.table_similarity):
        raises(ValueError, "table must have rows of its own, got one with a bank", draw, bank)
        raises(ValueError, r"table must have shape \[R, D\], \[H, R, D\] or \[R\], got", draw, torch.zeros(1, 2, 3, 4))
    raises(ValueError, "which have a direction, got scalars", plot.table_similarity, rg.nn.LabelTable(3, None))
    raises(ValueError, "head must be left out for rows that all heads share", plot.table_similarity, shared, head=0)


@pytest.mark.parametrize(
    ("mass", "options", "error", "match"),
    [
        (CALL, {}, TypeError, "the dict of record_attention, got AttentionAux: give the label_mass of one call"),
        (torch.tensor([-0.5, 1.0]), {}, ValueError, "mass must not be negative, got values down to -0.5"),
        (torch.ones(2, 3, 4), {}, ValueError, r'mass \[2, 3, 4\] are: "HR" .* "LHR" for layers.* "HNR" of .* "NHR"'),
        (
            torch.ones(5, 4),
            {},
            ValueError,
            r'mass \[5, 4\] are: "HR" for heads and labels, "NR" for queries and labels',
        ),
        (torch.ones(5, 4), {"axes": ("H", "R")}, TypeError, "axes must be a string of letters of 'LBHNR', got tuple"),
        (torch.ones(5, 4), {"axes": "HH"}, ValueError, "different letters of 'LBHNR', R among them, got 'HH'"),
        (torch.ones(5, 4), {"axes": "HN"}, ValueError, "different letters of 'LBHNR', R among them, got 'HN'"),
        (torch.ones(5, 4), {"axes": "LHR"}, ValueError, r"axes must be 2 letters for mass of shape \[5, 4\]"),
        (torch.ones(3), {"part": 0}, ValueError, "part must be left out for labels that are no sum, got 0"),
        ((torch.ones(3), torch.ones(2)), {}, ValueError, "part must say which of the 2 parts of the sum is drawn"),
        ((torch.ones(3), torch.ones(2)), {"part": 2}, ValueError, "which of the 2 parts of the sum is drawn, got 2"),
        ((torch.ones(2),) * 2, {"part": 1, "names": ["a", "b"]}, ValueError, "a tuple of names for each part of the"),
        ({"a": [CALL]}, {"axes": "HNR"}, ValueError, "axes must be left out for a record, which tells them"),
        ({"a": CALL}, {}, TypeError, "mass must be the dict of record_attention, from names to lists of Attent"),
        (
            {"a": [AttentionAux()]},
            {},
            ValueError,
            "must hold the label_mass of at least one call, got a record without",
        ),
        ({"a": [CALL], "b": [OTHER]}, {}, ValueError, "got R = 4 in 'a' and 5 in 'b': pass only layers that share"),
        ({"a": [CALL]}, {"layer": "c"}, ValueError, "layer must be one of 'a', or a number, got 'c'"),
        ({"a": [CALL]}, {"layer": 1}, ValueError, "layer must be at most 0, got 1"),
        (torch.ones(5, 4), {"axes": "HR", "layer": 0}, ValueError, "layer must be left out for a mass without layers"),
        ({"a": [CALL]}, {"head": 2}, ValueError, "head must be at most 1, got 2"),
        (torch.ones(5, 4), {"axes": "NR", "head": 0}, ValueError, "head must be left out for a mass without heads"),
        (torch.ones(5, 4), {"axes": "NR", "padding": PAD}, ValueError, "left out for mass, which has no axes B and N"),
        ({"a": [CALL]}, {"padding": PAD.T}, ValueError, r"\[B, N\] = \[1, 3\] like .* call 0 of 'a', got \[3, 1\]"),
        ({"a": [CALL]}, {"padding": PAD.int()}, ValueError, "must have dtype torch.bool, True for padding, got torch."),
        ({"a": [CALL]}, {"padding": PAD}, ValueError, "padding must leave at least one query, got only True"),
        ({"a": [CALL]}, {"padding": [PAD] * 2}, ValueError, "one for each of the 1 calls of 'a', got 2"),
        ({"a": [CALL]}, {"padding": [3]}, TypeError, r"padding\[0\] must be a Tensor, got int"),
        ({"a": [CALL, OTHER]}, {}, ValueError, "got R = 4 in call 0 of 'a' and 5 in call 1 of 'a'"),
    ],
)
def test_masses(mass, options, error, match):
    raises(error, match, plot.label_mass, mass, **options)
