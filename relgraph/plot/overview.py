"""Attention by label of a whole model: a cell for each layer and head, with a bar for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch
from torch import Tensor

from relgraph.plot import _style
from relgraph.plot._colours import FEW, LabelColours, label_colours
from relgraph.plot._mass import Masses, read_masses
from relgraph.plot._names import AS_IS, Naming, columns, longest, names_of_part, naming, written

BARS = 64  # at most so many bars in a cell
LEFT, WIDE = 0.06, 0.88  # what a cell's bars take up of its width
FLOOR, HIGH = 0.94, 0.66  # where bars start, down from the top of a cell, and how high the tallest is
BEFORE, AT, AFTER = _style.LINE, "#E0B000", _style.HERE  # sides of distance 0
CELL = "#f3f3f3"
TEXT = 6.5  # font size in points


def label_mass_overview(  # noqa: D417
    mass: Any,
    names: Sequence[Any] | None = None,
    *,
    axes: str | None = None,
    part: int | None = None,
    padding: Tensor | Sequence[Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what every head of a model attends to, a row of cells for each layer and a column for each head.

    A cell has a bar for each label, in the order of :func:`~relgraph.plot.label_mass`, and names the label with the
    most attention if there is room. All cells share one scale, and the title gives its end. Distances have one colour
    below 0, one at it and one above. Of more than 64 labels, a bar is the largest of several neighbours.

    Args:
        mass: this and all further arguments as in :func:`~relgraph.plot.label_mass`.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: what :func:`~relgraph.plot.label_mass` refuses.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> labeler = rg.ClippedDistance(1)
        >>> layer = rg.RelationEncoderLayer(8, 2, 16, labeler=labeler)
        >>> model = rg.RelationEncoder(layer, num_layers=3)
        >>> with rg.record_attention(model) as record:
        ...     z = model(torch.randn(1, 5, 8))
        >>> ax = rg.plot.label_mass_overview(record, labeler.names)
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['layers.0.self_attn', 'layers.1.self_attn', 'layers.2.self_attn']
        >>> len(ax.texts)                                                   # the label named in each cell
        6
        >>> plt.close()
    """
    layers = read_masses("mass", mass, axes, part, padding=padding)
    return _draw(ax, layers, _naming(names, part, layers), signed=False)


def label_mass_difference(  # noqa: D417
    mass: Any,
    base: Any,
    names: Sequence[Any] | None = None,
    *,
    axes: str | None = None,
    part: int | None = None,
    padding: Tensor | Sequence[Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw by how much each label's attention differs between two models, or two records of one model.

    Cells are those of :func:`~relgraph.plot.label_mass_overview`. A bar that goes up has more attention in ``mass``,
    one that goes down has more in ``base``. A cell names the label that differs most.

    Args:
        mass: this and all further arguments as in :func:`~relgraph.plot.label_mass`.
        base: what ``mass`` is compared with, of the same kind. Layers are paired in their order; the picture has the
            names of ``mass``. Or a Tensor ``[R]`` with which every head is compared, such as the share of keys that
            carry each label.
        padding: applies to both.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind, or ``base`` of another kind than ``mass``.
        ValueError: what :func:`~relgraph.plot.label_mass` refuses, or other layers, heads or labels in ``base``.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> mass, base = torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[0.5, 0.5]]])
        >>> ax = rg.plot.label_mass_difference(mass, base, ["up", "down"], axes="LHR")
        >>> ax.texts[0].get_text()
        'up: -0.25'
        >>> plt.close()
    """
    layers = read_masses("mass", mass, axes, part, padding=padding)
    even = isinstance(base, Tensor) and base.dim() == 1
    if not even and (kind := _kind(mass)) != _kind(base):
        raise TypeError(f"base must be {kind}, like mass, or a Tensor [R], got {type(base).__name__}")
    if even:
        others = [read_masses("base", base, None, None)[""]] * len(layers)
        fits = all(heads.shape[-1:] == other.shape for heads, other in zip(layers.values(), others, strict=True))
    else:
        others = list(read_masses("base", base, axes, part, padding=padding).values())
        fits = [heads.shape for heads in layers.values()] == [heads.shape for heads in others]
    if not fits:
        raise ValueError(
            f"base must have the layers, heads and labels of mass, {_shapes(layers.values())}, got {_shapes(others)}"
        )
    differences = {name: heads - other for (name, heads), other in zip(layers.items(), others, strict=True)}
    return _draw(ax, differences, _naming(names, part, layers), signed=True)


def _kind(mass: Any) -> str:
    if isinstance(mass, Mapping):
        return "the dict of record_attention"
    return "a tuple of one Tensor per part" if isinstance(mass, tuple) else "a Tensor"


def _shapes(masses: Any) -> str:
    found = [str(list(heads.shape)) for heads in masses]
    return f"{len(found)} of {' and '.join(dict.fromkeys(found))}"


def _naming(names: Any, part: int | None, layers: Masses) -> Naming:
    return naming(names if part is None else names_of_part(names, part), next(iter(layers.values())).shape[-1])


def _draw(ax: Axes | None, layers: Masses, known: Naming, *, signed: bool) -> Axes:
    rows = [np.atleast_2d(heads)[:, list(known.order)] for heads in layers.values()]
    heads = max(map(len, rows))
    texts = [written(name) for name in layers]
    colours, sides = _colours(known)
    legend = [written(known.names[label]) for label in colours.swatches or colours.scale]
    legend += [str(side.get_label()) for side in sides]
    aside = 0.5 + 0.075 * longest(legend)  # inches that the legend takes at the right
    lines = len(legend) - len(colours.scale)
    wide, high = np.clip(0.85 * heads, 2.6, 13.0), np.clip(0.62 * len(rows), max(1.2, 0.18 * lines), 12.0)
    new = ax is None
    ax = _style.axes_or_new(ax, float(wide) + 0.9 + aside + _style.margin(texts), float(high) + 0.9)
    width, height = _style.room(ax)
    if new:
        width, height = 72 * float(wide), 72 * float(high)
    else:
        width = max(width - 72 * aside, width / 2)
    ax.set(xlim=(0, heads), ylim=(len(rows), 0))
    corners = np.array([(head, layer) for layer, row in enumerate(rows) for head in range(len(row))], dtype=float)
    values = np.concatenate(rows)
    most = float(np.abs(values).max())
    _draw_bars(ax, values / (most or 1.0), corners, colours.colours[list(known.order)], len(known.distances), signed)
    _name_largest(ax, values, corners, known.ordered_texts, (width / heads, height / len(rows)), signed)
    with_heads = next(iter(layers.values())).ndim == 2
    numbers = [str(head) for head in range(heads)] if with_heads else []
    for which, names, length in (("x", numbers, width), ("y", texts, height)):
        _style.name_ticks(ax, which, [at + 0.5 for at in range(len(names))], names, length)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("head" if with_heads else "")
    _style.title(ax, f"{'up: more than in base; ' if signed else ''}longest bar: {most:.2g}")
    colours.explain(ax, sides)
    return _style.inside(ax)


def _draw_bars(
    ax: Axes, values: np.ndarray, corners: np.ndarray, colours: _style.Colours, far: int, signed: bool
) -> None:
    """Bars of values ``[cells, R]`` up to 1; the first ``far`` labels are distances, and a gap follows them."""
    step = -(-values.shape[1] // BARS)
    places, chosen = [], []
    for first, end in ((0, far), (far, values.shape[1])):
        for start in range(first, end, step):
            block = np.abs(values[:, start : min(start + step, end)])
            chosen.append(start + block.argmax(1))
            places.append(len(places) + (1 if first and far else 0))
    label = np.stack(chosen, 1)  # [cells, bars]
    height = np.take_along_axis(values, label, 1) * (HIGH / 2 if signed else HIGH)
    unit = WIDE / (places[-1] + 1)
    left = corners[:, :1] + LEFT + unit * np.array(places)
    right = left + unit * (0.85 if len(places) <= 16 else 1.0)
    floor = np.broadcast_to(corners[:, 1:] + (FLOOR - HIGH / 2 if signed else FLOOR), left.shape)
    top = floor - height
    bars = np.stack([np.stack(pair, -1) for pair in ((left, floor), (left, top), (right, top), (right, floor))], -2)
    frame = np.array([[0.02, 0.02], [0.98, 0.02], [0.98, 0.98], [0.02, 0.98]])
    ax.add_collection(PolyCollection(list(corners[:, None] + frame), facecolor=CELL, linewidth=0), autolim=False)
    ax.add_collection(
        PolyCollection(list(bars.reshape(-1, 4, 2)), facecolor=colours[label].reshape(-1, 4), linewidth=0),
        autolim=False,
    )
    ax.hlines(floor[:, 0], corners[:, 0] + LEFT, corners[:, 0] + LEFT + WIDE, color=_style.FAINT, linewidth=0.6)


def _name_largest(
    ax: Axes, values: np.ndarray, corners: np.ndarray, texts: Sequence[str], cell: tuple[float, float], signed: bool
) -> None:
    """Write the largest value and its label at the top of each cell, or one of them if both do not fit."""
    letters = int(cell[0] * 0.98 / (0.6 * TEXT))
    if cell[1] * (FLOOR - HIGH) < TEXT:
        return
    largest = np.abs(values).argmax(1)
    for (x, y), row, label in zip(corners, values, map(int, largest), strict=True):
        number = f"{row[label]:{'+' if signed else ''}.2f}"
        ways = (f"{texts[label]}: {number}", texts[label], number)
        text = next((text for text in ways if columns(text) <= letters), "")
        if row[label] and text:
            ax.text(x + 0.5, y + 0.05, text, ha="center", va="top", fontsize=TEXT, color=_style.INK, **AS_IS)


def _colours(known: Naming) -> tuple[LabelColours, list[Patch]]:
    """A colour for each label, but one for all distances on a side of 0, which is explained by a patch.

    The order of a cell's bars is enough to tell distances on one side.
    """
    found = label_colours(known, range(len(known.names)))
    if not known.distances:
        return found, []
    colours, patches, far, at = found.colours.copy(), [], list(known.distances), known.centre
    for labels, colour in ((far[:at], BEFORE), ([far[at]], AT), (far[at + 1 :], AFTER)):
        if labels:
            colours[labels] = to_rgba(colour)
            ends = dict.fromkeys(written(known.names[label]) for label in (labels[0], labels[-1]))
            patches.append(Patch(facecolor=colour, label=" to ".join(ends)))
    return LabelColours(known, colours, known.rest if len(known.rest) <= FEW else (), ()), patches
