"""Labels by random walk, held to small dense matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import PersonalizedPageRank, RandomWalk

from .conformance import Case, LabelerSuite
from .graph_strategies import assert_alone_as_in_batch, graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
GRAPH = rg.Graph(torch.tensor([[0, 1, 2, 2, 2, 5], [1, 2, 3, 2, 3, 6]]), 8, ptr=torch.tensor([0, 5, 5, 8]))
TRIANGLE = rg.Graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]]), 5)


class TestConformance(LabelerSuite):
    cases = (
        Case(RandomWalk(3), (GRAPH,)),
        Case(RandomWalk(1, bins=(0.2, 0.5), directed=True), (TRIANGLE,)),
        Case(RandomWalk(0, bins=2), (rg.Graph(NO_EDGES, 1),)),
        Case(PersonalizedPageRank(), (GRAPH,)),
        Case(PersonalizedPageRank(bins=[0.2], alpha=0.5, directed=True), (TRIANGLE,)),
        Case(PersonalizedPageRank(4), (rg.Graph(NO_EDGES, 0),)),
    )


def step(graph, directed):
    """Compute the probability of each step, entry by entry."""
    count = graph.num_nodes
    neighbours = [set() for _ in range(count)]
    for source, target in graph.edge_index.T.tolist():
        neighbours[target].add(source)
        if not directed:
            neighbours[source].add(target)
    out = torch.zeros(count, count, dtype=torch.float64)
    for query, keys in enumerate(neighbours):
        for key in keys:
            out[query, key] = 1 / len(keys)
    return out


def binned(landing, edges):
    """Return the id of each probability; one within rounding of an edge is on it."""
    ids = torch.zeros(landing.shape, dtype=torch.int64)
    for id_, least in enumerate((1e-12, *(edge * (1 - 1e-9) for edge in edges)), start=1):
        ids[landing >= least] = id_
    return ids[None]


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 4), st.booleans(), st.sampled_from([2, 6, (0.3, 0.7)]))
def test_walks_against_matrices(several, steps, directed, bins):
    labeler = RandomWalk(steps, bins, directed=directed)
    for graph in several:
        landing = torch.eye(graph.num_nodes, dtype=torch.float64)
        for _ in range(steps):
            landing = landing @ step(graph, directed)
        torch.testing.assert_close(labeler(graph).to_dense()[0], binned(landing, labeler.edges))
    assert_alone_as_in_batch(labeler, several)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from([0.15, 0.5, 0.9]), st.booleans())
def test_page_rank_against_its_series(several, alpha, directed):
    """The inverse is alpha · sum of (1 - alpha)^k M^k, whose terms are added in twos, fours, eights, …."""
    labeler = PersonalizedPageRank(12, alpha=alpha, directed=directed)
    for graph in several:
        walk = (1 - alpha) * step(graph, directed)
        landing = alpha * torch.eye(graph.num_nodes, dtype=torch.float64)
        for _ in range(9):
            landing, walk = landing + walk @ landing, walk @ walk
        torch.testing.assert_close(labeler(graph).to_dense()[0], binned(landing, labeler.edges))
    assert_alone_as_in_batch(labeler, several)


def test_nodes_without_neighbours():
    """A walk from them ends nowhere; stopped before its first step it is still there, with probability alpha."""
    nowhere = rg.Graph(NO_EDGES, 2)
    assert RandomWalk(1)(nowhere).to_dense()[0].count_nonzero() == 0
    ids = PersonalizedPageRank(bins=[0.15, 0.16])(nowhere).to_dense()[0]
    assert ids.tolist() == [[[2, 0], [0, 2]]]


def test_parallel_edges_count_once():
    once = rg.Graph(torch.tensor([[1, 2], [0, 0]]), 3)
    twice = rg.Graph(torch.tensor([[1, 1, 2, 0], [0, 0, 0, 2]]), 3)
    for labeler in (RandomWalk(1), PersonalizedPageRank()):
        assert labeler(once) == labeler(twice)


def test_bins():
    assert RandomWalk(1, bins=2).names == ("0", ">0")
    assert RandomWalk(1, bins=3).names == ("0", "<0.5", ">=0.5")
    assert RandomWalk(1, bins=5).edges == (0.125, 0.25, 0.5)
    assert RandomWalk(1, bins=[0.1, 0.2]).names == ("0", "<0.1", "0.1..0.2", ">=0.2")
    assert RandomWalk(1, bins=[]).num_labels == 2


def test_refuses_bad_input():
    with pytest.raises(ValueError, match=r"bins must rise between 0 and 1, got \[0.5, 0.5\]"):
        PersonalizedPageRank(bins=[0.5, 0.5])
    with pytest.raises(ValueError, match=r"bins must rise between 0 and 1, got \[0.5, 1.0\]"):
        RandomWalk(1, bins=[0.5, 1])
