"""Whole paths through a tree as labels."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers.tree.paths import TreePaths

from .tree_strategies import PACKED, TREE, trees, way_up


def path(graph, i, j, types=2):
    """List the steps from i to j; None for two trees."""
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


@given(trees(forest=True), st.integers(1, 5))
def test_against_a_walk(graph, max_length):
    labeler = TreePaths(max_length, 2, forest=True)
    for i, row in enumerate(found(labeler, graph)):
        for j, steps in enumerate(row):
            wanted = path(graph, i, j)
            assert steps == (wanted if wanted is None else wanted[:max_length])
            assert all(step < labeler.num_steps for step in steps or ())


def test_one_and_the_same_path_is_one_label_across_a_batch():
    assert TreePaths(6, 2)(PACKED).labels.num_labels == TreePaths(6, 2)(TREE).labels.num_labels


def test_is_a_value():
    labeler = TreePaths(4, 2, forest=True)
    assert labeler == eval(repr(labeler)) == pickle.loads(pickle.dumps(labeler))
    assert hash(labeler) == hash(TreePaths(4, 2, True))
