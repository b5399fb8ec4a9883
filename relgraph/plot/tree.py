"""Attention over a tree: parents above their children, and arrows from the nodes that one node attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from relgraph.plot import _style
from relgraph.plot._layout import tree_layout
from relgraph.plot._names import NODE, longest
from relgraph.plot._network import Arrow, draw_arrows, draw_lines, draw_nodes, frame, read_graph, scale, strongest
from relgraph.plot._weights import named_nodes, node_weights, query_node

RISE = 32.0  # points by which an arrow leaves the straight line


def attention_tree(  # noqa: D417
    weights: Any,
    tree: Any,
    *,
    query: Any = None,
    node_names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention over a tree, level by level, parents above the middle of their children.

    Without ``query``, a darker node receives more attention, in the mean over all queries. With ``query``, shades and
    bent arrows show the attention of that node, which has a ring. Arrows lead from key to query; a node's attention to
    itself shows only as its shade. Arrows below 2 % of the strongest are not drawn. Names of leaves are vertical if
    there is no room.

    Args:
        weights: this and all further arguments as in :func:`~relgraph.plot.attention_graph`.
        tree: a :class:`~relgraph.Graph` with edges from parent to child, or a networkx graph of that kind whose nodes
            are numbered in its own order. Several trees are drawn side by side.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: no nodes, a node with two parents, a cycle, weights of other nodes, values below 0 or not finite,
            a query that does not exist, or not one name per node.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> tree = rg.Graph.from_parents(torch.tensor([-1, 0, 0]))
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
        >>> ax = rg.plot.attention_tree(weights, tree, query=1, node_names=["=", "x", "1"])
        >>> ax.collections[1].get_offsets().tolist()
        [[0.5, 0.0], [0.0, -1.0], [1.0, -1.0]]
        >>> ax.collections[1].get_array().tolist()
        [0.5, 0.25, 0.25]
        >>> plt.close()
    """
    read, nodes = read_graph("tree", tree)
    parents = read.parents(forest=True).numpy()
    values = node_weights(weights, read.num_nodes)
    query = query_node(query, nodes, read.num_nodes)
    shown = named_nodes(node_names, nodes, read.num_nodes)
    place = tree_layout(parents)
    ax = _style.axes_or_new(ax, *_size(place, shown))
    frame(ax, place, "auto")
    draw_lines(ax, place, read.edge_index.numpy())
    if query is not None:
        arrows = _arrows(ax, values, query, place)
        draw_arrows(ax, place, arrows, [_style.ARROW] * len(arrows))
    shade = values.mean(0) if query is None else values[query]
    leaves = ~np.isin(np.arange(len(parents)), parents)
    draw_nodes(ax, place, shade, shown, query, leaves)
    return _style.inside(ax)


def _arrows(ax: Axes, values: np.ndarray, query: int, place: np.ndarray) -> list[Arrow]:
    """Arrows from each other node to the query, bent upward; the longer an arrow, the less it bends."""
    arrows = []
    for key in range(len(place)):
        if key != query:
            across, up = (place[query] - place[key]) * scale(ax, place)
            bend = min(0.3, 2 * RISE / np.hypot(across, up))
            arrows.append(Arrow(key, query, float(values[query, key]), float(-bend if across > 0 else bend)))
    return strongest(arrows)


def _size(place: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
    leaves, levels = place.max(0) - place.min(0) + 1
    letters = min(longest(names), NODE)
    width = leaves * (0.35 + 0.04 * min(letters, 12)) + 2.2
    upright = 0.07 * letters if width > 11.0 else 0.0
    return float(np.clip(width, 4.0, 11.0)), float(np.clip(0.75 * levels + 0.8, 2.4, 8.0)) + upright
