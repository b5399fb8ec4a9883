"""Labels by shortest path, held to networkx."""

from __future__ import annotations

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import ShortestPath

from .conformance import Case, LabelerSuite
from .graph_strategies import graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
GRAPH = rg.Graph(torch.tensor([[0, 1, 2, 2, 2, 5], [1, 2, 3, 2, 3, 6]]), 8, ptr=torch.tensor([0, 5, 5, 8]))
LINE = rg.Graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), 5)


class TestConformance(LabelerSuite):
    cases = (
        Case(ShortestPath(2), (GRAPH,)),
        Case(ShortestPath(1, directed=True, unreachable=None), (GRAPH,)),
        Case(ShortestPath(2, unreachable="unlabeled"), (LINE,)),
        Case(ShortestPath(0), (rg.Graph(NO_EDGES, 1),)),
        Case(ShortestPath(0), (rg.Graph(NO_EDGES, 0),)),
    )


def oracle(graph, limit, directed):
    """Compute lengths ``[n, n]`` by networkx, whose edges lead from key to query too."""
    network = networkx.DiGraph() if directed else networkx.Graph()
    network.add_nodes_from(range(graph.num_nodes))
    network.add_edges_from(graph.edge_index.T.tolist())
    lengths = torch.full((graph.num_nodes, graph.num_nodes), -1, dtype=torch.int32)
    for key, to in networkx.all_pairs_shortest_path_length(network, cutoff=limit):
        for query, length in to.items():
            lengths[query, key] = length
    return lengths


@settings(max_examples=60, deadline=None)
@given(graphs(), st.booleans(), st.sampled_from([None, 0, 1, 2, 3]))
def test_lengths_against_networkx(several, directed, limit):
    wanted = [oracle(graph, limit, directed).flatten() for graph in several]
    for graph, lengths in zip(several, wanted, strict=True):
        torch.testing.assert_close(rg.labelers.shortest_path_lengths(graph, limit, directed=directed), lengths)
    batch = rg.Graph.batch(several)
    torch.testing.assert_close(rg.labelers.shortest_path_lengths(batch, limit, directed=directed), torch.cat(wanted))


@pytest.mark.parametrize("size", [63, 64, 65, 130])
@pytest.mark.parametrize("directed", [False, True])
def test_more_nodes_than_bits_in_a_word(size, directed):
    torch.manual_seed(size)
    graph = rg.Graph(torch.randint(size, (2, 2 * size)), size)
    torch.testing.assert_close(
        rg.labelers.shortest_path_lengths(graph, directed=directed).view(size, size), oracle(graph, None, directed)
    )


def test_a_distance_leads_from_key_to_query():
    """Query 3 sees key 0 three hops away; no edge leads from key 3 to query 0."""
    ids = ShortestPath(9, directed=True)(LINE).to_dense()[0][0]
    assert (int(ids[3, 0]), int(ids[0, 3])) == (3, 10)


@pytest.mark.parametrize(
    ("options", "rest", "names"),
    [
        ({}, {2: (2, True), 3: (2, True), None: (3, True)}, (">=2", "unreachable")),
        ({"unreachable": "unlabeled"}, {2: (2, True), 3: (2, True), None: (-1, True)}, (">=2",)),
        ({"unreachable": None}, {2: (2, True), 3: (2, True), None: (-1, False)}, (">=2",)),
    ],
)
def test_pairs_beyond_and_without_a_path(options, rest, names):
    labeler = ShortestPath(2, **options)
    assert labeler.names == ("0", "1", *names)
    for graph in (LINE, rg.Graph.batch([rg.Graph(NO_EDGES, 2), LINE])):
        ids, attend = (x[0, -5:, -5:] for x in labeler(graph).to_dense())
        assert (ids[0, 0], ids[0, 1]) == (0, 1)
        for key, (wanted, attends) in {2: rest[2], 3: rest[3], 4: rest[None]}.items():
            assert (int(ids[0, key]), bool(attend[0, key])) == (wanted, attends)
