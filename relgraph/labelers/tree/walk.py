"""Depths, ancestors and lowest common ancestors in trees, for all trees of a packed batch at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.graphs import Graph, check_graph, check_pairs


class Steps(NamedTuple):
    """Steps from the query up to the lowest common ancestor and down to the key, ``[P]``; -1 if there is none."""

    up: Tensor
    down: Tensor


class TreeWalk:
    """A tree, or a batch of them, prepared for queries; every loop is over powers of two, none over nodes.

    Nodes are also numbered in preorder, in which every subtree is a contiguous run. The lowest common ancestor of two
    nodes is one step above the shallowest node after the first and up to the second of them. Minima over runs of 1, 2,
    4, ... nodes find that in two look-ups (Bender and Farach-Colton 2000). Between nodes of two trees there is a root,
    at depth 0, which gives -1. ``parents`` and ``depth`` are ``[N]``.
    """

    def __init__(self, parents: Tensor) -> None:
        jumps = _jumps(parents)
        self.parents = parents
        self.depth = _sum_above(torch.ones_like(parents), jumps) - 1
        sizes = parents.new_ones(len(parents) + 1)  # of subtrees
        for above in jumps:
            sizes = sizes.index_add(0, above, sizes)
        self._preorder = _sum_above(_before_siblings(parents, sizes[:-1]) + 1, jumps) - 1
        self._minima = _run_minima(torch.empty_like(parents).scatter(0, self._preorder, self.depth))
        self._levels, self._by_level = (self.depth * parents.shape[0] + self._preorder).sort()

    def common_depth(self, query: Tensor, key: Tensor) -> Tensor:
        """The depth of the lowest common ancestor, ``[P]``; -1 for nodes of different trees."""
        first, last = torch.aminmax(torch.stack([self._preorder[query], self._preorder[key]]), dim=0)
        size = torch.frexp((last - first).double()).exponent.to(torch.int64) - 1  # floor(log2)
        size = size.clamp(min=0)
        start = (first + 1).clamp(max=last)
        shallowest = torch.minimum(self._minima[size, start], self._minima[size, last + 1 - (1 << size)])
        return torch.where(first == last, self.depth[query], shallowest - 1)

    def steps(self, query: Tensor, key: Tensor) -> Steps:
        """Steps up from the query and down to the key, for every pair."""
        common = self.common_depth(query, key)
        apart = common < 0
        up, down = self.depth[query] - common, self.depth[key] - common
        return Steps(up.masked_fill(apart, -1), down.masked_fill(apart, -1))

    def ancestor(self, node: Tensor, depth: Tensor) -> Tensor:
        """The ancestor of each node at a depth from 0 to its own."""
        # Nodes of one depth are sorted in preorder, so the ancestor is the last of them up to the node.
        at = torch.searchsorted(self._levels, depth * self.parents.shape[0] + self._preorder[node], right=True) - 1
        return self._by_level[at]


def walk_tree(graph: Graph, *, forest: bool) -> TreeWalk:
    """Check that a graph is a tree, or several if ``forest``, and prepare it for queries."""
    return TreeWalk(check_pairs(check_graph(graph)).parents(forest=forest))


def _jumps(parents: Tensor) -> list[Tensor]:
    """The ancestors 1, 2, 4, ... steps up, ``[N+1]`` each; N is above all roots and above itself."""
    count = parents.shape[0]
    above = torch.cat([torch.where(parents < 0, count, parents), parents.new_full((1,), count)])
    jumps: list[Tensor] = []
    while bool((above < count).any()):
        jumps.append(above)
        above = above[above]
    return jumps


def _sum_above(values: Tensor, jumps: list[Tensor]) -> Tensor:
    """The sum over every node and its ancestors."""
    values = torch.cat([values, values.new_zeros(1)])
    for above in jumps:
        values = values + values[above]
    return values[:-1]


def _before_siblings(parents: Tensor, sizes: Tensor) -> Tensor:
    """Count each node's earlier siblings and the nodes below them. Roots count as siblings."""
    grouped, order = parents.sort(stable=True)
    first = torch.searchsorted(grouped, grouped)
    before = sizes[order].cumsum(0) - sizes[order]
    return torch.empty_like(sizes).scatter(0, order, before - before[first])


def _run_minima(values: Tensor) -> Tensor:
    """The minima of runs of 1, 2, 4, ... values, by the run's first index: ``[K, N]``; runs past the end are cut."""
    rows = [values]
    length = 1
    while 2 * length <= values.shape[0]:
        row = rows[-1]
        rows.append(torch.cat([torch.minimum(row[:-length], row[length:]), row[-length:]]))
        length *= 2
    return torch.stack(rows)
