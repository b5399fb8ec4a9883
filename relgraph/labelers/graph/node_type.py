"""Labels by node type: what the query is and what the key is, and virtual nodes that all others see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph
from relgraph.labelers.base import Labeler, distinct
from relgraph.labelers.graph.edge_type import type_names
from relgraph.labelers.written import label_pairs
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels, EdgeLabels


@final
@dataclass(frozen=True, init=False, repr=False)
class NodeType(Labeler):
    """One label for each ordered pair of node types: ``type_i * num_types + type_j``, the query's first.

    A name reads query→key, ``"C→N"`` for a query C that looks at a key N: against the direction of edges, which lead
    from key to query. A node of type -1 has none, and its pairs carry no label. Labels of all pairs of a graph are
    written out.

    Args:
        types: the names of the node types in the order of their numbers, or how many there are (then named ``"0"``,
            ``"1"`` and so on).

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a negative number of types, more than 2^20 pairs of them, or names that are not different.

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
        """The number of types, squared."""
        return len(self.types) ** 2

    @property
    def names(self) -> tuple[str, ...]:
        """``"query's type→key's type"``: who looks, then who is looked at."""
        return distinct(f"{query}→{key}" for query in self.types for key in self.types)

    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of all pairs of a graph, or of each graph of a packed batch.

        Args:
            graph: its ``node_type`` in ``[-1, len(types))``.

        Returns:
            Dense labels for a graph alone, ``[1, N, N]``; block labels for a packed batch.
            Id ``a · len(types) + b`` is called ``"A→B"``, the query's type first.

        Raises:
            TypeError: what is no Graph.
            ValueError: a graph without node types, or a type out of range.
        """
        types = _node_types(graph)
        check.id_range("node_type", types, len(self.types))
        query, key = (types[end] for end in graph.pairs())
        ids = (query * len(self.types) + key).masked_fill((query < 0) | (key < 0), UNLABELED)
        return label_pairs(graph, ids, self.num_labels)

    def __repr__(self) -> str:
        numbers = self.types == type_names("types", len(self.types))
        return f"NodeType({len(self.types) if numbers else self.types!r})"


@final
@dataclass(frozen=True)
class VirtualNode(Labeler):
    """Labels for the pairs of a virtual node, which stands for a whole graph; all other pairs attend without a label.

    Made for priority: ``VirtualNode(9) | ShortestPath(4)`` tells a virtual node's pairs from all others, whatever edges
    it has. A virtual node with edges to all nodes shortens every path through it: leave them out.

    Ids: 0 where a virtual node is the key alone, 1 where it is the query alone, 2 where both are virtual. A name reads
    query→key, against the direction of edges, which lead from key to query.

    Source: Graphormer gives such pairs a scalar of their own (Ying et al. 2021).

    Args:
        node_type: the type of the virtual nodes in ``graph.node_type``; a graph may have none, one or several.

    Raises:
        TypeError: a type that is no int.
        ValueError: a negative type.

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
        """3."""
        return 3

    @property
    def names(self) -> tuple[str, ...]:
        """``"node→virtual"``, ``"virtual→node"`` and ``"virtual→virtual"``, who looks before who is looked at."""
        return ("node→virtual", "virtual→node", "virtual→virtual")

    def __call__(self, graph: Graph) -> EdgeLabels:
        """The labels of a graph, or of a packed batch; only the pairs of virtual nodes are listed.

        Args:
            graph: its ``node_type`` tells which nodes are virtual.

        Returns:
            Edge labels with ids 0, 1 and 2; pairs that are not listed attend without a label.

        Raises:
            TypeError: what is no Graph.
            ValueError: a graph without node types.
        """
        is_virtual = _node_types(graph) == self.node_type
        nodes = is_virtual.nonzero()[:, 0]
        home = graph.graph_of()[nodes]
        ptr = graph.borders()
        sizes = ptr.diff()[home]
        virtual, first = nodes.repeat_interleave(sizes), ptr[home].repeat_interleave(sizes)
        begin = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        other = first + torch.arange(virtual.shape[0], device=graph.device) - begin
        plain = ~is_virtual[other]
        # As queries virtual nodes look at all nodes; as keys they are listed for plain queries, so no pair comes twice.
        key, query = torch.cat([other, virtual[plain]]), torch.cat([virtual, other[plain]])
        ids = torch.where(is_virtual[query] & is_virtual[key], 2, is_virtual[query].long())
        return EdgeLabels(torch.stack([key, query]), ids, 3, q_len=graph.num_nodes, default=UNLABELED, ptr=graph.ptr)


def _node_types(graph: Graph) -> Tensor:
    """The type of every node, ``[N]``."""
    types = check_graph(graph).node_type
    if types is None:
        raise ValueError("graph must have node_type, got None")
    check.data("graph", types)
    return types
