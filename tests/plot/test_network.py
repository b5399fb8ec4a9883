"""Places of nodes: distances in the picture follow the graph, trees stand level by level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relgraph as rg
from relgraph.plot._network import given_positions, graph_layout, tree_layout


def ring(count):
    at = torch.arange(count)
    return rg.Graph(torch.stack([at, (at + 1) % count]), count)


def apart(place):
    return np.linalg.norm(place[:, None] - place, axis=-1)


def test_a_path_is_straight_and_lies_flat():
    place = graph_layout(rg.Graph(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 5))
    wanted = np.abs(np.arange(5)[:, None] - np.arange(5))
    far = apart(place)
    np.testing.assert_allclose(far / far[1, 2], wanted, atol=0.1)
    assert np.ptp(place[:, 0]) > 20 * np.ptp(place[:, 1])


def test_a_ring_is_regular():
    far = apart(graph_layout(ring(6)))
    np.testing.assert_allclose([far[i, (i + 1) % 6] for i in range(6)], far[0, 1], rtol=1e-3)
    np.testing.assert_allclose([far[i, (i + 3) % 6] for i in range(6)], 2 * far[0, 1], rtol=1e-3)


def test_parts_without_a_path_stand_apart():
    index = ring(4).edge_index
    place = graph_layout(rg.Graph(torch.cat([index, index + 4], 1), 9))
    assert np.isfinite(place).all()
    near = apart(place)
    assert near[:4, :4].max() < near[:4, 4:].min() and near[8, :8].min() > near[0, 1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_nodes_and_no_edges(count):
    place = graph_layout(rg.Graph(torch.zeros(2, 0, dtype=torch.int64), count))
    assert place.shape == (count, 2)
    assert (apart(place) + 9 * np.eye(count)).min() > 0.5


def test_the_layout_is_the_same_every_time():
    torch.manual_seed(1)
    first = graph_layout(ring(7))
    torch.manual_seed(2)
    np.testing.assert_array_equal(graph_layout(ring(7)), first)


def test_a_tree_stands_level_by_level():
    place = tree_layout(np.array([1, -1, 4, 4, 1, 6, 1]))
    assert place[:, 1].tolist() == [-1, 0, -2, -2, -1, -2, -1]
    assert place[:, 0].tolist() == [0, 1.5, 1, 2, 1.5, 3, 3]


def test_trees_of_a_forest_stand_side_by_side():
    assert tree_layout(np.array([-1, 0, -1, 2, 2])).tolist() == [[0, 0], [0, -1], [1.5, 0], [1, -1], [2, -1]]


def test_a_long_chain():
    place = tree_layout(np.arange(-1, 1999))
    assert place[:, 0].tolist() == [0] * 2000 and place[-1, 1] == -1999


def test_given_places():
    wanted = [[0.0, 1.0], [2.0, 3.0]]
    assert given_positions(torch.tensor(wanted), 2).tolist() == wanted
