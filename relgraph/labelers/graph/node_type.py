"""Labels by node type: the types of query and key, and virtual nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_type_names
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labelers.base import GraphLabeler, distinct
from relgraph.labelers.graph.edge_type import type_names
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels, EdgeLabels


@final
@dataclass(frozen=True, init=False, repr=False)
class NodeType(AllPairsLabeler):
    """One label for each ordered pair of node types: ``type_i * num_types + type_j``, the query's first.

    A name reads query→key: ``"C→N"`` for a query C that looks at a key N. (Edges lead the other way, from key to
    query.) Pairs with a node of type -1 have no label. The ids are written out.

    Args:
        types: the names of the node types in the order of their numbers; or how many there are, then named ``"0"``,
            ``"1"`` and so on.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a negative number of types, more than 2^20 pairs of types, or repeated names.

    Example:
        >>> labeler = rg.NodeType(["C", "N"])
        >>> labeler.names
        ('C→C', 'C→N', 'N→C', 'N→N')
        >>> labeler(rg.Graph(torch.zeros(2, 0).long(), 3, node_type=torch.tensor([0, 1, -1]))).to_dense()[0]
        tensor([[[ 0,  1, -1],
                 [ 2,  3, -1],
                 [-1, -1, -1]]])
    """

    types: tuple[str, ...]

    def __init__(self, types: int | Sequence[str]) -> None:
        names = type_names("types", types, kind="node")
        check.most_labels("types", len(names) ** 2)
        self._set(types=names)

    @property
    def num_labels(self) -> int:
        """``num_types²``."""
        return len(self.types) ** 2

    @property
    def names(self) -> tuple[str, ...]:
        """``"query's type→key's type"``."""
        return distinct(f"{query}→{key}" for query in self.types for key in self.types)

    def _why_never_unlabeled(self) -> str | None:
        return None  # pairs of a node of type -1 have no label

    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        types = node_types(graph)
        check.id_range("node_type", types, len(self.types))
        check_type_names("types", self.types, "node_types of the graph", graph.node_types)
        query, key = (types[end] for end in graph.pairs())
        ids = (query * len(self.types) + key).masked_fill((query < 0) | (key < 0), UNLABELED)
        return label_pairs(graph, ids, self.num_labels)


@final
@dataclass(frozen=True, repr=False)
class VirtualNode(GraphLabeler):
    """Labels for the pairs of virtual nodes, which represent a whole graph; all other pairs attend without a label.

    Use it as the first part of ``|``: ``VirtualNode(9) | ShortestPath(4)`` gives a virtual node's pairs their own
    labels, whatever edges it has. Do not connect it to all nodes, because these edges would shorten every path. A sum
    cannot follow ``|``, so :func:`~relgraph.labelers.graphormer` and :func:`~relgraph.labelers.grpe` have an argument
    for the node type.

    The id is 0 if only the key is virtual, 1 if only the query is, 2 if both are. A name reads query→key.

    Source: Ying et al. 2021 (Graphormer), where such pairs have their own scalar.

    Args:
        node_type: the type of virtual nodes in ``graph.node_type``; a graph may have none, one or several of them.

    Raises:
        TypeError, ValueError: a type that is not an int or is negative.

    Example:
        >>> labeler = rg.VirtualNode(1)
        >>> labeler.names
        ('node→virtual', 'virtual→node', 'virtual→virtual')
        >>> labeler(rg.Graph(torch.zeros(2, 0).long(), 3, node_type=torch.tensor([0, 0, 1]))).to_dense()[0]
        tensor([[[-1, -1,  0],
                 [-1, -1,  0],
                 [ 1,  1,  2]]])
    """

    node_type: int

    def __post_init__(self) -> None:
        check.integer("node_type", self.node_type, minimum=0)

    @property
    def num_labels(self) -> int:
        return 3

    @property
    def names(self) -> tuple[str, ...]:
        """``"node→virtual"``, ``"virtual→node"`` and ``"virtual→virtual"``."""
        return ("node→virtual", "virtual→node", "virtual→virtual")

    def __call__(self, graph: Graph) -> EdgeLabels:
        is_virtual = node_types(graph) == self.node_type
        nodes = is_virtual.nonzero()[:, 0]
        home = graph.graph_of()[nodes]
        ptr = graph.borders()
        sizes = ptr.diff()[home]
        virtual, first = nodes.repeat_interleave(sizes), ptr[home].repeat_interleave(sizes)
        begin = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        other = first + torch.arange(virtual.shape[0], device=graph.device) - begin
        plain = ~is_virtual[other]
        # A virtual query looks at all nodes; a virtual key is listed only for plain queries, so no pair comes twice.
        key, query = torch.cat([other, virtual[plain]]), torch.cat([virtual, other[plain]])
        ids = torch.where(is_virtual[query] & is_virtual[key], 2, is_virtual[query].long())
        return EdgeLabels(torch.stack([key, query]), ids, 3, q_len=graph.num_nodes, default=UNLABELED, ptr=graph.ptr)


def node_types(graph: Graph) -> Tensor:
    """The type of every node, ``[N]``."""
    types = check_graph(graph).node_type
    if types is None:
        raise ValueError("graph must have node_type, got None")
    check.data("graph", types)
    return types
