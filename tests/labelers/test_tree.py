"""Labels by kinship and by steps up and down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import relgraph as rg
from relgraph.labelers import AncestorDistance, ClippedDistance, EdgeType, SiblingDistance, TreeRelation, UpDown

from .conformance import Case, LabelerSuite
from .drawn_trees import (
    EMPTY,
    FOREST,
    ONE,
    PACKED,
    PACKED_FOREST,
    TREE,
    batches,
    known,
    named,
    same_alone_and_packed,
    trees,
)


class TestConformance(LabelerSuite):
    cases = (
        Case(TreeRelation(), (TREE,)),
        Case(TreeRelation(forest=True), (FOREST,)),
        Case(TreeRelation(["sibling", "parent"], default=None), (PACKED,)),
        Case(TreeRelation((), default="unlabeled", forest=True), (PACKED_FOREST,)),
        Case(TreeRelation(("self",)), (EMPTY,)),
        Case(UpDown(2), (PACKED,)),
        Case(UpDown((0, 3)), (ONE,)),
        Case(UpDown((1, 0), forest=True), (PACKED_FOREST,)),
        Case(TreeRelation(default="unlabeled") | ClippedDistance(2), (PACKED,)),
        Case(UpDown(1) * ClippedDistance(2), (TREE,)),
        Case(UpDown(1) * ClippedDistance(2), (PACKED,)),
        Case(TreeRelation() + AncestorDistance(2) + ClippedDistance(1), (PACKED,)),
        Case(EdgeType(2, attend="all") | TreeRelation(), (PACKED,)),
        Case(SiblingDistance(1) | TreeRelation(), (TREE,)),
    )


def kind(steps):
    if steps is None:
        return "other"
    exact = {(0, 0): "self", (1, 0): "parent", (0, 1): "child", (1, 1): "sibling"}
    return exact.get(steps, "ancestor" if steps[1] == 0 else "descendant" if steps[0] == 0 else "other")


@given(trees(forest=True))
def test_relations_against_networkx(graph):
    wanted = {pair: kind(steps) for pair, steps in known(graph).items()}
    assert named(TreeRelation(forest=True), graph) == wanted
    some = ("child", "ancestor")
    for default, rest in (("other", "other"), ("unlabeled", None), (None, False)):
        got = named(TreeRelation(some, default=default, forest=True), graph)
        assert got == {pair: name if name in some else rest for pair, name in wanted.items()}


@given(trees(forest=True))
def test_steps_against_networkx(graph):
    wanted = {
        pair: "unconnected" if steps is None else f"↑{min(steps[0], 2)}↓{min(steps[1], 1)}"
        for pair, steps in known(graph).items()
    }
    assert named(UpDown((2, 1), forest=True), graph) == wanted


@given(batches())
def test_a_graph_in_a_batch_gets_what_it_gets_alone(graphs):
    for labeler in (TreeRelation(), TreeRelation(["parent"], default=None), UpDown((1, 2))):
        same_alone_and_packed(labeler, graphs)


def test_parents_and_children_are_edges_both_ways():
    ids, attend = TreeRelation(["parent", "child"], default=None)(PACKED).to_dense()
    as_edges = EdgeType(["parent"], inverse=True)(rg.Graph(PACKED.edge_index, PACKED.num_nodes, ptr=PACKED.ptr))
    assert torch.equal(ids, as_edges.to_dense()[0])
    assert torch.equal(attend, as_edges.to_dense()[1])


@pytest.mark.parametrize("graph", [TREE, PACKED])
def test_compositions_by_value(graph):
    relation, distance = TreeRelation(["parent", "child"], default="unlabeled"), ClippedDistance(2)
    kin, near = relation(graph).to_dense()[0], distance(graph).to_dense()[0]
    attend = distance(graph).to_dense()[1]
    filled = (relation | distance)(graph).to_dense()[0]
    assert torch.equal(filled, torch.where(kin >= 0, kin, 2 + near).masked_fill(~attend, -1))
    steps = UpDown(1)(graph).to_dense()[0]
    both = (UpDown(1) * distance)(graph).to_dense()[0]
    assert torch.equal(both, (steps * 5 + near).masked_fill(~attend, -1))
    total = (relation + distance)(graph)
    assert isinstance(total, rg.SumLabels)
    assert total.num_labels == (2, 5)


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="kinds must be different"):
        TreeRelation(["self", "self"])
