"""Attention over a graph: nodes shaded by the attention they receive, arrows wider for more attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from relgraph.labels import Labels
from relgraph.labels.base import NOT_ATTENDING, UNLABELED
from relgraph.plot import _style
from relgraph.plot._codes import codes_of, one_part
from relgraph.plot._colours import label_colours
from relgraph.plot._layout import given_positions, graph_layout
from relgraph.plot._names import NODE, longest, naming
from relgraph.plot._network import NAMES, Arrow, draw_arrows, draw_lines, draw_nodes, frame, read_graph, strongest
from relgraph.plot._weights import named_nodes, node_weights, query_node


def attention_graph(
    weights: Any,
    graph: Any,
    *,
    query: Any = None,
    pos: Any = None,
    node_names: Sequence[Any] | None = None,
    labels: Labels | None = None,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention over a graph.

    Without ``query``, a darker node receives more attention, in the mean over all queries, and the arrows show the
    attention along the graph's own edges. With ``query``, shades and arrows show the attention of that node, which has
    a ring; an arrow between nodes that are not neighbours is bent. Arrows lead from key to query, as edges do; a node's
    attention to itself shows only as its shade. Only the 300 strongest arrows are drawn, and none below 2 % of the
    strongest.

    Without ``pos``, distances in the picture approximate the lengths of shortest paths, by networkx's
    ``kamada_kawai_layout`` without randomness. The layout compares all pairs of nodes, so pass ``pos`` for graphs of
    many hundreds of nodes. More than 1000 nodes require ``pos``.

    Source: networkx's layout after Kamada and Kawai 1989.

    Args:
        weights: a Tensor ``[N, N]``, or ``[H, N, N]``, which is averaged over heads.
        graph: a :class:`~relgraph.Graph`, or a networkx graph whose nodes are numbered in its own order.
        query: the node whose attention is drawn: its number, or a node of a networkx graph that is not an int.
        pos: places of the nodes: a mapping from each node to its place, as networkx's layouts give, or a Tensor
            ``[N, 2]``.
        node_names: a string per node, or an object for ``str``; by default the nodes of a networkx graph, or else
            numbers. If there are more than 80 nodes, no names are drawn. If names would overlap, those of the nodes
            with less attention are left out.
        labels: labels of the same nodes, not a sum, which colour the arrows.
        names: the labeler's ``names``, for the legend; by default the ids.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: no nodes, weights or labels of other nodes, values below 0 or not finite, a query that does not
            exist, not one place or name per node, places that are not finite.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> path = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
        >>> ax = rg.plot.attention_graph(weights, path)
        >>> [float(arrow.get_linewidth()) for arrow in ax.patches]     # 1 → 2 and 0 → 1
        [2.3666666666666663, 3.3]
        >>> plt.close()
    """
    read, nodes = read_graph("graph", graph)
    values = node_weights(weights, read.num_nodes)
    query = query_node(query, nodes, read.num_nodes)
    shown = named_nodes(node_names, nodes, read.num_nodes)
    place = graph_layout(read) if pos is None else given_positions(pos, nodes, read.num_nodes)
    arrows = strongest(_arrows(values, read.edge_index.T.tolist(), query))
    known, ids, colours = None, [], [_style.ARROW] * len(arrows)
    if labels is not None:
        codes = _codes(labels, read.num_nodes)
        ids = [int(codes[arrow.query, arrow.key]) for arrow in arrows]
        count: Any = labels.num_labels
        known = label_colours(naming(names, count), set(ids) - {UNLABELED, NOT_ATTENDING}, only_present=True)
        colours = [known.colours[one] if one >= 0 else _style.PLAIN for one in ids]
    ax = _style.axes_or_new(ax, *_size(place, shown))
    frame(ax, place, "equal")
    draw_lines(ax, place, read.edge_index.numpy())
    draw_arrows(ax, place, arrows, colours)
    if known is not None:
        known.explain(ax, [Patch(facecolor=_style.PLAIN, label="no label")] if any(one < 0 for one in ids) else [])
    shade = values.mean(0) if query is None else values[query]
    draw_nodes(ax, place, shade, shown, query)
    return _style.inside(ax)


def _size(place: np.ndarray, names: Sequence[str]) -> tuple[float, float]:
    """Width and height of a new figure in inches, in the proportions of the layout."""
    side = float(np.clip(1.0 * np.sqrt(len(place)) + 1.0, 3.0, 9.0))
    width, height = np.clip(place.max(0) - place.min(0), 1e-6, None)
    more = max(0.07 * min(longest(names), NODE) - 0.3, 0.0) if len(place) <= NAMES else 0.0
    width, height = float(np.clip(width / height, 0.6, 1.0)), float(np.clip(height / width, 0.5, 1.0))
    return side * width + 1.4 + more, side * height + 0.3


def _arrows(values: np.ndarray, edges: list[list[int]], query: int | None) -> list[Arrow]:
    """Attention along the edges, or that of one query; an arrow is bent if it would cover another, or has no edge."""
    listed = {(key, at) for key, at in edges if key != at}
    if query is None:
        bend = {pair: 0.16 if pair[::-1] in listed else 0.0 for pair in listed}
    else:
        near = listed | {pair[::-1] for pair in listed}
        bend = {(key, query): 0.0 if (key, query) in near else 0.25 for key in range(len(values)) if key != query}
    return [Arrow(key, at, float(values[at, key]), bent) for (key, at), bent in sorted(bend.items())]


def _codes(labels: Any, nodes: int) -> np.ndarray:
    if isinstance(labels, Labels) and len(labels._summands) > 1:
        raise TypeError("labels must not be a sum, which has several per pair: pass one of its .parts")
    one, _ = one_part(labels, None, 0)
    if (one.q_len, one.k_len) != (nodes, nodes) or one.batch_size != 1:
        raise ValueError(f"labels must be of the graph's {nodes} nodes, got {one!r}")
    return codes_of(one, 0)
