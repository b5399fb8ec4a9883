"""Attention over a graph: shades, widths, colours and bends are those of the weights and the labels."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba

import relgraph as rg
from relgraph.plot import _style

PATH = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
POS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
WEIGHTS = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.2, 0.0], [0.1, 0.4, 0.5]], dtype=torch.float64)


def nodes(ax):
    return ax.collections[1]


def width(share):
    return 0.5 + 2.8 * share


def ends(arrow):
    """From where to where an arrow leads, as given: before it is shortened at both ends."""
    return [tuple(float(x) for x in point) for point in arrow._posA_posB]


def arrows(ax):
    """``(from, to)`` and width of each arrow over POS, in the order of drawing."""
    return {tuple(int(point[0]) for point in ends(a)): a.get_linewidth() for a in ax.patches}


def test_all_attention_shades_what_is_received_and_widens_edges():
    heads = torch.stack([WEIGHTS + 0.1, WEIGHTS - 0.1]).abs()
    np.testing.assert_allclose(nodes(rg.plot.attention_graph(heads, PATH, pos=POS)).get_array(), heads.mean((0, 1)))
    ax = rg.plot.attention_graph(WEIGHTS, PATH, pos=POS)
    np.testing.assert_allclose(nodes(ax).get_array(), WEIGHTS.mean(0))
    assert nodes(ax).get_offsets().tolist() == POS.tolist()
    assert arrows(ax) == pytest.approx({(1, 2): width(0.5), (0, 1): width(1.0)})
    assert [text.get_text() for text in ax.texts] == ["0", "1", "2"]
    (bar,) = ax.child_axes
    assert bar.get_ylabel() == "attention received"


def test_one_query_shades_its_keys_and_gets_their_arrows():
    ax = rg.plot.attention_graph(WEIGHTS, PATH, pos=POS, query=2, node_names=["a", "b", "c"])
    np.testing.assert_allclose(nodes(ax).get_array(), WEIGHTS[2])
    assert arrows(ax) == pytest.approx({(0, 2): width(0.25), (1, 2): width(1.0)})
    bend = {int(ends(a)[0][0]): a.get_connectionstyle().rad for a in ax.patches}
    assert bend[1] == 0 and bend[0] != 0
    ringed = [np.allclose(colour, to_rgba(_style.HERE)) for colour in nodes(ax).get_edgecolors()]
    assert ringed == [False, False, True]
    assert nodes(ax).get_linewidths()[2] > nodes(ax).get_linewidths()[0]
    assert ax.get_title() == "attention of c" and ax.child_axes[0].get_ylabel() == "attention"


def test_edges_are_lines_whatever_their_weight():
    ax = rg.plot.attention_graph(torch.zeros(3, 3), PATH, pos=POS)
    segments = [segment.tolist() for segment in ax.collections[0].get_segments()]
    assert segments == [[[0, 0], [1, 0]], [[1, 0], [2, 0]]]
    assert not ax.patches


def test_edges_both_ways_are_one_line_and_two_bent_arrows():
    both = rg.Graph(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2)
    ax = rg.plot.attention_graph(torch.full((2, 2), 0.5), both)
    assert len(ax.collections[0].get_segments()) == 1
    assert [arrow.get_connectionstyle().rad for arrow in ax.patches] == [0.16, 0.16]


def test_arrows_wear_the_colour_of_their_pair():
    labels = rg.EdgeType(["near", "far"], attend="all")(rg.Graph(PATH.edge_index, 3, edge_type=torch.tensor([1, 0])))
    ax = rg.plot.attention_graph(WEIGHTS, PATH, pos=POS, query=2, labels=labels, names=("near", "far"))
    colours = {int(ends(a)[0][0]): a.get_edgecolor()[:3] for a in ax.patches}
    assert colours[1] == pytest.approx(to_rgba(_style.LABELS[0])[:3])
    assert colours[0] == pytest.approx(to_rgba(_style.PLAIN)[:3])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["near", "no label"]
    ax = rg.plot.attention_graph(WEIGHTS, PATH, labels=labels)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1"]


def test_networkx_graphs_keep_their_order_and_names():
    family = nx.DiGraph([("Ann", "Bob"), ("Bob", "Cem")])
    ax = rg.plot.attention_graph(WEIGHTS, family, pos=POS)
    assert [text.get_text() for text in ax.texts] == ["Ann", "Bob", "Cem"]
    assert arrows(ax) == pytest.approx({(1, 2): width(0.5), (0, 1): width(1.0)})
    assert rg.plot.attention_graph(WEIGHTS, nx.path_graph(3)).patches


def test_a_tree_is_drawn_level_by_level():
    tree, places = rg.Graph.from_parents(torch.tensor([1, -1, 1])), [[0.0, -1.0], [0.5, 0.0], [1.0, -1.0]]
    ax = rg.plot.attention_graph(WEIGHTS, tree, query=2, pos="tree", node_names=["x", "=", "1"])
    assert nodes(ax).get_offsets().tolist() == places
    np.testing.assert_allclose(nodes(ax).get_array(), WEIGHTS[2])
    drawn = {ends(arrow)[0]: arrow.get_linewidth() for arrow in ax.patches}
    assert drawn == pytest.approx({tuple(places[0]): width(0.25), tuple(places[1]): width(1.0)})
    ax = rg.plot.attention_graph(torch.rand(6, 6), rg.Graph.batch([tree, tree]), pos="tree")
    assert nodes(ax).get_offsets().tolist() == [*places, *[[x + 2, y] for x, y in places]]


def test_of_names_that_would_overlap_those_with_most_attention_stay():
    pos = torch.tensor([[0.0, 0.0], [0.02, 0.0], [0.04, 0.0], [10.0, 0.0]])
    weights, graph = torch.tensor([[0.1, 0.2, 0.6, 0.1]] * 4), rg.Graph(torch.tensor([[0], [1]]), 4)
    names = [f"{letter} is a name" for letter in "abcd"]
    ax = rg.plot.attention_graph(weights, graph, pos=pos, node_names=names)
    assert [text.get_text() for text in ax.texts] == [names[2], names[3]]
    ax = rg.plot.attention_graph(weights, graph, pos=pos, node_names=names, query=0)
    assert [text.get_text() for text in ax.texts] == [names[0], names[3]]


def test_the_strongest_arrows_alone_are_drawn():
    count = 40
    index = torch.ones(count, count).fill_diagonal_(0).nonzero().T
    weights = torch.rand(count, count, dtype=torch.float64) + 0.1
    ax = rg.plot.attention_graph(weights, rg.Graph(index, count))
    off = weights.masked_select(~torch.eye(count, dtype=torch.bool)).sort(descending=True).values
    wanted = width(off[:300] / off[0]).flip(0)
    np.testing.assert_allclose([arrow.get_linewidth() for arrow in ax.patches], wanted)


def test_faint_arrows_are_left_out():
    weights = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.019, 0.0]])
    assert len(rg.plot.attention_graph(weights, PATH).patches) == 1
