"""Means over the neighbours of each relation in place of a softmax, as in R-GCN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from relgraph.labels import EdgeLabels
from relgraph.labels.memory import memory_of
from relgraph.pyg.related import Related, related


class _Bags(NamedTuple):
    """Which rows each sum adds: ``[E]`` rows, and where each sum begins; and the same of the transpose."""

    rows: Tensor
    first: Tensor
    rows_back: Tensor
    first_back: Tensor


class _Groups(NamedTuple):
    """The edges of every pair of a node and a relation, and the pairs of every node."""

    of_pairs: _Bags  # of neighbours
    of_nodes: _Bags  # of pairs
    per_pair: Tensor  # [T, 1], 1 / |N_r(i)|, float64
    share: Tensor  # [E], the same for each edge


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
    means = _sums(x, groups.of_pairs) * groups.per_pair.to(x.dtype)
    return _sums(project(means, pairs), groups.of_nodes), groups.share


def _grouped(labels: EdgeLabels, side: int, pairs: Related) -> _Groups:
    receivers, senders = (labels.q_len, labels.k_len)[:: 1 if side else -1]
    count = len(pairs.nodes)
    per_pair = pairs.at.bincount(minlength=count).double().reciprocal()
    every = torch.arange(count, device=pairs.nodes.device)
    of_pairs = _bags(labels.edge_index[1 - side], senders, pairs.at, count)
    return _Groups(of_pairs, _bags(every, count, pairs.nodes, receivers), per_pair[:, None], per_pair[pairs.at])


def _bags(sources: Tensor, source_count: int, targets: Tensor, target_count: int) -> _Bags:
    """Bags that add the row of each source to that of its target."""
    return _Bags(*_sorted(sources, targets, target_count), *_sorted(targets, sources, source_count))


def _sorted(rows: Tensor, by: Tensor, count: int) -> tuple[Tensor, Tensor]:
    sizes = by.bincount(minlength=count)
    return rows[by.argsort(stable=True)], sizes.cumsum(0) - sizes


def _sums(x: Tensor, bags: _Bags) -> Tensor:
    """The sum of the rows in each bag; zeros of none."""
    return _Summed.apply(x, *bags)


class _Summed(torch.autograd.Function):
    """Sums of bags of rows. Backward sums by the transpose, so that torch can differentiate it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *bags: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(*bags)
        rows, first, *_ = bags
        return embedding_bag(rows, x, first, mode="sum") if first.shape[0] else x.new_zeros(0, x.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, first, rows_back, first_back = ctx.saved_tensors
        return _Summed.apply(grad, rows_back, first_back, rows, first), None, None, None, None
