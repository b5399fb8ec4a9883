"""Attention by label: one bar or point per label, or a map of heads and labels, layer below layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from relgraph.plot import _style
from relgraph.plot._by_label import draw_by_label, size_by_label
from relgraph.plot._mass import Masses, read_masses
from relgraph.plot._names import AS_IS, Naming, longest, names_of_part, naming, written


def label_mass(
    mass: Any,
    names: Sequence[Any] | None = None,
    *,
    axes: str | None = None,
    part: int | None = None,
    layer: str | int | None = None,
    head: int | None = None,
    padding: Tensor | Sequence[Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of attention that each label receives, by head and layer, as the mean over all queries.

    A record is drawn with one row per head, grouped by layer under the layer's name. For a tensor, ``axes`` names its
    axes: L layers, B batch, H heads, N queries (packed or not) and R labels. Values are means over B and N; rows are
    layers and heads. A mass ``[R]`` is drawn as :func:`~relgraph.plot.table_norms` draws norms.

    Labels whose names are distances come first, ordered by distance; the rest follow. A row sums to 1 minus the
    attention on pairs without a label, or to less if queries see nothing.

    Args:
        mass: the dict of :func:`~relgraph.record_attention`, from layers' names to their calls, which all count; layers
            without masses are left out. Or a Tensor with these ``axes``; for a sum of labels, a tuple of one per part.
        names: one name per label, by default the ids. For a sum one sequence per part.
        axes: one letter of ``"LBHNR"`` for each axis of a Tensor. Not needed for ``[R]`` and ``[B, H, N, R]``. Required
            for two axes, ``"HR"`` or ``"NR"``, and for three: ``"LHR"`` for the stacked masses of layers, ``"HNR"`` for
            a layer's mass of a packed batch or an input without a batch, ``"NHR"`` for the mass that
            :func:`~relgraph.relation_attention_with_aux` gives for a packed batch.
        part: which part of a sum to draw; required for a sum.
        layer: draw only this layer: its name in the record, or its number. With ``head``, it is drawn like ``[R]``.
        head: draw only this head, of each layer.
        padding: ``[B, N]``, True for queries that do not count, as in the layers' ``key_padding_mask``. If layers were
            called more than once, a list of one per call.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: another shape, two or three axes without ``axes`` or axes that do not fit, a part, layer or head
            that does not exist, padding of other queries or of all, layers with different numbers of labels, values
            below 0 or not finite, or not one name per label.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> labeler = rg.ClippedDistance(1)
        >>> layer = rg.RelationAttention(8, 2, num_labels=3)
        >>> z, mass = layer(torch.randn(5, 8), labels=labeler(5), need_label_mass=True)     # [H, N, R]
        >>> ax = rg.plot.label_mass(mass, labeler.names, axes="HNR")
        >>> [text.get_text() for text in ax.get_yticklabels()], ax.images[0].get_array().shape
        (['head 0', 'head 1'], (2, 3))
        >>> model = rg.RelationEncoderLayer(8, 2, 16, labeler=labeler)
        >>> with rg.record_attention(model) as record:
        ...     z = model(torch.randn(1, 5, 8))
        >>> ax = rg.plot.label_mass(record, labeler.names)
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['self_attn   head 0', 'head 1']
        >>> ax = rg.plot.label_mass(record, labeler.names, layer="self_attn", head=1)
        >>> mass = record["self_attn"][0].label_mass[0, 1].mean(0)                          # [R]
        >>> bool(torch.tensor(ax.lines[1].get_ydata()).allclose(mass.double()))
        True
        >>> plt.close("all")
    """
    layers = read_masses("mass", mass, axes, part, padding=padding, layer=layer, head=head)
    (name, first), *more = layers.items()
    known = naming(names if part is None else names_of_part(names, part), first.shape[-1])
    if first.ndim == 1 and not more:
        ax = _style.axes_or_new(ax, *size_by_label(known))
        draw_by_label(ax, first, known, "attention")
        if title := _row_name(name, head):
            _style.title(ax, title)
        return _style.inside(ax)
    rows = _rows(layers, head)
    ax = _style.axes_or_new(ax, *_size(rows, known))
    _draw_map(ax, rows, known)
    return _style.inside(ax)


def _size(rows: _Rows, known: Naming) -> tuple[float, float]:
    count, labels = rows.values.shape
    below = 0.0 if known.integers is not None and not known.rest else 0.07 * longest(known.texts)
    width = float(np.clip(0.3 * labels, 2.6, 8.0)) + 1.9 + _style.margin(rows.names)
    return width, float(np.clip(0.26 * count, 1.1, 10.0)) + 0.9 + below


def _draw_map(ax: Axes, rows: _Rows, known: Naming) -> None:
    table = rows.values[:, list(known.order)]
    count, labels = table.shape
    image = ax.imshow(table, cmap=_style.MANY, norm=_style.from_zero(table), aspect="auto", interpolation="nearest")
    width, height = _style.room(ax)
    for start in rows.starts[1:]:
        ax.axhline(start - 0.5, color="white", linewidth=3)
    if known.distances and known.rest:
        ax.axvline(len(known.distances) - 0.5, color="white", linewidth=2)
    shown = range(count) if height / count > 1.1 * _style.SMALL or len(rows.starts) == 1 else rows.starts
    _style.name_ticks(ax, "y", shown, [rows.names[at] for at in shown], height)
    _label_ticks(ax, known, width)
    if min(width / labels / 2.2, height / count) > 11:
        _write(ax, table, image)
    ax.set_xlabel("distance" if known.distances and not known.rest else "label")
    _style.colour_bar(ax, image, "attention")


def _label_ticks(ax: Axes, known: Naming, width: float) -> None:
    """A name under every column, or under as many as fit, distance 0 among them."""
    texts, far = known.ordered_texts, len(known.distances)
    if not far:
        _style.name_ticks(ax, "x", range(len(texts)), texts, width)
        return
    each = 14 if known.integers is None else 6 + 6 * longest(texts[:far])
    every = max(int(np.ceil(each * far / width)), 1)
    shown = known.every(every)
    widest = longest([texts[at] for at in shown])
    turn = 90 if widest * 5.5 > width / len(texts) * every else 0
    ax.set_xticks(shown, [texts[at] for at in shown], rotation=turn, fontsize=8, **AS_IS)


def _write(ax: Axes, table: np.ndarray, image: Any) -> None:
    digits = 2 if table.max(initial=0.0) >= 0.1 else 3  # small shares differ in the third
    for i, j in np.ndindex(table.shape):
        colour = _style.text_colour(image.cmap(image.norm(table[i, j])))
        ax.text(j, i, f"{table[i, j]:.{digits}f}", ha="center", va="center", fontsize=7.5, color=colour)


@dataclass(frozen=True)
class _Rows:
    """The masses that a map shows."""

    values: np.ndarray  # [rows, R]
    names: tuple[str, ...]  # one per row
    starts: tuple[int, ...]  # the first row of each layer


def _rows(layers: Masses, head: int | None) -> _Rows:
    """A row for each head; the first of a layer also names the layer."""
    names, starts = [], []
    for layer, heads in layers.items():
        starts.append(len(names))
        for row, number in enumerate(range(len(heads)) if heads.ndim == 2 else [head]):
            names.append(_row_name("" if row else layer, number))
    one_each = len(starts) == len(names)
    return _Rows(np.vstack(list(layers.values())), tuple(names), (0,) if one_each else tuple(starts))


def _row_name(layer: str, head: int | None) -> str:
    texts = ([written(layer)] if layer else []) + ([] if head is None else [f"head {head}"])
    return "   ".join(texts)
