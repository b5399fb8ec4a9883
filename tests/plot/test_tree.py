"""Attention over a tree: nodes on their levels, shades and arrows as strong as the weights."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

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


@pytest.mark.parametrize("count", [1, 6, 60])
def test_given_axes_are_used_and_nothing_reaches_out_of_a_new_figure(count):
    tree = rg.Graph.from_parents(torch.tensor([-1, *[n // 3 for n in range(count - 1)]]))
    figure, ax = plt.subplots()
    assert rg.plot.attention_tree(torch.rand(count, count), tree, query=count - 1, ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    ax = rg.plot.attention_tree(torch.rand(count, count), tree, node_names=[f"node {n}" for n in range(count)])
    ax.figure.canvas.draw()
    box, all_of_it = ax.get_tightbbox(), ax.figure.bbox
    assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= all_of_it.x1 + 1 and box.y1 <= all_of_it.y1 + 1


def test_refusals():
    draw = rg.plot.attention_tree
    with pytest.raises(TypeError, match="tree must be a Graph or a networkx graph, got list"):
        draw(WEIGHTS, [1, -1, 1])
    with pytest.raises(ValueError, match="tree must have at least one node, got none"):
        draw(WEIGHTS, rg.Graph(torch.zeros(2, 0, dtype=torch.int64), 0))
    with pytest.raises(ValueError, match="graph must be a tree, got node 2 with the parents 0 and 1"):
        draw(WEIGHTS, rg.Graph(torch.tensor([[0, 1], [2, 2]]), 3))
    with pytest.raises(ValueError, match="graph must be a tree, got a cycle through node"):
        draw(torch.eye(2), rg.Graph(torch.tensor([[0, 1], [1, 0]]), 2))
    with pytest.raises(ValueError, match="weights must be for the 3 nodes"):
        draw(torch.eye(2), TREE)
    with pytest.raises(ValueError, match="query must be at least 0, got -1"):
        draw(WEIGHTS, TREE, query=-1)
    with pytest.raises(ValueError, match="node_names must be one for each of the 3 nodes, got 1"):
        draw(WEIGHTS, TREE, node_names=["a"])
