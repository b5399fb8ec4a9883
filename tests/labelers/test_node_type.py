"""Labels by node type."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import relgraph as rg
from relgraph.labelers import NodeType

from .conformance import Case, LabelerSuite
from .graph_strategies import assert_alone_as_in_batch, graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
TYPES = torch.tensor([0, 1, 0, -1, 1, 1, 2])
GRAPH = rg.Graph(torch.tensor([[0, 1, 5], [1, 2, 6]]), 7, node_type=TYPES, ptr=torch.tensor([0, 4, 4, 7]))
SINGLE = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 4, node_type=torch.tensor([0, 1, 0, 2]))


class TestConformance(LabelerSuite):
    cases = (
        Case(NodeType(3), (GRAPH,)),
        Case(NodeType(["C", "N", "O"]), (SINGLE,)),
        Case(NodeType(("a", "a→a", "b")), (SINGLE,)),
        Case(NodeType(1), (rg.Graph(NO_EDGES, 0, node_type=NO_EDGES[0]),)),
    )


@settings(max_examples=40, deadline=None)
@given(graphs(node_types=3))
def test_against_a_loop(several):
    pairs = NodeType(["abc", "N", "O"])
    for graph in several:
        types = graph.node_type.tolist()
        names = [["abc", "N", "O"][t] for t in types]
        none = [t < 0 for t in types]
        nodes = range(graph.num_nodes)
        wanted = [
            [-1 if none[i] or none[j] else pairs.names.index(f"{names[i]}→{names[j]}") for j in nodes] for i in nodes
        ]
        assert pairs(graph).to_dense()[0].tolist() == [wanted]
    assert_alone_as_in_batch(pairs, several)


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="types must be different names"):
        NodeType(["C", "C"])
    with pytest.raises(ValueError, match=r"node_type must lie in \[-1, 2\), got values from 0 to 2"):
        NodeType(2)(SINGLE)
    with pytest.raises(TypeError, match="graph must be a Graph, got Tensor"):
        NodeType(2)(NO_EDGES)
    with pytest.raises(ValueError, match="graph must have node_type, got None"):
        NodeType(2)(rg.Graph(NO_EDGES, 2))
