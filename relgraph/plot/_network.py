"""Nodes and arrows, the parts of pictures of graphs and trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyArrowPatch

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_graph
from relgraph.graphs import Graph
from relgraph.plot import _style
from relgraph.plot._names import AS_IS, NODE, columns, longest, written

ARROWS = 300
NAMES = 80
LARGEST = 11.0  # radius of a node, in points
VISIBLE = 0.02  # of the largest weight


@dataclass(frozen=True)
class Arrow:
    """Attention along one pair, from the key to the query."""

    key: int
    query: int
    weight: float
    bend: float


def read_graph(name: str, graph: Any) -> tuple[Graph, Sequence[Any] | None]:
    """A graph for labelers and the nodes behind its ids; a networkx graph becomes one."""
    nodes = None
    if any(kind.__module__.startswith("networkx.") for kind in type(graph).__mro__):
        from relgraph.interop.networkx import from_networkx

        graph, nodes = from_networkx(graph)[:2]
    if not isinstance(graph, Graph):
        raise TypeError(f"{name} must be a Graph or a networkx graph, got {in_place_of_graph(graph)}")
    check.not_meta(name, graph)
    if graph.num_nodes == 0:
        raise ValueError(f"{name} must have at least one node, got none")
    return graph.to("cpu"), nodes


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


def draw_nodes(
    ax: Axes, pos: np.ndarray, shade: np.ndarray, names: Sequence[str], query: int | None, leaves: Any = None
) -> None:
    """Nodes as dots, darker the more attention; the query in a ring and named in the title.

    Short names are inside the nodes, others below; those of ``leaves``, bool ``[N]``, vertical if there is no room.
    """
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
        _write_names(ax, pos, norm(shade), texts, radius, query, leaves)
    if query is not None:
        _style.title(ax, f"attention of {texts[query]}", pad=radius)
    words = "attention received" if query is None else "attention"
    _style.colour_bar(ax, dots, words, top=0.8 if ax.get_legend() is None else 0.6)


def node_radius(ax: Axes, pos: np.ndarray) -> float:
    """The radius of a dot in points: for most dots less than half the distance to the nearest other dot."""
    if len(pos) == 1:
        return LARGEST
    apart = np.linalg.norm((pos[:, None] - pos) * scale(ax, pos), axis=-1)
    np.fill_diagonal(apart, np.inf)
    return float(np.clip(0.42 * np.quantile(apart.min(1), 0.25), 1.2, LARGEST))


def scale(ax: Axes, pos: np.ndarray) -> np.ndarray:
    """How many points of the picture one unit of ``pos`` is, across and up."""
    equal = ax.get_aspect() != "auto"
    each = np.array(_style.room(ax)) / (1.2 * _span(pos, equal))
    return np.full(2, each.min()) if equal else each


def _span(pos: np.ndarray, equal: bool) -> np.ndarray:
    """Width and height of all nodes, neither of them nothing."""
    span = pos.max(0) - pos.min(0)
    return np.maximum(span, max(0.3 * float(span.max()), 0.5) if equal else 0.5)


def frame(ax: Axes, pos: np.ndarray, aspect: Any) -> None:
    """No frame and no ticks, and room around the outer nodes."""
    ax.set_axis_off()
    middle, span = (pos.min(0) + pos.max(0)) / 2, _span(pos, aspect == "equal")
    ax.update_datalim([middle - 0.6 * span, middle + 0.6 * span])
    ax.margins(0)
    ax.autoscale_view()
    ax.set_aspect(aspect, adjustable="datalim")


def _write_names(
    ax: Axes, pos: np.ndarray, share: np.ndarray, texts: Sequence[str], radius: float, query: int | None, leaves: Any
) -> None:
    """Write names inside the dots, or below them if they do not overlap: the query's first, then by attention."""
    if longest(texts) <= max(int(radius / 3.2), 1):
        for (x, y), part, text in zip(pos.tolist(), share.tolist(), texts, strict=True):
            look = {"fontsize": min(8.5, 1.3 * radius), "color": "white" if part > 0.6 else _style.INK}
            ax.annotate(text, (x, y), ha="center", va="center", zorder=5, **look, **AS_IS)
        return
    first = sorted(range(len(texts)), key=lambda node: (node != query, -share[node]))
    places = pos * scale(ax, pos)
    vertical = np.zeros(len(texts), bool)
    named = _not_overlapping(places, texts, vertical, first)
    if leaves is not None and len(named) < len(texts):
        named_if_vertical = _not_overlapping(places, texts, leaves, first)
        if len(named_if_vertical) > len(named):
            vertical, named = leaves, named_if_vertical
    halo = [patheffects.withStroke(linewidth=2.2, foreground="white")]
    for node in sorted(named):
        ax.annotate(
            texts[node], tuple(pos[node]), xytext=(0, -radius - 2), textcoords="offset points", ha="center", va="top",
            rotation=90 if vertical[node] else 0, fontsize=8, color=_style.INK, path_effects=halo, zorder=5, **AS_IS,
        )  # fmt: skip


def _not_overlapping(places: np.ndarray, texts: Sequence[str], vertical: np.ndarray, first: Sequence[int]) -> list[int]:
    """The nodes whose names, drawn below ``places`` (in points), overlap no name of an earlier node in ``first``."""
    boxes = np.empty((0, 4))
    fitting = []
    for node in first:
        wide, high = 4.9 * columns(texts[node]), 8.5
        wide, high = (high, wide) if vertical[node] else (wide, high)
        (x, y), half = places[node], wide / 2
        box = np.array([x - half, x + half, y - high, y])
        over = (boxes[:, [0, 2]] < box[[1, 3]]) & (box[[0, 2]] < boxes[:, [1, 3]])
        if not over.all(1).any():
            boxes = np.concatenate([boxes, box[None]])
            fitting.append(node)
    return fitting
