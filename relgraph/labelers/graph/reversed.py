"""A labeler of graphs, applied to the graph with every edge the other way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from relgraph.graphs import Graph, check_graph
from relgraph.labelers.base import Labeler, check_made, check_operand
from relgraph.labels import Labels


@final
@dataclass(frozen=True, repr=False)
class Reversed(Labeler):
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

    labeler: Labeler

    def __post_init__(self) -> None:
        check_operand("Reversed", self.labeler)

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        return self.labeler.num_labels

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        return self.labeler.names

    def _why_never_unlabeled(self) -> str | None:
        return self.labeler._why_never_unlabeled()

    def __call__(self, graph: Graph) -> Labels:
        """The labels of a graph, or of a packed batch, with its edges reversed.

        Args:
            graph: a graph that the labeler accepts.

        Returns:
            Labels of the kind that the labeler makes, of the same nodes.

        Raises:
            TypeError, ValueError: not a Graph, or any error of the labeler.
        """
        flipped = check_graph(graph).with_edges(graph.edge_index.flip(0), graph.edge_type)
        return check_made(self.labeler, self.labeler(flipped))

    def __repr__(self) -> str:
        return f"Reversed({self.labeler!r})"
