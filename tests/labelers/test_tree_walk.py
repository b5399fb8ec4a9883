"""Depths, ancestors and lowest common ancestors against networkx and plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import relgraph as rg
from relgraph.labelers.tree.walk import TreeWalk, walk_tree

from .tree_strategies import PACKED_FOREST, depth, known, trees, way_up


@given(trees(forest=True))
@settings(max_examples=50)
def test_against_networkx(graph):
    tree = walk_tree(graph, forest=True)
    parents = tree.parents.tolist()
    assert tree.depth.tolist() == depth(graph)
    up, down = tree.steps(*graph.pairs())
    pairs = zip(*(x.tolist() for x in graph.pairs()), up.tolist(), down.tolist(), strict=True)
    wanted = known(graph)
    for i, j, above, below in pairs:
        assert (above, below) == (wanted[i, j] or (-1, -1))
    for node in range(graph.num_nodes):
        way = way_up(parents, node)[::-1]
        found = tree.ancestor(torch.full((len(way),), node), torch.arange(len(way)))
        assert found.tolist() == way


@pytest.mark.parametrize("backwards", [False, True])
def test_a_deep_chain(backwards):
    count = 3000
    parents = torch.arange(count) - 1
    if backwards:
        parents = (count - 1 - parents.flip(0)) % count
        parents[-1] = -1
    tree = TreeWalk(parents)
    place = torch.arange(count - 1, -1, -1) if backwards else torch.arange(count)
    assert torch.equal(tree.depth, place)
    i, j = torch.tensor([0, 2999, 5, 1500, 7]), torch.tensor([2999, 0, 5, 1501, 1024])
    up, down = tree.steps(i, j)
    assert torch.equal(up, (place[i] - place[j]).clamp(min=0))
    assert torch.equal(down, (place[j] - place[i]).clamp(min=0))


@pytest.mark.parametrize(
    "labeler",
    [
        rg.TreeRelation(),
        rg.UpDown(2),
        rg.labelers.TreePaths(2, 1),
    ],
    ids=repr,
)
def test_every_labeler_refuses_what_is_no_tree(labeler):
    def graph(*edges):
        return rg.Graph(torch.tensor(edges).view(-1, 2).T, 3)

    with pytest.raises(ValueError, match="got a cycle through node"):
        labeler(graph((0, 1), (1, 2), (2, 0)))
    with pytest.raises(ValueError, match="got a cycle through node 1"):
        labeler(graph((1, 1), (0, 2)))
    with pytest.raises(ValueError, match="got node 2 with the parents 0 and 1"):
        labeler(graph((0, 2), (1, 2)))
    with pytest.raises(ValueError, match="got node 2 with the parents 0 and 0"):
        labeler(graph((0, 2), (0, 2)))
    with pytest.raises(ValueError, match="got the roots 0 and 2 in graph 0"):
        labeler(graph((0, 1)))
    with pytest.raises(ValueError, match="got the roots 1 and 3 in graph 0"):
        labeler(PACKED_FOREST)
