"""Labels by dependency."""

from __future__ import annotations

import relgraph as rg
from relgraph.labelers import ClippedDistance, EdgeType, dependency_relations

from .conformance import Case, LabelerSuite
from .tree_strategies import EMPTY, PACKED, TREE


class TestConformance(LabelerSuite):
    cases = (
        Case(dependency_relations(), (TREE,)),
        Case(dependency_relations(["a", "b"], self_loop=True, attend="edges"), (PACKED,)),
        Case(dependency_relations(2, default="none"), (EMPTY,)),
        Case(dependency_relations(2) | ClippedDistance(2), (PACKED,)),
    )


def test_is_edge_type_with_inverses():
    assert dependency_relations() == EdgeType(rg.labelers.UD_RELATIONS, inverse=True, attend="all")
    assert dependency_relations().num_labels == 74


def test_the_universal_relations():
    assert len(rg.labelers.UD_RELATIONS) == len(set(rg.labelers.UD_RELATIONS)) == 37
    assert list(rg.labelers.UD_RELATIONS) == sorted(rg.labelers.UD_RELATIONS)
