"""Where attention goes, by label: one bar or point a label, or a map of heads and labels, layer under layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from relgraph.plot import _style
from relgraph.plot._by_label import draw_by_label, size_by_label
from relgraph.plot._names import Naming, naming
from relgraph.plot._weights import non_negative, numbers

SHAPES = "[R], [H, R], [L, H, R] or [B, H, N, R]"


def label_mass(mass: Any, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the share of attention that each label receives, by head and layer.

    ``[R]`` is drawn as :func:`~relgraph.plot.table_norms` draws norms; ``[H, R]`` as a map with a row a head, and
    ``[L, H, R]`` with the heads of each layer under those of the layer before it. Labels stand in the order of their
    distances where their names are distances, with the rest after them. A row sums to less than 1 where pairs attend
    without a label.

    Source: relgraph's own.

    Args:
        mass: a Tensor ``[R]``, ``[H, R]`` or ``[L, H, R]`` (the masses of several layers, stacked), or
            ``[B, H, N, R]`` as a layer gives it, which is averaged over queries. Packed masses ``[H, T, R]`` are
            averaged before: ``mass.mean(1)``. Of a sum, one part.
        names: one a label; ids when left out.
        ax: where to draw; a new figure when left out.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: another shape, numbers below 0 or not finite, or not one name a label.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> layer = rg.RelationAttention(8, 2, num_labels=3)
        >>> z, mass = layer(torch.randn(1, 5, 8), labels=rg.ClippedDistance(1)(5), need_label_mass=True)
        >>> ax = rg.plot.label_mass(mass, rg.ClippedDistance(1).names)
        >>> [text.get_text() for text in ax.get_yticklabels()], ax.images[0].get_array().shape
        (['head 0', 'head 1'], (2, 3))
        >>> plt.close()
    """
    if isinstance(mass, (tuple, list)):
        raise TypeError(f"mass must be a Tensor, that of one part of the sum, got a {type(mass).__name__}")
    values = non_negative("mass", numbers("mass", mass, (1, 2, 3, 4), SHAPES))
    values = values.mean((0, 2)) if values.ndim == 4 else values
    known = naming(names, values.shape[-1])
    if values.ndim == 1:
        ax = _style.axes_or_new(ax, *size_by_label(known))
        draw_by_label(ax, values, known, "attention")
        return ax
    layers = values[None] if values.ndim == 2 else values
    ax = _style.axes_or_new(ax, *_size(layers, known))
    _draw_map(
        ax, layers[..., list(known.order)], known, [_row(values.ndim, *at) for at in np.ndindex(layers.shape[:2])]
    )
    return ax


def _size(layers: np.ndarray, known: Naming) -> tuple[float, float]:
    rows, columns = layers.shape[0] * layers.shape[1], layers.shape[2]
    longest = max(map(len, known.names))
    below = 0.0 if known.integers is not None and not known.rest else 0.06 * longest
    return float(np.clip(0.3 * columns, 2.6, 8.0)) + 2.2, float(np.clip(0.26 * rows, 1.1, 10.0)) + 0.9 + below


def _row(dim: int, layer: int, head: int) -> str:
    """What a row of the map is: the first head of a layer also names the layer."""
    return f"layer {layer}   head {head}" if dim == 3 and head == 0 else f"head {head}"


def _draw_map(ax: Axes, layers: np.ndarray, known: Naming, rows: list[str]) -> None:
    count, heads, labels = layers.shape
    table = layers.reshape(count * heads, labels)
    image = ax.imshow(
        table, cmap=_style.MANY, norm=Normalize(0, max(table.max(), 1e-12)), aspect="auto", interpolation="nearest"
    )
    width, height = _style.room(ax)
    for layer in range(1, count):
        ax.axhline(layer * heads - 0.5, color="white", linewidth=3)
    if known.distances and known.rest:
        ax.axvline(len(known.distances) - 0.5, color="white", linewidth=2)
    every = 1 if height / len(rows) > 1.1 * _style.SMALL else heads
    _style.name_ticks(ax, "y", range(0, len(rows), every), rows[::every], height)
    _label_ticks(ax, known, width)
    if min(width / labels / 2.2, height / len(rows)) > 11:
        _write(ax, table, image)
    ax.set_xlabel("distance" if known.distances and not known.rest else "label")
    _style.colour_bar(ax, image, "attention")


def _label_ticks(ax: Axes, known: Naming, width: float) -> None:
    """A name under every column, or under as many as fit, distance 0 among them."""
    names, far = known.ordered_names, len(known.distances)
    if not far:
        _style.name_ticks(ax, "x", range(len(names)), names, width)
        return
    each = 14 if known.integers is None else 6 + 6 * max(len(names[at]) for at in range(far))
    every = max(int(np.ceil(each * far / width)), 1)
    shown = [at for at in range(far) if (at - known.centre) % every == 0] + list(range(far, len(names)))
    longest = max(len(names[at]) for at in shown)
    turn = 90 if longest * 5.5 > width / len(names) * every else 0
    ax.set_xticks(shown, [names[at] for at in shown], rotation=turn, fontsize=8)


def _write(ax: Axes, table: np.ndarray, image: Any) -> None:
    for i, j in np.ndindex(table.shape):
        colour = _style.text_colour(image.cmap(image.norm(table[i, j])))
        ax.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
