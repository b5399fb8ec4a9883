"""Labels that are paths: unique sequences, shortest paths, and a bank that reads them."""

from __future__ import annotations

import copy
import pickle

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import ShortestPathTypes, TreePaths
from relgraph.labelers.graph.paths import unique_paths

from .graph_strategies import graphs

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
DIAMOND = rg.Graph(
    torch.tensor([[0, 0, 1, 2, 3, 2], [1, 2, 3, 3, 4, 3]]), 6, edge_type=torch.tensor([0, 1, 1, 0, 2, 2])
)


class TestUniquePaths:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 9), st.integers(0, 4), st.integers(0, 3), st.integers(0, 99))
    def test_against_torch(self, count, length, high, seed):
        torch.manual_seed(seed)
        sequences = torch.randint(-1, high, (count, length)) if high else torch.full((count, length), -1)
        ids, paths = unique_paths(sequences)
        torch.testing.assert_close(paths[ids], sequences)
        assert paths.tolist() == [list(row) for row in sorted({tuple(row) for row in sequences.tolist()})]

    def test_numbers_that_would_overflow(self):
        torch.manual_seed(0)
        few = torch.randint(-1, 2**30, (50, 12))
        sequences = few[torch.randint(50, (400,))]
        ids, paths = unique_paths(sequences)
        torch.testing.assert_close(paths, sequences.unique(dim=0))
        torch.testing.assert_close(paths[ids], sequences)


def searched(graph, directed):
    """Find every pair's path by the written rule, one pair at a time: the types from the query on."""
    walked = [(s, t, kind) for s, t, kind in zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)]
    if not directed:
        walked += [(t, s, kind + 3) for s, t, kind in walked]
    count = graph.num_nodes
    lengths = rg.labelers.shortest_path_lengths(graph, directed=directed).view(count, count).tolist()

    def path(i, j):
        if i == j:
            return ()
        for s, t, kind in walked:
            if t == i and 0 <= lengths[s][j] == lengths[i][j] - 1:
                return (kind, *path(s, j))
        return None

    return {(i, j): path(i, j) for i in range(count) for j in range(count)}


class TestShortestPathTypes:
    @settings(max_examples=50, deadline=None)
    @given(graphs(most=6, edge_types=3), st.booleans(), st.integers(1, 4))
    def test_against_a_search_pair_by_pair(self, several, directed, most):
        labeler = ShortestPathTypes(most, 3, directed=directed)
        labels, paths = labeler(rg.Graph.batch(several))
        assert labels.num_labels == paths.shape[0]
        assert paths.shape[1] == most
        ids, attend = labels.to_dense()
        used, start = {-1}, 0
        for graph in several:
            alone = labeler(graph)
            alone_ids = alone.labels.to_dense()[0][0]
            for (i, j), path in searched(graph, directed).items():
                id_ = int(ids[0, start + i, start + j])
                assert attend[0, start + i, start + j]
                used.add(id_)
                if path is None or len(path) > most:
                    assert id_ == alone_ids[i, j] == -1
                else:
                    wanted = [*path] + [-1] * (most - len(path))
                    assert paths[id_].tolist() == alone.paths[alone_ids[i, j]].tolist() == wanted
            start += graph.num_nodes
        assert used == set(range(-1, paths.shape[0]))

    def test_of_several_paths_the_first_listed_counts(self):
        labels, paths = ShortestPathTypes(4, 3, directed=True)(DIAMOND)
        ids = labels.to_dense()[0][0]
        # From 3, the edges of 1 -> 3 and 2 -> 3 both lead nearer to 0; the former is listed first.
        assert paths[ids[3, 0]].tolist() == [1, 0, -1, -1]
        assert paths[ids[4, 0]].tolist() == [2, 1, 0, -1]
        assert paths[ids[3, 2]].tolist() == [0, -1, -1, -1]
        assert ids[0, 3] == ids[5, 0] == -1

    def test_on_a_tree_they_are_its_paths(self):
        torch.manual_seed(0)
        parents = torch.tensor([-1, *(int(torch.randint(i, ())) for i in range(1, 20))])
        tree = rg.Graph.from_parents(parents, edge_type=torch.randint(3, (20,)))
        ours, theirs = ShortestPathTypes(19, 3)(tree), TreePaths(19, 3)(tree)
        torch.testing.assert_close(ours.paths, theirs.paths)
        assert ours.labels == theirs.labels

    def test_no_edges_and_no_nodes(self):
        none = ShortestPathTypes(2, 1)(rg.Graph(NO_EDGES, 0))
        assert none.paths.shape == (0, 2)
        one = ShortestPathTypes(2, 1)(rg.Graph(NO_EDGES, 2))
        assert one.paths.tolist() == [[-1, -1]]
        assert one.labels.to_dense()[0].tolist() == [[[0, -1], [-1, 0]]]

    def test_is_a_value(self):
        labeler = ShortestPathTypes(2, 3, directed=True)
        for again in (eval(repr(labeler)), pickle.loads(pickle.dumps(labeler)), copy.copy(labeler)):
            assert again == labeler
            assert hash(again) == hash(labeler)
        assert (labeler.num_steps, ShortestPathTypes(2, 3).num_steps) == (3, 6)
