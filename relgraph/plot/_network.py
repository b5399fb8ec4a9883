"""Places of nodes, dots and arrows: the parts of pictures of graphs and trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_graph
from relgraph.graphs import Graph
from relgraph.plot import _style
from relgraph.plot._names import AS_IS, NODE, columns, written

ARROWS = 300
NAMES = 80
LARGEST = 11.0  # radius of a node, in points
VISIBLE = 0.02  # of the largest weight
FARTHEST = 1e100  # the distances between places are squared
MOST_LAID_OUT = 1000  # nodes; this many take a minute


class Arrow(NamedTuple):
    """Attention along one pair, from the key to the query."""

    key: int
    query: int
    weight: float
    bend: float


def read_graph(graph: Any) -> tuple[Graph, Sequence[Any] | None]:
    """A graph for labelers and the nodes behind its ids; a networkx graph becomes one."""
    nodes = None
    if any(kind.__module__.startswith("networkx.") for kind in type(graph).__mro__):
        from relgraph.interop.networkx import from_networkx

        graph, nodes = from_networkx(graph)[:2]
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a Graph or a networkx graph, got {in_place_of_graph(graph)}")
    check.not_meta("graph", graph)
    if graph.num_nodes == 0:
        raise ValueError("graph must have at least one node, got none")
    return graph.to("cpu"), nodes


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
    places = torch.from_numpy(np.stack([place[node] for node in undirected]))  # [N, 2]
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


def given_positions(pos: Any, count: int) -> np.ndarray:
    """Positions ``[N, 2]`` that the caller chose."""
    check.data("pos", check.tensor("pos", pos))
    if pos.is_complex():
        raise ValueError(f"pos must hold real numbers, got {pos.dtype}")
    if pos.shape != (count, 2):
        raise ValueError(f"pos must have shape [{count}, 2], got {list(pos.shape)}")
    places = pos.detach().cpu().double().numpy()
    if not (abs(places) <= FARTHEST).all():
        raise ValueError(f"pos must be finite and at most {FARTHEST:g}, got places that are not")
    return places


def strongest(arrows: Sequence[Arrow]) -> list[Arrow]:
    """The arrows that can be seen, at most 300; the strongest is drawn last."""
    top = max((arrow.weight for arrow in arrows), default=0.0)
    seen = sorted((a for a in arrows if a.weight > VISIBLE * top), key=lambda arrow: arrow.weight)
    return seen[-ARROWS:]


def draw_lines(ax: Axes, pos: np.ndarray, ends: np.ndarray) -> None:
    """The edges of the graph as thin grey lines; ``ends`` is ``[2, E]``."""
    once = np.unique(np.sort(ends, 0), axis=1)
    once = once[:, once[0] != once[1]]
    ax.add_collection(LineCollection(list(pos[once.T]), colors=_style.FAINT, linewidths=0.9, zorder=1))


def draw_arrows(ax: Axes, pos: np.ndarray, arrows: Sequence[Arrow], colours: Sequence[Any]) -> None:
    """Arrows as wide as their weight, relative to the largest."""
    top, radius = max((arrow.weight for arrow in arrows), default=1.0), node_radius(ax, pos)
    for order, (arrow, colour) in enumerate(zip(arrows, colours, strict=True)):
        share = arrow.weight / top
        patch = FancyArrowPatch(
            tuple(pos[arrow.key]), tuple(pos[arrow.query]), connectionstyle=f"arc3,rad={arrow.bend}",
            arrowstyle="-|>", mutation_scale=5 + 5 * share, linewidth=0.5 + 2.8 * share, color=colour,
            alpha=0.35 + 0.6 * share, shrinkA=radius, shrinkB=radius + 0.5, zorder=2 + 0.5 * order / len(arrows),
        )  # fmt: skip
        patch.set_in_layout(False)  # or a layout would shrink everything else to make room for wide bends
        ax.add_patch(patch)


def draw_nodes(ax: Axes, pos: np.ndarray, shade: np.ndarray, names: Sequence[str], query: int | None) -> None:
    """Nodes as dots, darker the more attention; the query in a ring and named in the title."""
    radius = node_radius(ax, pos)
    norm, texts = _style.from_zero(shade), [written(name, NODE) for name in names]
    edge, width = np.full(len(pos), _style.INK, dtype=object), np.full(len(pos), 0.7 if radius > 3 else 0.3)
    if query is not None:
        edge[query], width[query] = _style.HERE, 2.4
    dots = ax.scatter(
        pos[:, 0], pos[:, 1], s=(2 * radius) ** 2, c=shade, cmap=_style.SHADES, norm=norm, zorder=3, clip_on=False,
        edgecolors=list(edge), linewidths=list(width),
    )  # fmt: skip
    if len(pos) <= NAMES:
        _write_names(ax, pos, norm(shade), texts, radius, query)
    if query is not None:
        _style.title(ax, f"attention of {texts[query]}", pad=radius)
    words = "attention received" if query is None else "attention"
    _style.colour_bar(ax, dots, words, top=0.8 if ax.get_legend() is None else 0.6)


def frame(ax: Axes, pos: np.ndarray, aspect: Any) -> None:
    """No frame and no ticks, and room around the outer nodes."""
    ax.set_axis_off()
    middle, span = (pos.min(0) + pos.max(0)) / 2, np.maximum(pos.max(0) - pos.min(0), 0.5)
    ax.update_datalim([middle - 0.6 * span, middle + 0.6 * span])
    ax.margins(0)
    ax.autoscale_view()
    ax.set_aspect(aspect, adjustable="datalim")
    ax.apply_aspect()


def in_points(ax: Axes, pos: np.ndarray) -> np.ndarray:
    """Places in the picture, in points."""
    return ax.transData.transform(pos) * 72 / ax.figure.dpi


def node_radius(ax: Axes, pos: np.ndarray) -> float:
    """The radius of a dot in points: for most dots less than half the distance to the nearest other dot."""
    if len(pos) == 1:
        return LARGEST
    places = in_points(ax, pos)
    apart = np.linalg.norm(places[:, None] - places, axis=-1)  # [N, N]
    np.fill_diagonal(apart, np.inf)
    return float(np.clip(0.42 * np.quantile(apart.min(1), 0.25), 1.2, LARGEST))


def _write_names(
    ax: Axes, pos: np.ndarray, share: np.ndarray, texts: Sequence[str], radius: float, query: int | None
) -> None:
    """Write names below the dots if they do not overlap: the query's first, then by attention."""
    first = sorted(range(len(texts)), key=lambda node: (node != query, -share[node]))
    named = _not_overlapping(in_points(ax, pos), texts, first)
    halo = [patheffects.withStroke(linewidth=2.2, foreground="white")]
    for node in sorted(named):
        ax.annotate(
            texts[node], tuple(pos[node]), xytext=(0, -radius - 2), textcoords="offset points", ha="center", va="top",
            fontsize=8, color=_style.INK, path_effects=halo, zorder=5, **AS_IS,
        )  # fmt: skip


def _not_overlapping(places: np.ndarray, texts: Sequence[str], first: Sequence[int]) -> list[int]:
    """The nodes whose names, drawn below ``places`` (in points), overlap no name of an earlier node in ``first``."""
    boxes = np.empty((0, 4))
    fitting = []
    for node in first:
        (x, y), half = places[node], 2.45 * columns(texts[node])
        box = np.array([x - half, x + half, y - 8.5, y])
        over = (boxes[:, [0, 2]] < box[[1, 3]]) & (box[[0, 2]] < boxes[:, [1, 3]])
        if not over.all(1).any():
            boxes = np.concatenate([boxes, box[None]])
            fitting.append(node)
    return fitting
