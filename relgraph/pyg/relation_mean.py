"""Means over the neighbours of each relation in place of a softmax, as in R-GCN."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import embedding_bag

from relgraph.labels import EdgeLabels
from relgraph.labels.memory import memory_of
from relgraph.pyg.related import Related, related


class _Groups(NamedTuple):
    """The edges of every pair of a node and a relation, and the pairs of every node."""

    neighbours: Tensor  # [E], sorted by pair
    first_edge: Tensor  # [T]
    by_node: Tensor  # [T], pairs sorted by node
    first_pair: Tensor  # [N]
    share: Tensor  # [E], 1 / |N_r(i)|, float64


def relation_means(
    x: Tensor, labels: EdgeLabels, side: int, project: Callable[[Tensor, Related], Tensor]
) -> tuple[Tensor, Tensor]:
    """Σ_r of the projected mean of x_j over the edges of relation r into each node, and the share of every edge.

    Means first: then there is one projection for each pair of a node and a relation, however many edges it has, and no
    tensor holds a vector per edge.

    Args:
        x: ``[N_src, F]``.
        labels: the edges.
        side: which end of the edges receives.
        project: from means ``[T, F]`` of the different pairs to ``[T, W]``.
    """
    pairs = related(labels, side)
    groups: _Groups = memory_of([labels], "related").once(("groups", side), lambda: _grouped(labels, side, pairs))
    rows = project(_sums(x, groups.neighbours, groups.first_edge, mean=True), pairs)
    return _sums(rows, groups.by_node, groups.first_pair), groups.share


def _grouped(labels: EdgeLabels, side: int, pairs: Related) -> _Groups:
    nodes = labels.q_len if side else labels.k_len
    counts, per_node = pairs.at.bincount(minlength=len(pairs.nodes)), pairs.nodes.bincount(minlength=nodes)
    return _Groups(
        labels.edge_index[1 - side][pairs.at.argsort(stable=True)], counts.cumsum(0) - counts,
        pairs.nodes.argsort(stable=True), per_node.cumsum(0) - per_node, counts.double().reciprocal()[pairs.at],
    )  # fmt: skip


def _sums(x: Tensor, index: Tensor, first: Tensor, mean: bool = False) -> Tensor:
    """The sums or means of the rows that ``index`` names from each of ``first`` on; zeros of none."""
    if first.shape[0] == 0:
        return x.new_zeros(0, x.shape[1])
    return embedding_bag(index, x, first, mode="mean" if mean else "sum")
