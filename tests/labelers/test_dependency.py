"""Labels by dependency."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import relgraph as rg
from relgraph.labelers import ClippedDistance, EdgeType, dependency_relations

from .conformance import Case, LabelerSuite
from .drawn_trees import EMPTY, PACKED, TREE, named, trees


class TestConformance(LabelerSuite):
    cases = (
        Case(dependency_relations(), (TREE,)),
        Case(dependency_relations(["a", "b"], self_loop=True, attend="edges"), (PACKED,)),
        Case(dependency_relations(2, default="none"), (EMPTY,)),
        Case(dependency_relations(2) | ClippedDistance(2), (PACKED,)),
    )


@given(trees())
def test_heads_and_dependents(graph):
    relation_of = dict(zip(graph.edge_index[1].tolist(), graph.edge_type.tolist(), strict=True))
    heads = graph.parents().tolist()
    for (i, j), name in named(dependency_relations(["r", "s"]), graph).items():
        if heads[i] == j:
            assert name == "rs"[relation_of[i]]
        elif heads[j] == i:
            assert name == "rs"[relation_of[j]] + "⁻¹"
        else:
            assert name is None


def test_is_edge_type_with_inverses():
    assert dependency_relations() == EdgeType(rg.labelers.UD_RELATIONS, inverse=True, attend="all")
    assert dependency_relations().num_labels == 74


def test_the_universal_relations():
    assert len(rg.labelers.UD_RELATIONS) == len(set(rg.labelers.UD_RELATIONS)) == 37
    assert list(rg.labelers.UD_RELATIONS) == sorted(rg.labelers.UD_RELATIONS)


def test_refuses_bad_input():
    with pytest.raises(
        ValueError, match=r"edge_type of a graph with 2 types must lie in \[0, 2\), got values from 2 to 2"
    ):
        dependency_relations(2)(rg.Graph(torch.tensor([[0], [1]]), 2, edge_type=torch.tensor([2])))
