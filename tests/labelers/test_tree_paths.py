"""Whole paths through a tree as labels."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers.tree.paths import TreePaths

from .drawn_trees import FOREST, PACKED, TREE, batches, trees, way_up


def path(graph, i, j, types=2):
    """The steps from i to j one after the other; None for two trees."""
    parents = graph.parents(forest=True).tolist()
    type_of = dict(zip(graph.edge_index[1].tolist(), graph.edge_type.tolist(), strict=True))
    up, down = way_up(parents, i), way_up(parents, j)
    shared = [node for node in up if node in down]
    if not shared:
        return None
    rising, falling = up[: up.index(shared[0])], down[: down.index(shared[0])]
    return [type_of[node] for node in rising] + [type_of[node] + types for node in reversed(falling)]


def found(labeler, graph):
    labels, paths = labeler(graph)
    assert labels.num_labels == len(paths) == len({tuple(row) for row in paths.tolist()})
    ids = labels.to_dense()[0][0].tolist()
    rows = [[step for step in row if step >= 0] for row in paths.tolist()]
    return [[rows[number] if number >= 0 else None for number in row] for row in ids]


@given(trees(forest=True), st.integers(1, 5), st.sampled_from(["first", "one"]))
def test_against_a_walk(graph, max_length, longer):
    labeler = TreePaths(max_length, 2, longer=longer, forest=True)
    for i, row in enumerate(found(labeler, graph)):
        for j, steps in enumerate(row):
            wanted = path(graph, i, j)
            if wanted is not None and len(wanted) > max_length:
                wanted = wanted[:max_length] if longer == "first" else [4]
            assert steps == wanted
            assert all(step < labeler.num_steps for step in steps or ())


@given(batches())
def test_a_graph_in_a_batch_gets_what_it_gets_alone(graphs):
    labeler = TreePaths(4, 2)
    together = found(labeler, rg.Graph.batch(graphs))
    start = 0
    for graph in graphs:
        stop = start + graph.num_nodes
        assert [row[start:stop] for row in together[start:stop]] == found(labeler, graph)
        start = stop


def test_one_and_the_same_path_is_one_label_across_a_batch():
    assert TreePaths(6, 2)(PACKED).labels.num_labels == TreePaths(6, 2)(TREE).labels.num_labels


def test_a_forest_attends_everywhere():
    labels = TreePaths(3, 2, forest=True)(FOREST).labels
    ids, attend = labels.to_dense()
    assert bool(attend.all())
    assert torch.equal(ids[0, 0] >= 0, torch.tensor([True, True, True, False, False]))


def test_is_a_value():
    labeler = TreePaths(4, 2, longer="one")
    assert labeler == eval(repr(labeler)) == pickle.loads(pickle.dumps(labeler))
    assert hash(labeler) == hash(TreePaths(4, 2, "one"))


def test_a_bank_row_for_each_path():
    labels, paths = TreePaths(4, 2)(TREE)
    bank = torch.nn.EmbeddingBag(5, 8, mode="sum", padding_idx=4)
    table = bank(paths.where(paths >= 0, 4))
    x = torch.randn(1, 2, TREE.num_nodes, 8)
    out = rg.relation_attention(x, x, x, labels, key_table=table)
    out.sum().backward()
    assert bank.weight.grad.abs().sum() > 0


def test_refuses_bad_input():
    with pytest.raises(
        ValueError, match=r"edge_type of a graph with 1 types must lie in \[0, 1\), got values from 0 to 1"
    ):
        TreePaths(1, 1)(TREE)
    with pytest.raises(ValueError, match="graph must have edge_type, as there are 2 types, got None"):
        TreePaths(1, 2)(rg.Graph(torch.zeros(2, 0).long(), 1))
