"""The karate club: what is read from networkx, what a model may see, and how answers are counted."""

import networkx as nx
import pytest
import torch

pytest.importorskip("torch_geometric")
import karate_club as page
from experiments import karate_club as example


def test_the_graph_is_that_of_networkx():
    club, friends = nx.karate_club_graph(), example.FRIENDS
    assert page.CLUB.graph.num_nodes == 34 and page.CLUB.graph.num_edges == 2 * club.number_of_edges()
    assert [page.CLUB.node_types[side] for side in page.SIDES] == [club.nodes[n]["club"] for n in club]
    for (key, query), kind in zip(friends.graph.edge_index.T.tolist(), friends.graph.edge_type.tolist(), strict=True):
        assert friends.types[kind] == ("often" if club[key][query]["weight"] >= example.OFTEN else "seldom")


@pytest.mark.parametrize("name", ["distances", "kinds | distances"])
def test_labels_tell_members_apart(name):
    """Unknown members differ in nothing but their place in the graph: without labels their scores are equal."""
    known = page.shown(page.choose(0))
    torch.manual_seed(0)
    with_labels, without = (example.ROWS[row]()(known)[known == page.UNKNOWN] for row in (name, "no labels"))
    assert with_labels.std(0).min() > 1e-3
    assert without.std(0).max() < 1e-6


def test_known_members_are_not_counted():
    known = torch.arange(10)
    predicted = page.SIDES.clone()
    predicted[known] = 1 - predicted[known]
    assert example.share_right(predicted, known) == 1.0
    assert example.share_right(1 - page.SIDES, known) == 0.0


def test_the_nearest_members_vote():
    votes = example.vote(torch.tensor([0, 33]))
    assert votes[0] == 0 and votes[33] == 1
    assert votes[1] == 0  # a friend of 0, two steps from 33
    assert votes[32] == 1  # a friend of 33, two steps from 0
