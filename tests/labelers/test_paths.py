"""Labels that are paths: unique sequences, shortest paths, and a bank that reads them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import relgraph as rg
from relgraph.labelers import ClippedDistance, EdgeType, PathLabels, ShortestPathTypes, TreePaths, unique_paths

from .drawn_graphs import graphs

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

    def test_refuses_bad_input(self):
        with pytest.raises(ValueError, match="sequences must have 2 dimensions"):
            unique_paths(torch.zeros(3).long())


def searched(graph, directed):
    """Every pair's path by the written rule, one pair at a time: the types from the query on."""
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

    def test_one_hop_is_the_edge_type(self):
        graph = rg.Graph(torch.tensor([[0, 1, 3], [1, 2, 1]]), 4, edge_type=torch.tensor([1, 0, 1]))
        labels, paths = ShortestPathTypes(1, 2)(graph)
        wanted = EdgeType(2, inverse=True, attend="all")(graph).to_dense()[0]
        ids = labels.to_dense()[0]
        torch.testing.assert_close(torch.where(ids < 0, -1, paths[ids, 0]), wanted)

    def test_on_a_tree_they_are_its_paths(self):
        torch.manual_seed(0)
        parents = torch.tensor([-1, *(int(torch.randint(i, ())) for i in range(1, 20))])
        tree = rg.Graph.from_parents(parents, edge_type=torch.randint(3, (20,)))
        ours, theirs = ShortestPathTypes(19, 3)(tree), TreePaths(19, 3)(tree)
        torch.testing.assert_close(ours.paths, theirs.paths)
        assert ours.labels == theirs.labels

    def test_lengths(self):
        out = ShortestPathTypes(4, 3)(DIAMOND)
        assert isinstance(out, PathLabels)
        pairs = out.labels.to_dense()[0].flatten()
        lengths = rg.labelers.shortest_path_lengths(DIAMOND).long()
        torch.testing.assert_close(out.lengths[pairs[pairs >= 0]], lengths[pairs >= 0])

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

    @pytest.mark.parametrize("graph", [DIAMOND, rg.Graph.batch([DIAMOND, DIAMOND])])
    def test_labels_compose(self, graph):
        labels, paths = ShortestPathTypes(2, 3)(graph)
        near = ClippedDistance(1)(graph)
        assert rg.labels.total(labels, near).num_labels == (paths.shape[0], 3)
        ids, attend = labels.to_dense()
        wanted = torch.where(attend & (ids < 0), near.to_dense()[0] + paths.shape[0], ids)
        torch.testing.assert_close(rg.labels.first_of(labels, near).to_dense()[0], wanted)

    def test_refuses_bad_input(self):
        with pytest.raises(ValueError, match=r"edge_type of a graph with 2 types must lie in \[0, 2\)"):
            ShortestPathTypes(1, 2)(DIAMOND)
        with pytest.raises(ValueError, match="graph must have edge_type, as there are 2 types, got None"):
            ShortestPathTypes(1, 2)(rg.Graph(NO_EDGES, 2))


class GRUBank(nn.Module):
    """One row a path: the state of a GRU after its last step; zero for the empty path."""

    def __init__(self, num_steps, dim):
        super().__init__()
        self.step = nn.Embedding(num_steps, dim, dtype=torch.float64)
        self.gru = nn.GRU(dim, dim, batch_first=True, dtype=torch.float64)

    def forward(self, paths):
        states = self.gru(self.step(paths.clamp(min=0)))[0]
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        return states[torch.arange(paths.shape[0]), (paths >= 0).sum(1)]


def test_attention_with_a_bank_over_paths():
    torch.manual_seed(0)
    graph = rg.Graph.batch([DIAMOND, DIAMOND.with_edges(DIAMOND.edge_index.flip(0), DIAMOND.edge_type)])
    labeler = ShortestPathTypes(3, 3)
    banks = {"key": GRUBank(labeler.num_steps, 4), "value": GRUBank(labeler.num_steps, 4)}
    tables = rg.RelationTables(None, 4, banks=banks)
    layer = rg.RelationAttention(8, 2, tables=tables, dtype=torch.float64)
    x = torch.randn(graph.num_nodes, 8, dtype=torch.float64)
    labels, paths = labeler(graph)
    z = layer(x, labels=labels, bank_features=paths)
    z.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for bank in banks.values() for p in bank.parameters())
    # Each pair's path by itself, its row computed for it alone.
    q, k, v = (
        part.view(-1, 2, 4).transpose(0, 1) for part in nn.functional.linear(x, layer.in_proj_weight).chunk(3, -1)
    )
    ids, attend = (part[0] for part in labels.to_dense())
    by_pair = {}
    for kind, bank in banks.items():
        rows = torch.zeros(*ids.shape, 4, dtype=torch.float64)
        for i, j in (ids >= 0).nonzero().tolist():
            rows[i, j] = bank(paths[ids[i, j]][None])[0]
        by_pair[kind] = rows
    scores = (q @ k.mT + torch.einsum("hid,ijd->hij", q, by_pair["key"])) / 2
    alpha = scores.masked_fill(~attend, -torch.inf).softmax(-1)
    wanted = alpha @ v + torch.einsum("hij,ijd->hid", alpha, by_pair["value"])
    torch.testing.assert_close(z, layer.out_proj(wanted.transpose(0, 1).reshape(-1, 8)))
