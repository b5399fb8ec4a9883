"""Labelers of graphs with every edge the other way."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.labelers import EdgeType, PathEdges, Reversed, ShortestPath

from .conformance import Case, LabelerSuite

EDGES = torch.tensor([[0, 1, 2, 1], [1, 2, 3, 4]])
ONE = rg.Graph(EDGES, 5, edge_type=torch.tensor([0, 1, 0, 1]), node_type=torch.arange(5))
BATCH = rg.Graph.batch([ONE, ONE])


class TestConformance(LabelerSuite):
    cases = (
        Case(Reversed(EdgeType(2)), (ONE,)),
        Case(Reversed(ShortestPath(2, directed=True)), (BATCH,)),
        Case(Reversed(ShortestPath(2) + PathEdges(2, 2)), (BATCH,)),
        Case(Reversed(EdgeType(2, attend="all")) | ShortestPath(1), (ONE,)),
    )


@pytest.mark.parametrize("labeler", [EdgeType(2), EdgeType(2, inverse=True), ShortestPath(3, directed=True)], ids=repr)
@pytest.mark.parametrize("graph", [ONE, BATCH])
def test_query_and_key_swap(labeler, graph):
    ids, attend = labeler(graph).to_dense()
    other, attends = Reversed(labeler)(graph).to_dense()
    assert torch.equal(other, ids.mT)
    assert torch.equal(attends, attend.mT)


def test_nodes_and_their_types_stay():
    assert Reversed(rg.NodeType(5))(ONE) == rg.NodeType(5)(ONE)
