"""Random trees and forests, alone and packed, and what is known of every pair in them from networkx and plain loops."""

from __future__ import annotations

import networkx as nx
import torch
from hypothesis import strategies as st

import relgraph as rg

TREE = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2, 3, 2]), edge_type=torch.tensor([0, 0, 1, 1, 0, 0]))
EMPTY = rg.Graph.from_parents(torch.zeros(0).long(), edge_type=torch.zeros(0).long())
ONE = rg.Graph.from_parents(torch.tensor([-1]), edge_type=torch.tensor([0]))
FOREST = rg.Graph.from_parents(torch.tensor([1, -1, 1, -1, 3]), edge_type=torch.tensor([0, 0, 1, 0, 1]))
PACKED = rg.Graph.batch([TREE, EMPTY, ONE, TREE])
PACKED_FOREST = rg.Graph.batch([FOREST, EMPTY, TREE])


@st.composite
def trees(draw, forest=False, types=2, most=8):
    """Draw one tree, or several, with nodes in random order."""
    count = draw(st.integers(0, most))
    parents = [draw(st.integers(-1 if forest else 0, node - 1)) if node else -1 for node in range(count)]
    place = draw(st.permutations(range(count)))
    moved = torch.full((count,), -1)
    for node, parent in enumerate(parents):
        moved[place[node]] = place[parent] if parent >= 0 else -1
    edge_type = torch.tensor(draw(st.lists(st.integers(0, types - 1), min_size=count, max_size=count))).long()
    return rg.Graph.from_parents(moved, edge_type=edge_type)


def batches(forest=False):
    return st.lists(trees(forest=forest, most=6), min_size=1, max_size=3)


def known(graph):
    """Return ``(up, down)`` of every pair of one graph by networkx, None for two trees."""
    made = nx.DiGraph(graph.edge_index.T.tolist())
    made.add_nodes_from(range(graph.num_nodes))
    common = dict(nx.tree_all_pairs_lowest_common_ancestor(made)) if graph.num_edges == graph.num_nodes - 1 else None
    below = dict(nx.all_pairs_shortest_path_length(made))
    out = {}
    for i in range(graph.num_nodes):
        for j in range(graph.num_nodes):
            above = nx.ancestors(made, i) | {i}, nx.ancestors(made, j) | {j}
            shared = above[0] & above[1]
            if not shared:
                out[i, j] = None
                continue
            lowest = min(shared, key=lambda a, i=i: below[a][i])
            if common is not None:
                assert lowest == common.get((i, j), common.get((j, i)))
            out[i, j] = below[lowest][i], below[lowest][j]
    return out


def depth(graph):
    parents = graph.parents(forest=True).tolist()
    return [len(way_up(parents, node)) - 1 for node in range(graph.num_nodes)]


def way_up(parents, node):
    """List the node, its parent, and so on up to the root."""
    way = [node]
    while parents[way[-1]] >= 0:
        way.append(parents[way[-1]])
    return way


def named(labeler, graph):
    """Return the name of every pair (i, j); None without a label, False where it does not attend."""
    ids, attend = (table[0].tolist() for table in labeler(graph).to_dense())
    nodes = range(graph.num_nodes)
    name = {-1: None} | dict(enumerate(labeler.names))
    return {(i, j): name[ids[i][j]] if attend[i][j] else False for i in nodes for j in nodes}
