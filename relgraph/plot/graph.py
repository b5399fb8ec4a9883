"""Attention over a graph or a tree: nodes shaded by the attention they receive, arrows wider for more attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from relgraph.arguments import check
from relgraph.labels import Labels
from relgraph.labels.base import NOT_ATTENDING, UNLABELED
from relgraph.plot import _style
from relgraph.plot._colours import label_colours
from relgraph.plot._names import NODE, longest, naming
from relgraph.plot._network import (
    NAMES,
    Arrow,
    draw_arrows,
    draw_lines,
    draw_nodes,
    frame,
    given_positions,
    graph_layout,
    read_graph,
    strongest,
    tree_layout,
)  # fmt: skip
from relgraph.plot._weights import named_nodes, pair_weights, query_row
from relgraph.plot.matrix import codes_of, read_labels


def attention_graph(
    weights: Any,
    graph: Any,
    *,
    query: int | None = None,
    pos: Any = None,
    node_names: Sequence[Any] | None = None,
    labels: Labels | None = None,
    names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention over a graph or a tree.

    Without ``query``, a darker node receives more attention, in the mean over all queries, and the arrows show the
    attention along the graph's own edges. With ``query``, shades and arrows show the attention of that node, which has
    a ring; an arrow between nodes that are not neighbours is bent. Arrows lead from key to query, as edges do. Only the
    300 strongest are drawn, and none below 2 % of the strongest.

    Without ``pos``, distances in the picture approximate the lengths of shortest paths, by networkx's
    ``kamada_kawai_layout``, for at most 1000 nodes. With ``pos="tree"``, parents are above the middle of their
    children, and several trees are side by side.

    Source: networkx's layout after Kamada and Kawai 1989.

    Args:
        weights: a Tensor ``[N, N]``, or ``[H, N, N]``, which is averaged over heads.
        graph: a :class:`~relgraph.Graph`, or a networkx graph whose nodes are numbered in its own order.
        query: the number of the node whose attention is drawn.
        pos: places of the nodes, a Tensor ``[N, 2]``; or ``"tree"``, for edges from parent to child.
        node_names: a string per node, or an object for ``str``; by default the nodes of a networkx graph, or else
            numbers. If there are more than 80 nodes, no names are drawn. If names would overlap, those of the nodes
            with less attention are left out.
        labels: labels of the same nodes, not a sum, which colour the arrows; such as the types of edges.
        names: the labeler's ``names``, for the legend; by default the ids.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> path = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
        >>> ax = rg.plot.attention_graph(weights, path)
        >>> [float(arrow.get_linewidth()) for arrow in ax.patches]     # 1 → 2 and 0 → 1
        [2.3666666666666663, 3.3]
        >>> plt.close()
    """
    read, nodes = read_graph(graph)
    values, count = pair_weights(weights), read.num_nodes  # [N, N]
    if values.shape != (count, count):
        raise ValueError(f"weights must be for the {count} nodes of the graph, got shape {list(values.shape)}")
    query = query_row(query, count)
    shown = named_nodes(node_names, nodes, count)
    if is_tree := isinstance(pos, str):
        check.choice("pos", pos, ("tree",))
        place = tree_layout(read.parents(forest=True).numpy())
    else:
        place = graph_layout(read) if pos is None else given_positions(pos, count)  # [N, 2]
    arrows = strongest(_arrows(values, read.edge_index.T.tolist(), query))
    known, ids, colours = None, [], [_style.ARROW] * len(arrows)
    if labels is not None:
        one = read_labels(labels)
        if (one.q_len, one.k_len) != values.shape or one.batch_size != 1:
            raise ValueError(f"labels must be of the graph's {count} nodes, got {one!r}")
        codes, num_labels = codes_of(one, 0), one.num_labels
        assert isinstance(num_labels, int)
        ids = [int(codes[arrow.query, arrow.key]) for arrow in arrows]
        known = label_colours(naming(names, num_labels), set(ids) - {UNLABELED, NOT_ATTENDING}, ax)
        colours = [known.colours[one] if one >= 0 else _style.PLAIN for one in ids]
    ax = _style.axes_or_new(ax, *_size(place, shown, is_tree))
    frame(ax, place, "auto" if is_tree else "equal")
    draw_lines(ax, place, read.edge_index.numpy())
    draw_arrows(ax, place, arrows, colours)
    if known is not None:
        known.explain(ax, [Patch(facecolor=_style.PLAIN, label="no label")] if any(one < 0 for one in ids) else [])
    draw_nodes(ax, place, values.mean(0) if query is None else values[query], shown, query)
    return ax


def _size(place: np.ndarray, names: Sequence[str], is_tree: bool) -> tuple[float, float]:
    """Inches of a new figure: room for all leaves of a tree, or the proportions of the layout."""
    letters, (across, up) = min(longest(names), NODE), np.clip(place.max(0) - place.min(0), 1e-6, None).tolist()
    if is_tree:
        width = (across + 1) * (0.35 + 0.04 * letters) + 2.2
        return float(np.clip(width, 4.0, 11.0)), float(np.clip(0.75 * up + 1.55, 2.4, 8.0))
    side = float(np.clip(np.sqrt(len(place)) + 1.0, 3.0, 9.0))
    more = max(0.07 * letters - 0.3, 0.0) if len(place) <= NAMES else 0.0
    return side * min(max(across / up, 0.6), 1.0) + 1.4 + more, side * min(max(up / across, 0.5), 1.0) + 0.3


def _arrows(values: np.ndarray, edges: list[list[int]], query: int | None) -> list[Arrow]:
    """Attention along the edges, or that of one query; an arrow is bent if it would cover another, or has no edge."""
    listed = {(key, at) for key, at in edges if key != at}
    if query is None:
        bend = {pair: 0.16 if pair[::-1] in listed else 0.0 for pair in listed}
    else:
        near = listed | {pair[::-1] for pair in listed}
        bend = {(key, query): 0.0 if (key, query) in near else 0.25 for key in range(len(values)) if key != query}
    return [Arrow(key, at, float(values[at, key]), bent) for (key, at), bent in sorted(bend.items())]
