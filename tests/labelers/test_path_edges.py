"""Labels by the edges of a shortest path, hop by hop."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import PathEdges, ShortestPathTypes

from .conformance import Case, LabelerSuite, parts
from .graph_strategies import assert_alone_as_in_batch, graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
ONE = rg.Graph(torch.tensor([[0, 1, 2, 2], [1, 2, 3, 2]]), 5, edge_type=torch.tensor([0, 1, 1, 0]))
GRAPH = rg.Graph.batch([ONE, ONE.with_edges(ONE.edge_index.flip(0), ONE.edge_type)])


class TestConformance(LabelerSuite):
    cases = (
        Case(PathEdges(2, 2), (GRAPH,)),
        Case(PathEdges(3, ["a", "b"], directed=True), (ONE,)),
        Case(PathEdges(1, 2), (GRAPH,)),
        Case(PathEdges(2, 1), (rg.Graph(NO_EDGES, 1),)),
        Case(PathEdges(2, 1, directed=True), (rg.Graph(NO_EDGES, 0),)),
    )


@settings(max_examples=30, deadline=None)
@given(graphs(most=6, edge_types=2), st.booleans(), st.integers(1, 3))
def test_against_whole_paths(several, directed, most):
    labeler = PathEdges(most, ["a", "b"], directed=directed)
    types = ("a", "b") if directed else ("a", "b", "a⁻¹", "b⁻¹")
    names = (labeler.names,) if most == 1 else labeler.names
    for graph in several:
        whole = ShortestPathTypes(9, 2, directed=directed)(graph)
        ids = whole.labels.to_dense()[0][0]
        for hop, (part, named) in enumerate(zip(parts(labeler(graph)), names, strict=True), start=1):
            got = part.to_dense()[0][0]
            for i in range(graph.num_nodes):
                for j in range(graph.num_nodes):
                    path = [types[t] for t in whole.paths[ids[i, j]].tolist() if t >= 0] if ids[i, j] >= 0 else []
                    length = f">={most}" if len(path) >= most else str(len(path))
                    wanted = named.index(f"hop {hop} of {length}: {path[hop - 1]}") if len(path) >= hop else -1
                    assert int(got[i, j]) == wanted
    for hop in range(most):
        assert_alone_as_in_batch(lambda graph, hop=hop: parts(labeler(graph))[hop], several)
