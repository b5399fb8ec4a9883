"""Good calls of :class:`relgraph.Graph`."""

from __future__ import annotations

import torch

import relgraph as rg
from tests.judge import Good

PTR = torch.tensor([0, 2, 3])


def graph() -> rg.Graph:
    """A small graph that is a tree too: 0 → 1 and 0 → 2, with all that a graph may hold but borders."""
    return rg.Graph(
        torch.tensor([[0, 0], [1, 2]]), 3, edge_type=torch.tensor([0, 1]), node_type=torch.tensor([0, 1, 0])
    )


GOOD_CALLS = {
    "Graph": lambda: Good(
        rg.Graph,
        {
            "edge_index": torch.tensor([[0, 2], [1, 2]]),
            "num_nodes": 3,
            "edge_type": torch.tensor([0, 1]),
            "node_type": torch.tensor([0, -1, 1]),
            "ptr": PTR,
        },
        also={"edge_index": ("edge_type",), "num_nodes": ("node_type", "ptr"), "ptr": ("edge_index",)},
    ),
    "Graph (edges alone)": lambda: Good(
        rg.Graph, {"edge_index": torch.tensor([[0, 2], [1, 2]]), "num_nodes": 3}, also={"num_nodes": ("edge_index",)}
    ),
    "Graph.from_parents": lambda: Good(
        rg.Graph.from_parents,
        {
            "parents": torch.tensor([1, -1, -1]),
            "edge_type": torch.tensor([0, 1, 0]),
            "node_type": torch.tensor([0, -1, 1]),
            "ptr": PTR,
        },
        also={"parents": ("edge_type", "graph", "ptr"), "ptr": ("edge_index",)},
    ),
    "Graph.batch": lambda: Good(rg.Graph.batch, {"graphs": [graph(), graph()]}, also={"graphs": ("edge_type",)}),
    "Graph.with_edges": lambda: Good(
        graph().with_edges,
        {"edge_index": torch.tensor([[0, 1], [2, 2]]), "edge_type": torch.tensor([1, 0])},
        also={"edge_index": ("edge_type",)},
    ),
    "Graph.of_type": lambda: Good(graph().of_type, {"edge_type": 1}),
    "Graph.parents": lambda: Good(graph().parents, {"forest": False}),
    "Graph.to": lambda: Good(graph().to, {"device": torch.device("cpu"), "non_blocking": False}),
}
