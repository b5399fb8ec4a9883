"""Nodes and edges of one or several networkx graphs, listed with their attributes and numbered row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.arguments.brief import cut, shown


class Item(NamedTuple):
    """An edge or a node with its attributes: its end nodes (or the node), and the index of its graph (None for one)."""

    ends: tuple[Any, ...]
    of: dict[str, Any]
    graph: int | None

    def __str__(self) -> str:
        ends = " -> ".join(map(repr, self.ends))
        return ends if self.graph is None else f"{ends} of graphs[{self.graph}]"


class Items(NamedTuple):
    """All nodes; all edges, undirected ones in both directions; and the rows of each edge's end nodes, ``[2, E]``."""

    nodes: list[Item]
    edges: list[Item]
    edge_index: Tensor


def listed(graphs: Sequence[Any], *, several: bool) -> Items:
    """The nodes of all graphs in order, then their edges; without the number of the graph unless ``several``."""
    nodes: list[Item] = []
    edges: list[Item] = []
    ends: list[tuple[int, int]] = []
    for at, graph in enumerate(graphs):
        number = at if several else None
        row = {node: len(nodes) + index for index, node in enumerate(graph)}
        nodes.extend(Item((node,), of, number) for node, of in graph.nodes(data=True))
        for u, v, of in _directed(graph):
            edges.append(Item((u, v), of, number))
            ends.append((row[u], row[v]))
    edge_index = torch.tensor(ends, dtype=torch.int64).view(-1, 2).T.contiguous()
    return Items(nodes, edges, edge_index)


def attribute(argument: str, kind: str, item: Item, name: str) -> Any:
    """One attribute of an edge or a node, which must have it."""
    if name not in item.of:
        raise ValueError(
            f"{argument}: {kind} {item} must have the attribute {shown(name)}, "
            f"got {cut(str(sorted(map(str, item.of))))}"
        )
    return item.of[name]


def _directed(graph: Any) -> Iterable[tuple[Any, Any, dict[str, Any]]]:
    """Every edge with its attributes, an undirected one both ways."""
    for u, v, of in graph.edges(data=True):
        yield u, v, of
        if u != v and not graph.is_directed():
            yield v, u, of
