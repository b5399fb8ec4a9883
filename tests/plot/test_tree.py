"""Attention over a tree: nodes on their levels, shades and arrows as strong as the weights."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
import torch

import relgraph as rg

TREE = rg.Graph.from_parents(torch.tensor([1, -1, 1]))
WEIGHTS = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.2, 0.0], [0.1, 0.4, 0.5]], dtype=torch.float64)
PLACES = [[0.0, -1.0], [0.5, 0.0], [1.0, -1.0]]


def nodes(ax):
    return ax.collections[1]


def test_all_attention_is_shades_alone():
    ax = rg.plot.attention_tree(WEIGHTS, TREE, node_names=["x", "=", "1"])
    np.testing.assert_allclose(nodes(ax).get_array(), WEIGHTS.mean(0))
    assert nodes(ax).get_offsets().tolist() == PLACES
    assert not ax.patches and [text.get_text() for text in ax.texts] == ["x", "=", "1"]
    assert ax.child_axes[0].get_ylabel() == "attention received"
    assert [segment.tolist() for segment in ax.collections[0].get_segments()] == [
        [PLACES[0], PLACES[1]],
        [PLACES[1], PLACES[2]],
    ]


def test_one_query_gets_arrows():
    ax = rg.plot.attention_tree(WEIGHTS, TREE, query=2)
    np.testing.assert_allclose(nodes(ax).get_array(), WEIGHTS[2])
    drawn = {tuple(map(float, arrow._posA_posB[0])): arrow for arrow in ax.patches}
    assert {start: arrow.get_linewidth() for start, arrow in drawn.items()} == pytest.approx(
        {tuple(PLACES[0]): 0.5 + 2.8 / 4, tuple(PLACES[1]): 3.3}
    )
    assert all([float(x) for x in arrow._posA_posB[1]] == PLACES[2] for arrow in ax.patches)
    assert drawn[tuple(PLACES[0])].get_connectionstyle().rad < 0  # upward, going right
    left = rg.plot.attention_tree(WEIGHTS, TREE, query=0)
    assert all(arrow.get_connectionstyle().rad > 0 for arrow in left.patches)


def test_long_arrows_are_bent_less():
    wide = rg.Graph.from_parents(torch.tensor([-1, *[0] * 20]))
    ax = rg.plot.attention_tree(torch.full((21, 21), 1 / 21), wide, query=1)
    bend = {float(arrow._posA_posB[0][0]): arrow.get_connectionstyle().rad for arrow in ax.patches}
    assert 0 < bend[19] < bend[10] < bend[2] <= bend[1] <= 0.3


def test_a_forest_and_a_networkx_tree():
    forest = rg.Graph.batch([TREE, TREE])
    ax = rg.plot.attention_tree(torch.rand(6, 6), forest)
    assert nodes(ax).get_offsets().tolist() == [*PLACES, *[[x + 2, y] for x, y in PLACES]]
    ax = rg.plot.attention_tree(WEIGHTS, nx.DiGraph([("=", "x"), ("=", "1")]))
    assert nodes(ax).get_offsets().tolist() == [[0.5, 0], [0, -1], [1, -1]]
    assert [text.get_text() for text in ax.texts] == ["=", "x", "1"]


def test_names_of_leaves_stand_upright_where_there_is_no_room():
    wide = rg.Graph.from_parents(torch.tensor([-1, *[0] * 60]))
    ax = rg.plot.attention_tree(torch.full((61, 61), 1 / 61), wide, node_names=[f"token {n}" for n in range(61)])
    assert [text.get_text() for text in ax.texts] == [f"token {n}" for n in range(61)]
    assert [text.get_rotation() for text in ax.texts] == [0, *[90] * 60]
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts[1:]]
    assert not any(a.x1 > b.x0 + 1 for a, b in itertools.pairwise(boxes))
    ax = rg.plot.attention_tree(torch.eye(3), TREE, node_names=["a", "b", "a name"])
    assert [text.get_rotation() for text in ax.texts] == [0, 0, 0]


def test_a_query_may_be_a_node_of_a_networkx_tree():
    ax = rg.plot.attention_tree(WEIGHTS, nx.DiGraph([("=", "x"), ("=", "1")]), query="x")
    np.testing.assert_array_equal(nodes(ax).get_array(), WEIGHTS[1])
    assert ax.get_title() == "attention of x"
