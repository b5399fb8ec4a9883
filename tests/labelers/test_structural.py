"""Labels by signed distance in a tree."""

from __future__ import annotations

from hypothesis import given

from relgraph.labelers import AncestorDistance, ClippedDistance, SiblingDistance, StructuralPosition, UpDown

from .conformance import Case, LabelerSuite
from .tree_strategies import (
    EMPTY,
    FOREST,
    ONE,
    PACKED,
    PACKED_FOREST,
    TREE,
    depth,
    known,
    named,
    trees,
)


class TestConformance(LabelerSuite):
    cases = (
        Case(AncestorDistance(2), (TREE,)),
        Case(AncestorDistance(0, "other", True), (PACKED_FOREST,)),
        Case(AncestorDistance(1, default=None), (PACKED,)),
        Case(SiblingDistance(1, forest=True), (FOREST,)),
        Case(SiblingDistance(3, default="other"), (PACKED,)),
        Case(SiblingDistance(3, default=None), (EMPTY,)),
        Case(StructuralPosition(4), (PACKED,)),
        Case(StructuralPosition(0), (ONE,)),
        Case(StructuralPosition(1, forest=True), (PACKED_FOREST,)),
        Case(AncestorDistance(2) | SiblingDistance(2) | ClippedDistance(1), (PACKED,)),
        Case(StructuralPosition(2) * ClippedDistance(1) + UpDown(1), (TREE,)),
    )


def clip(distance, most):
    return str(max(-most, min(most, distance)))


@given(trees(forest=True))
def test_ancestor_distance_against_networkx(graph):
    levels, steps = depth(graph), known(graph)
    wanted = {(i, j): clip(levels[j] - levels[i], 2) if way and 0 in way else None for (i, j), way in steps.items()}
    assert named(AncestorDistance(2, forest=True), graph) == wanted
    other = {pair: name or "other" for pair, name in wanted.items()}
    assert named(AncestorDistance(2, default="other", forest=True), graph) == other
    apart = {pair: name or False for pair, name in wanted.items()}
    assert named(AncestorDistance(2, default=None, forest=True), graph) == apart


@given(trees(forest=True))
def test_sibling_distance_against_a_loop(graph):
    parents = graph.parents(forest=True).tolist()
    wanted = {}
    for i in range(graph.num_nodes):
        for j in range(graph.num_nodes):
            family = [n for n, parent in enumerate(parents) if parent == parents[i] and parent >= 0] or [i]
            wanted[i, j] = clip(family.index(j) - family.index(i), 1) if j in family else None
    assert named(SiblingDistance(1, forest=True), graph) == wanted


@given(trees(forest=True))
def test_structural_position_against_networkx(graph):
    levels = depth(graph)
    wanted = {}
    for (i, j), way in known(graph).items():
        if way is None:
            wanted[i, j] = "unconnected"
        elif 0 in way:
            wanted[i, j] = clip(levels[j] - levels[i], 5)
        else:
            wanted[i, j] = clip((levels[i] + levels[j]) * (1 if j > i else -1), 5)
    assert named(StructuralPosition(5, forest=True), graph) == wanted
