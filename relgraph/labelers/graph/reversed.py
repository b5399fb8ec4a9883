"""A labeler of graphs, applied to the graph with every edge the other way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from relgraph.graphs import Graph, check_graph
from relgraph.labelers.algebra import Wrapped
from relgraph.labelers.base import GraphLabeler, check_made
from relgraph.labels import Labels


@final
@dataclass(frozen=True, repr=False)
class Reversed(Wrapped, GraphLabeler):
    """A labeler of graphs that reads every edge the other way: the query of an edge is its source, the key its target.

    Use it for published code that attends along edges instead of against them and searches paths from the query on.
    Its labels mean what their names say if you read them from source to target.

    Args:
        labeler: what labels the reversed graph.

    Raises:
        TypeError: ``labeler`` is not a labeler.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> labeler = rg.labelers.Reversed(rg.ShortestPath(2, directed=True, unreachable="unlabeled"))
        >>> labeler(graph).to_dense()[0]  # query 0 reaches keys 1 and 2 along the edges
        tensor([[[ 0,  1,  2],
                 [-1,  0,  1],
                 [-1, -1,  0]]])
    """

    def __call__(self, graph: Graph) -> Labels:
        flipped = check_graph(graph).with_edges(graph.edge_index.flip(0), graph.edge_type)
        return check_made(self.labeler, self.labeler(flipped))
