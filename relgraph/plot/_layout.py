"""Positions of nodes: by the lengths of shortest paths, or level by level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph

FARTHEST = 1e100  # the distances between places are squared
MOST_LAID_OUT = 1000  # nodes; this many take a minute


def graph_layout(graph: Graph) -> np.ndarray:
    """Positions ``[N, 2]`` whose distances come close to the lengths of shortest paths, either way along edges.

    This is networkx's ``kamada_kawai_layout`` from a fixed start, so that a graph always looks the same. The start is
    spectral, because grids stay folded if they start from a circle, plus a little of the circle, which separates
    symmetric nodes. Nodes without a path between them are placed a little farther apart than the longest path.
    """
    if graph.num_nodes > MOST_LAID_OUT:
        raise ValueError(
            f"pos must be given for a graph of more than {MOST_LAID_OUT} nodes, got None for {graph.num_nodes}"
        )
    undirected = nx.Graph()
    undirected.add_nodes_from(range(graph.num_nodes))
    undirected.add_edges_from(graph.edge_index.T.tolist())
    lengths = {node: dict(far) for node, far in nx.all_pairs_shortest_path_length(undirected)}
    beyond = max(max(far.values()) for far in lengths.values()) + 1.5
    wanted = {node: {other: far.get(other, beyond) for other in undirected} for node, far in lengths.items()}
    circle, spectral = nx.circular_layout(undirected), nx.spectral_layout(undirected)
    start = {node: spectral[node] + 0.1 * circle[node] for node in undirected}
    place = nx.kamada_kawai_layout(undirected, dist=wanted, pos=start)
    places = torch.from_numpy(np.stack([place[node] for node in undirected]))
    places = places - places.mean(0)
    return (places @ torch.linalg.eigh(places.T @ places)[1].flip(1)).numpy()  # the longer side is horizontal


def tree_layout(parents: np.ndarray) -> np.ndarray:
    """Positions ``[N, 2]``: leaves side by side in the order of nodes, parents above the middle of their children."""
    forest = nx.DiGraph((parent, node) for node, parent in enumerate(parents.tolist()))
    order = list(nx.dfs_preorder_nodes(forest, -1))[1:]  # below -1, the parent of all roots; branch after branch
    place, leaves = np.zeros((len(parents), 2)), [node for node in order if not forest[node]]
    place[leaves, 0] = np.arange(len(leaves))
    for node in order:
        if parents[node] >= 0:
            place[node, 1] = place[parents[node], 1] - 1
    for node in reversed(order):
        if children := list(forest[node]):
            place[node, 0] = (place[children[0], 0] + place[children[-1], 0]) / 2
    return place


def given_positions(pos: Any, nodes: Sequence[Any] | None, count: int) -> np.ndarray:
    """Positions ``[N, 2]`` that the caller chose: a Tensor, or a mapping from each node, as networkx makes them."""
    if isinstance(pos, Mapping):
        known = range(count) if nodes is None else nodes
        missing = [node for node in known if node not in pos]
        if missing:
            raise ValueError(f"pos must have a place for every node, got none for {missing[0]!r}")
        places = np.array([_place(f"pos[{shown(node)}]", pos[node]) for node in known])
    elif isinstance(pos, Tensor):
        check.data("pos", check.tensor("pos", pos))
        if pos.is_complex():
            raise ValueError(f"pos must hold real numbers, got {pos.dtype}")
        places = pos.detach().cpu().double().numpy()
    else:
        raise TypeError(f"pos must be a mapping from nodes to places or a Tensor [N, 2], got {type(pos).__name__}")
    if places.shape != (count, 2):
        raise ValueError(f"pos must have shape [{count}, 2], got {[*places.shape]}")
    if not (abs(places) <= FARTHEST).all():
        raise ValueError(f"pos must be finite and at most {FARTHEST:g}, got places that are not")
    return places


def _place(name: str, place: Any) -> list[float]:
    """The two numbers of one node's place."""
    if isinstance(place, (Tensor, np.ndarray)):
        if isinstance(place, Tensor):
            check.data(name, check.tensor(name, place))
        place = place.tolist()
    if isinstance(place, (str, Mapping)) or not isinstance(place, Iterable):
        raise TypeError(f"{name} must be two numbers, got {type(place).__name__}")
    listed = [x.item() if isinstance(x, np.generic) else x for x in islice(place, 3)]
    if len(listed) != 2:
        raise ValueError(f"{name} must be two numbers, got {'more' if len(listed) > 2 else len(listed)}")
    for x in listed:
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise TypeError(f"{name} must be two numbers, got {type(x).__name__}")
        if not abs(x) <= FARTHEST:
            raise ValueError(f"{name} must be finite and at most {FARTHEST:g}, got {shown(place)}")
    return [float(x) for x in listed]
