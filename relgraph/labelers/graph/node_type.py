"""Labels by node type: the types of query and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from relgraph.arguments import check
from relgraph.graphs import Graph, check_type_names
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labelers.base import distinct
from relgraph.labelers.graph.edge_type import type_names
from relgraph.labels import UNLABELED, BlockLabels, DenseLabels


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
        ValueError: more than 2^20 pairs of types, or repeated names.

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
        types = graph.node_type
        if types is None:
            raise ValueError("graph must have node_type, got None")
        check.data("graph", types)
        check.id_range("node_type", types, len(self.types))
        check_type_names("types", self.types, "node_types of the graph", graph.node_types)
        query, key = (types[end] for end in graph.pairs())
        ids = (query * len(self.types) + key).masked_fill((query < 0) | (key < 0), UNLABELED)
        return label_pairs(graph, ids, self.num_labels)
