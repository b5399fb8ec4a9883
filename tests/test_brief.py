"""Values that hold tensors or long lists print their shapes and ends, not their numbers."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import relgraph as rg
from relgraph.arguments.brief import brief, brief_fields, cut, shown


class Place(NamedTuple):
    line: int
    column: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 3), "<tensor [2, 3]>"),
        (torch.zeros(()), "<tensor []>"),
        ((), "()"),
        ((1,), "(1,)"),
        (("a", "b", "c", "d"), "('a', 'b', 'c', 'd')"),
        (tuple(range(5)), "(0, 1, ..., 4)"),
        ((torch.zeros(1), None), "(<tensor [1]>, None)"),
        ({"a": torch.zeros(3)}, "{'a': <tensor [3]>}"),
        ((Place(1, 2),), "(Place(line=1, column=2),)"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_brief(value, text):
    assert brief(value) == text


def test_fields_without_a_value_are_left_out():
    assert brief_fields(Place(0, None), "line", "column") == "Place(line=0)"


def test_cut():
    assert cut("x" * 120) == "x" * 120
    assert cut("a" * 100 + "b" * 100) == "a" * 80 + " ... " + "b" * 40


def test_shown():
    assert shown(["a"]) == "['a']"
    assert len(shown(list(range(999)))) < 150
    assert shown([10**5000]) == "<list>"
    assert brief((1, 10**5000)) == "(1, <int>)"


def test_attention_aux():
    x = torch.randn(2, 4, 50, 16)
    labels = rg.ClippedDistance(2)(50)
    _, aux = rg.relation_attention_with_aux(x, x, x, labels, need_weights=True, need_label_mass=True, need_lse=True)
    assert repr(aux) == (
        "AttentionAux(weights=<tensor [2, 4, 50, 50]>, label_mass=<tensor [2, 4, 50, 5]>, lse=<tensor [2, 4, 50]>)"
    )
    assert repr(rg.functional.AttentionAux()) == "AttentionAux()"
    several = rg.functional.AttentionAux(label_mass=(torch.zeros(1, 2), torch.zeros(1, 3)))
    assert repr(several) == "AttentionAux(label_mass=(<tensor [1, 2]>, <tensor [1, 3]>))"


def test_source_graph():
    source = rg.interop.python.read("x = 1\nprint(x)")
    edges = source.graph.num_edges
    assert repr(source) == (
        "SourceGraph(tokens=('x', '=', ..., '<newline>'), kinds=('NAME', 'OP', ..., 'NEWLINE'), "
        f"graph=Graph(num_nodes=9, num_edges={edges}, edge_type=<tensor [{edges}]>, node_type=<tensor [9]>))"
    )
