"""Labels of all pairs of a graph from one id per pair: dense for a single graph, blocks for a packed batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_pairs
from relgraph.labelers.base import GraphLabeler, why_all_labeled
from relgraph.labels import BlockLabels, DenseLabels


class AllPairsLabeler(GraphLabeler):
    """The base class of labelers that write out an id for every pair of a graph."""

    @final
    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        return self._labels(check_pairs(check_graph(graph)))

    _why_never_unlabeled = why_all_labeled

    @abstractmethod
    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of a graph whose pairs can be written out."""


def label_pairs(graph: Graph, ids: Tensor, num_labels: int, attend: Tensor | None = None) -> DenseLabels | BlockLabels:
    """Make labels of every pair of nodes of a graph, or of each graph of a packed batch, from one id per pair.

    Your own labeler can return these if it gives every pair an id. A single graph gets :class:`~relgraph.DenseLabels`,
    and a packed batch gets :class:`~relgraph.BlockLabels`, in which no pair crosses from graph to graph.

    Args:
        graph: its nodes are the queries and the keys.
        ids: ``[P]``, integer in ``[-1, R)``, one per pair in the order of :meth:`~relgraph.Graph.pairs`; or a matrix
            ``[N, N]`` of all nodes, one row per query; only pairs within a graph are read. -1 means no label. If R is
            2, a bool tensor gives the ids 0 and 1.
        num_labels: R.
        attend: bool, in the shape of ``ids``, ``[P]`` or ``[N, N]``; False for pairs that do not attend. By default all
            attend.

    Returns:
        The labels, of N queries and N keys.

    Raises:
        ValueError: wrong shapes, ids that are not integers or out of range, or bool ids if R is not 2.

    Example:
        >>> graph = rg.Graph.batch([rg.Graph(torch.tensor([[0], [1]]), 2), rg.Graph(torch.tensor([[0], [0]]), 1)])
        >>> query, key = graph.pairs()
        >>> rg.labelers.label_pairs(graph, query == key, 2)
        BlockLabels(q_len=3, k_len=3, num_labels=2, graphs=2)
        >>> rg.labelers.label_pairs(graph, torch.eye(3) > 0, 2).to_dense()
        (tensor([[[ 1,  0, -1],
                 [ 0,  1, -1],
                 [-1, -1,  1]]]), tensor([[[ True,  True, False],
                 [ True,  True, False],
                 [False, False,  True]]]))
    """
    nodes = check_graph(graph).num_nodes
    ids = bool_as_ids("ids", ids, check.integer("num_labels", num_labels, minimum=0))
    if check.integer_tensor("ids", ids, dim=(1, 2)).dim() == 2 and not check.shaped(ids, (nodes, nodes)):
        raise ValueError(f"ids must have shape [P] or [N, N] = [{nodes}, {nodes}], got {list(ids.shape)}")
    if attend is not None and not check.shaped(check.tensor("attend", attend), ids.shape):
        raise ValueError(f"attend must have the shape of ids, {list(ids.shape)}, got {list(attend.shape)}")
    if graph.ptr is None:
        if ids.numel() != nodes * nodes:
            raise ValueError(f"ids must hold one id per pair, {nodes * nodes} in all, got {ids.numel()}")
        matrix = (1, nodes, nodes)
        return DenseLabels(ids.reshape(matrix), num_labels, attend=None if attend is None else attend.reshape(matrix))
    if ids.dim() == 2:
        pairs = graph.pairs()
        ids, attend = ids[pairs], None if attend is None else attend[pairs]
    return BlockLabels(ids, num_labels, graph.ptr, attend=attend, lengths=(nodes, nodes))


def bool_as_ids(name: str, ids: Any, num_labels: int) -> Any:
    """Turn a bool tensor into the ids 0 and 1 of two labels; return anything else unchanged."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.bool:
        return ids
    if num_labels != 2:
        raise ValueError(f"{name} may be truth values only if num_labels is 2, got num_labels = {num_labels}")
    return ids.to(torch.int8)
