"""Refusals whose message says more than which argument is wrong; the others are in tests/test_bad_input.py."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph import plot
from relgraph.functional import AttentionAux
from relgraph.plot._network import given_positions, graph_layout

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
    raises(ValueError, r"weights must be for the 3 nodes of the graph, got shape", draw, torch.eye(2), PATH)
    raises(ValueError, "weights must not be negative, got values down to -1", draw, -EYE, PATH)
    raises(ValueError, "node_names must be one for each of the 3 nodes, got 1", draw, EYE, PATH, node_names=["a"])
    raises(TypeError, "labels must not be a sum, which has several per pair", draw, EYE, PATH, labels=SUM(3))
    raises(ValueError, "labels must be of the graph's 3 nodes, got Dist", draw, EYE, PATH, labels=rg.Window(1)(4))
    batch = rg.DenseLabels(torch.zeros(2, 3, 3, dtype=torch.int64), 1)
    raises(ValueError, "labels must be of the graph's 3 nodes, got DenseLabels", draw, EYE, PATH, labels=batch)
    two_parents, cycle = (rg.Graph(torch.tensor(edges), 3) for edges in ([[0, 1], [2, 2]], [[0, 1], [1, 0]]))
    raises(ValueError, "must be a tree, got node 2 with the parents 0 and 1", draw, EYE, two_parents, pos="tree")
    raises(ValueError, "graph must be a tree, got a cycle through node", draw, EYE, cycle, pos="tree")


def test_queries():
    draw = plot.attention_graph
    raises(ValueError, "query must be at most 2, got 3", draw, EYE, PATH, query=3)
    raises(TypeError, "query must be", draw, EYE, NUMBERED, query="Ann")


def test_places():
    raises(TypeError, "pos must be a Tensor, got list", plot.attention_graph, EYE, PATH, pos=[[0, 1]])
    raises(ValueError, "unknown pos 'trees'", plot.attention_graph, EYE, PATH, pos="trees")
    raises(ValueError, r"pos must have shape \[1, 2\], got \[2, 2\]", given_positions, torch.zeros(2, 2), 1)
    raises(ValueError, "pos must be finite and at most 1e", given_positions, torch.tensor([[0.0, torch.inf]]), 1)
    raises(ValueError, "real numbers, got torch.complex64", given_positions, torch.zeros(1, 2).cfloat(), 1)
    large = rg.Graph(torch.zeros(2, 0, dtype=torch.int64), 1001)
    raises(ValueError, "pos must be given for a graph of more than 1000 nodes, got None for 1001", graph_layout, large)


def test_matrices_and_tokens():
    labels = rg.ClippedDistance(1)(3)
    raises(ValueError, "labels must cover at least one pair", plot.label_matrix, rg.ClippedDistance(1)(0))
    raises(TypeError, "labels must not be a sum, .* pass one of its .parts", plot.label_matrix, SUM(3))
    raises(ValueError, "each of the 3 labels, got 2: pass labeler.names", plot.label_matrix, labels, ["a", "b"])
    raises(ValueError, "tokens must be 3 of queries and 3 of keys", plot.label_matrix, labels, tokens=["a", "b"])
    raises(TypeError, "tokens must be a sequence of strings, got 'abc'", plot.label_matrix, labels, tokens="abc")
    raises(ValueError, r"must not be empty, got shape \[0, 0\]", plot.attention_tokens, torch.zeros(0, 0), None)
    raises(ValueError, "finite, got 4 values that", plot.attention_tokens, torch.full((2, 2), float("nan")), None)


def test_tables():
    bank = rg.nn.LabelTable(None, 4, bank=nn.Linear(2, 4))
    raises(ValueError, "table must have rows of its own, got one with a bank", plot.table_norms, bank)
    raises(
        ValueError, r"must have shape \[R, D\], \[H, R, D\] or \[R\], got", plot.table_norms, torch.zeros(1, 2, 3, 4)
    )


@pytest.mark.parametrize(
    ("mass", "options", "error", "match"),
    [
        (CALL, {}, TypeError, "mass must be that of one call or the dict of record_attention, got AttentionAux"),
        (torch.tensor([-0.5, 1.0]), {}, ValueError, "mass must not be negative, got values down to -0.5"),
        (torch.ones(2, 3, 4), {}, ValueError, r'mass \[2, 3, 4\] are: such as "HR" .* "LHR" .* "HNR" .* "NHR"'),
        (torch.ones(5, 4), {"axes": ("H", "R")}, TypeError, "axes must be a string of letters of 'LBHNR', got tuple"),
        (torch.ones(5, 4), {"axes": "HH"}, ValueError, "2 different letters of 'LBHNR', R among them, .* got 'HH'"),
        (torch.ones(5, 4), {"axes": "HN"}, ValueError, "2 different letters of 'LBHNR', R among them, .* got 'HN'"),
        (torch.ones(5, 4), {"axes": "LHR"}, ValueError, r"axes must be 2 .* for mass of shape \[5, 4\], got 'LHR'"),
        (torch.ones(3), {"part": 0}, ValueError, "part must be left out for labels that are no sum, got 0"),
        ((torch.ones(3), torch.ones(2)), {}, ValueError, "part must say which of the 2 parts of the sum is drawn"),
        ((torch.ones(3), torch.ones(2)), {"part": 2}, ValueError, "which of the 2 parts of the sum is drawn, got 2"),
        ({"a": [CALL]}, {"axes": "HNR"}, ValueError, "axes must be left out for a record, which tells them"),
        ({"a": CALL}, {}, TypeError, "mass must be the dict of record_attention, from names to lists of Attent"),
        (
            {"a": [AttentionAux()]},
            {},
            ValueError,
            "must hold the label_mass of at least one call, got a record without",
        ),
        ({"a": [CALL], "b": [OTHER]}, {}, ValueError, "got R = 4 in 'a' and 5 in 'b': pass only layers that share"),
        (torch.ones(5, 4), {"axes": "NR", "padding": PAD}, ValueError, "left out for mass, which has no axes B and N"),
        ({"a": [CALL]}, {"padding": PAD.T}, ValueError, r"\[B, N\] = \[1, 3\] like .* call 0 of 'a', got \[3, 1\]"),
        ({"a": [CALL]}, {"padding": PAD.int()}, ValueError, "must have dtype torch.bool, True for padding, got torch."),
        ({"a": [CALL]}, {"padding": PAD}, ValueError, "padding must leave at least one query, got only True"),
    ],
)
def test_masses(mass, options, error, match):
    raises(error, match, plot.label_mass, mass, **options)
