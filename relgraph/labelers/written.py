"""Ids of all pairs of a graph as labels: one matrix for a graph alone, one block a graph for a packed batch."""

from __future__ import annotations

from torch import Tensor

from relgraph.graphs import Graph
from relgraph.labels import BlockLabels, DenseLabels


def written(graph: Graph, ids: Tensor, num_labels: int, attend: Tensor | None = None) -> DenseLabels | BlockLabels:
    """Labels from one id a pair, in the order of :meth:`Graph.pairs`; ``attend`` likewise, all pairs when left out."""
    if graph.ptr is not None:
        return BlockLabels(ids, num_labels, graph.ptr, attend=attend, lengths=(graph.num_nodes, graph.num_nodes))
    shape = (1, graph.num_nodes, graph.num_nodes)
    return DenseLabels(ids.view(shape), num_labels, attend=None if attend is None else attend.view(shape))
