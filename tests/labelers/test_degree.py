"""Labels by degree."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import Degree

from .conformance import Case, LabelerSuite
from .graph_strategies import assert_alone_as_in_batch, graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
GRAPH = rg.Graph(torch.tensor([[0, 1, 2, 2, 2, 5], [1, 2, 3, 2, 3, 6]]), 8, ptr=torch.tensor([0, 5, 5, 8]))


class TestConformance(LabelerSuite):
    cases = (
        Case(Degree(2), (GRAPH,)),
        Case(Degree(1, "out"), (GRAPH,)),
        Case(Degree(3, "both"), (rg.Graph(NO_EDGES, 1),)),
        Case(Degree(0), (rg.Graph(NO_EDGES, 0),)),
    )


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 3), st.sampled_from(["in", "out", "both"]))
def test_against_a_loop(several, most, direction):
    labeler = Degree(most, direction)
    for graph in several:
        source, target = graph.edge_index.tolist()
        ends = {"in": target, "out": source, "both": source + target}[direction]
        names = [f">={most}" if ends.count(i) >= most else str(ends.count(i)) for i in range(graph.num_nodes)]
        wanted = [[labeler.names.index(f"{query}→{key}") for key in names] for query in names]
        assert labeler(graph).to_dense()[0].tolist() == [wanted]
    assert_alone_as_in_batch(labeler, several)
