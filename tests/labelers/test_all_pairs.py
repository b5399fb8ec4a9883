"""Labels of all pairs of a graph from one id per pair."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)
ALONE = rg.Graph(NO_EDGES, 3)
BATCH = rg.Graph(NO_EDGES, 5, ptr=torch.tensor([0, 2, 2, 5]))


@pytest.mark.parametrize("graph", [ALONE, BATCH, rg.Graph(NO_EDGES, 0), rg.Graph.batch([ALONE])])
def test_flat_ids_and_the_matrix_say_the_same(graph):
    nodes = graph.num_nodes
    matrix = torch.arange(nodes * nodes).view(nodes, nodes) % 7 - 1
    seen = torch.arange(nodes * nodes).view(nodes, nodes) % 4 > 0
    query, key = graph.pairs()
    for attend in (None, seen):
        flat = rg.labelers.label_pairs(
            graph, matrix[query, key], 6, attend=None if attend is None else attend[query, key]
        )
        whole = rg.labelers.label_pairs(graph, matrix, 6, attend=attend)
        assert flat == whole
        home = graph.graph_of()
        wanted = (home[:, None] == home) & (torch.ones_like(seen) if attend is None else attend)
        ids, attends = whole.to_dense()
        assert torch.equal(attends[0], wanted)
        assert torch.equal(ids[0], torch.where(wanted, matrix, -1))


def test_a_graph_alone_is_dense_and_a_batch_has_blocks():
    assert (
        repr(rg.labelers.label_pairs(ALONE, torch.zeros(9).long(), 1)) == "DenseLabels(q_len=3, k_len=3, num_labels=1)"
    )
    assert repr(rg.labelers.label_pairs(BATCH, torch.zeros(13).long(), 1)) == (
        "BlockLabels(q_len=5, k_len=5, num_labels=1, graphs=3)"
    )


def test_refuses_bad_input():
    query, key = ALONE.pairs()
    with pytest.raises(ValueError, match="ids may be truth values only if num_labels is 2, got num_labels = 3"):
        rg.labelers.label_pairs(ALONE, query < key, 3)
    with pytest.raises(ValueError, match=r"ids must have 1 or 2 dimensions, got shape \[1, 3, 3\]"):
        rg.labelers.label_pairs(ALONE, query.view(1, 3, 3), 3)
    with pytest.raises(ValueError, match=r"ids must have shape \[P\] or \[N, N\] = \[3, 3\], got \[2, 3\]"):
        rg.labelers.label_pairs(ALONE, query.view(3, 3)[:2], 3)
    with pytest.raises(ValueError, match="ids must hold one id per pair, 9 in all, got 8"):
        rg.labelers.label_pairs(ALONE, query[1:], 3)
    with pytest.raises(ValueError, match="ids must hold one id per pair of each graph, 13 in all, got 9"):
        rg.labelers.label_pairs(BATCH, query, 3)
    with pytest.raises(ValueError, match=r"ids must lie in \[-1, 2\), got values from 0 to 2"):
        rg.labelers.label_pairs(ALONE, query, 2)
    with pytest.raises(ValueError, match=r"attend must have the shape of ids, \[9\], got \[3, 3\]"):
        rg.labelers.label_pairs(ALONE, query, 3, attend=torch.ones(3, 3).bool())
