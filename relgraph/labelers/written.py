"""Ids of all pairs of a graph as labels: one matrix for a graph alone, one block a graph for a packed batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph
from relgraph.labels import BlockLabels, DenseLabels

DEFAULTS = ("other", "unlabeled")
"""What the pairs can do that a tree labeler says nothing of; or None, they do not attend."""


def label_pairs(graph: Graph, ids: Tensor, num_labels: int, attend: Tensor | None = None) -> DenseLabels | BlockLabels:
    """Labels of every pair of nodes of a graph, or of each graph of a packed batch, from one id a pair.

    What a labeler of one's own returns where every pair has a label: a graph alone gets :class:`~relgraph.DenseLabels`,
    a packed batch :class:`~relgraph.BlockLabels`, in which no pair crosses from graph to graph.

    Args:
        graph: its nodes are the queries and the keys.
        ids: ``[P]``, an integer in ``[-1, R)`` for each pair in the order of :meth:`Graph.pairs`; or the matrix ``[N,
            N]`` of all nodes, row the query, of which the pairs within each graph count. -1 is no label. Truth values
            are the ids 0 and 1 where R is 2.
        num_labels: R.
        attend: bool, of the shape of ``ids``, ``[P]`` or ``[N, N]``, False for pairs that do not attend; all attend
            when left out.

    Returns:
        The labels, of N queries and N keys.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: other shapes, ids out of range or other than integers, truth values where R is not 2.

    Example:
        >>> graph = rg.Graph.batch([rg.Graph(torch.tensor([[0], [1]]), 2), rg.Graph(torch.tensor([[0], [0]]), 1)])
        >>> query, key = graph.pairs()
        >>> rg.label_pairs(graph, query == key, 2)
        BlockLabels(q_len=3, k_len=3, num_labels=2, graphs=2)
        >>> rg.label_pairs(graph, torch.eye(3) > 0, 2).to_dense()
        (tensor([[[ 1,  0, -1],
                 [ 0,  1, -1],
                 [-1, -1,  1]]]), tensor([[[ True,  True, False],
                 [ True,  True, False],
                 [False, False,  True]]]))
    """
    nodes = check_graph(graph).num_nodes
    ids = truth_as_ids("ids", ids, check.integer("num_labels", num_labels, minimum=0))
    if check.integer_tensor("ids", ids, dim=(1, 2)).dim() == 2 and not check.shaped(ids, (nodes, nodes)):
        raise ValueError(f"ids must have shape [P] or [N, N] = [{nodes}, {nodes}], got {list(ids.shape)}")
    if attend is not None and not check.shaped(check.tensor("attend", attend), ids.shape):
        raise ValueError(f"attend must have the shape of ids, {list(ids.shape)}, got {list(attend.shape)}")
    if graph.ptr is None:
        if ids.numel() != nodes * nodes:
            raise ValueError(f"ids must hold one id a pair, {nodes * nodes} in all, got {ids.numel()}")
        matrix = (1, nodes, nodes)
        return DenseLabels(ids.reshape(matrix), num_labels, attend=None if attend is None else attend.reshape(matrix))
    if ids.dim() == 2:
        pairs = graph.pairs()
        ids, attend = ids[pairs], None if attend is None else attend[pairs]
    return BlockLabels(ids, num_labels, graph.ptr, attend=attend, lengths=(nodes, nodes))


def truth_as_ids(name: str, ids: Any, num_labels: int) -> Any:
    """Truth values as the ids 0 and 1, where those are all the ids there are; anything else as it is."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.bool:
        return ids
    if num_labels != 2:
        raise ValueError(f"{name} may be truth values where num_labels is 2, got them with num_labels = {num_labels}")
    return ids.to(torch.int8)


def check_default(default: str | None) -> str | None:
    """``default`` itself when it is one of the choices, or None."""
    return None if default is None else check.choice("default", default, DEFAULTS)


def with_other(names: tuple[str, ...], default: str | None) -> tuple[str, ...]:
    """The names, and that of the rest where it has a label."""
    return (*names, "other") if default == "other" else names


def written_with_rest(graph: Graph, ids: Tensor, num_labels: int, default: str | None) -> DenseLabels | BlockLabels:
    """Labels from one id a pair, in the order of :meth:`Graph.pairs`, where -1 stands for the rest."""
    rest = ids < 0
    if default == "other":
        ids = ids.masked_fill(rest, num_labels - 1)
    return label_pairs(graph, ids, num_labels, attend=~rest if default is None else None)
