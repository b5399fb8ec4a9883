"""Labels by kinship and by steps up and down."""

from __future__ import annotations

import pytest
from hypothesis import given

from relgraph.labelers import ClippedDistance, EdgeType, TreeRelation, UpDown

from .conformance import Case, LabelerSuite
from .tree_strategies import (
    EMPTY,
    FOREST,
    ONE,
    PACKED,
    PACKED_FOREST,
    TREE,
    known,
    named,
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
        Case(TreeRelation() + UpDown(2) + ClippedDistance(1), (PACKED,)),
        Case(EdgeType(2, attend="all") | TreeRelation(), (PACKED,)),
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


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="kinds must be different"):
        TreeRelation(["self", "self"])
