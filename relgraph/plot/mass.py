"""Attention by label: one bar or point per label, or a map of heads and labels, layer below layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.functional.attention import AttentionAux
from relgraph.plot import _style
from relgraph.plot._by_label import draw_by_label, size_by_label
from relgraph.plot._names import AS_IS, Naming, longest, names_of_part, naming, written
from relgraph.plot._weights import finite_values, non_negative


def label_mass(
    mass: Any,
    names: Sequence[Any] | None = None,
    *,
    axes: str | None = None,
    part: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of attention that each label receives, by head and layer, as the mean over all queries.

    A record is drawn with one row per head, grouped by layer under the layer's name. For a tensor, ``axes`` names its
    axes: L layers, B batch, H heads, N queries (packed or not) and R labels. Values are means over B and N; rows are
    layers and heads. A mass ``[R]`` is drawn as :func:`~relgraph.plot.table_norms` draws norms.

    Labels whose names are distances come first, ordered by distance; the rest follow. A row sums to 1 minus the
    attention on pairs without a label, or to less if queries see nothing. Padding queries count like any others, so
    remove them first.

    Args:
        mass: the dict of :func:`~relgraph.record_attention`, from layers' names to their calls, which all count; layers
            without masses are left out. Or a Tensor with these ``axes``; for a sum of labels, a tuple of one per part.
        names: one name per label, by default the ids. For a sum one sequence per part.
        axes: one letter of ``"LBHNR"`` for each axis of a Tensor. Not needed for ``[R]`` and ``[B, H, N, R]``. Required
            for two axes, ``"HR"`` or ``"NR"``, and for three: ``"LHR"`` for the stacked masses of layers, ``"HNR"`` for
            a layer's mass of a packed batch or an input without a batch, ``"NHR"`` for the mass that
            :func:`~relgraph.relation_attention_with_aux` gives for a packed batch.
        part: which part of a sum to draw; required for a sum.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: another shape, two or three axes without ``axes`` or axes that do not fit, a part that does not
            exist, layers with different numbers of labels, values below 0 or not finite, or not one name per label.

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
        >>> plt.close("all")
    """
    rows = mass_rows(mass, axes, part)
    known = naming(names if part is None else names_of_part(names, part), rows.values.shape[-1])
    if rows.values.ndim == 1:
        ax = _style.axes_or_new(ax, *size_by_label(known))
        draw_by_label(ax, rows.values, known, "attention")
        return _style.inside(ax)
    ax = _style.axes_or_new(ax, *_size(rows, known))
    _draw_map(ax, rows, known)
    return _style.inside(ax)


def _size(rows: MassRows, known: Naming) -> tuple[float, float]:
    count, labels = rows.values.shape
    below = 0.0 if known.integers is not None and not known.rest else 0.07 * longest(known.texts)
    width = float(np.clip(0.3 * labels, 2.6, 8.0)) + 1.9 + _style.margin(rows.names)
    return width, float(np.clip(0.26 * count, 1.1, 10.0)) + 0.9 + below


def _draw_map(ax: Axes, rows: MassRows, known: Naming) -> None:
    table = rows.values[:, list(known.order)]
    count, labels = table.shape
    image = ax.imshow(table, cmap=_style.MANY, norm=_style.from_zero(table), aspect="auto", interpolation="nearest")
    width, height = _style.room(ax)
    for start in rows.starts[1:]:
        ax.axhline(start - 0.5, color="white", linewidth=3)
    if known.distances and known.rest:
        ax.axvline(len(known.distances) - 0.5, color="white", linewidth=2)
    shown = range(count) if height / count > 1.1 * _style.SMALL else rows.starts
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


LETTERS = "LBHNR"
BY_RANK = {1: "R", 4: "BHNR"}
SHAPES = "[R], [H, R], [B, H, N, R], or that of axes"


@dataclass(frozen=True)
class MassRows:
    """The masses that a picture shows."""

    values: np.ndarray  # [R], or [rows, R] with a row for each layer and head
    names: tuple[str, ...] = ()  # one per row
    starts: tuple[int, ...] = (0,)  # the first row of each layer


def mass_rows(mass: Any, axes: Any, part: Any) -> MassRows:
    """The rows of a mass, or of a record."""
    if isinstance(mass, Mapping):
        if axes is not None:
            raise ValueError(f"axes must be left out for a record, which tells them, got {shown(axes)}")
        return _stacked(_of_record(mass, part))
    if isinstance(mass, (AttentionAux, list)):
        raise TypeError(
            "mass must be a Tensor, the tuple of a sum's, or the dict of record_attention, got "
            f"{type(mass).__name__}: give the label_mass of one call, or {{name: calls}}"
        )
    return _of_tensor(mass, axes, part)


def _of_tensor(mass: Any, axes: Any, part: Any) -> MassRows:
    values = non_negative("mass", finite_values("mass", _one(mass, part), (1, 2, 3, 4, 5), SHAPES))
    letters = _letters(axes, values.shape)
    values = values.mean(tuple(at for at, letter in enumerate(letters) if letter in "BN"))
    letters = [letter for letter in letters if letter not in "BN"]
    shown_letters = [letter for letter in LETTERS if letter in letters]
    values = values.transpose([letters.index(letter) for letter in shown_letters])
    if shown_letters == ["R"]:
        return MassRows(values)
    if shown_letters == ["H", "R"]:
        return _stacked({"": values})
    if shown_letters == ["L", "R"]:
        return MassRows(values, tuple(f"layer {layer}" for layer in range(len(values))))
    return _stacked({f"layer {layer}": heads for layer, heads in enumerate(values)})


def _letters(axes: Any, shape: Sequence[int]) -> str:
    """The meaning of each axis, one letter per axis."""
    if axes is None and len(shape) in BY_RANK:
        return BY_RANK[len(shape)]
    if axes is None:
        raise ValueError(
            f'axes must say what the axes of a mass [{", ".join(map(str, shape))}] are: "HR" for heads and labels, '
            '"NR" for queries and labels, "LHR" for layers, heads and labels, "HNR" of a packed batch or an input '
            'without a batch as a layer gives it, "NHR" of a packed batch as relation_attention_with_aux gives it, or '
            f"other letters of {LETTERS!r}"
        )
    if not isinstance(axes, str):
        raise TypeError(f"axes must be a string of letters of {LETTERS!r}, got {type(axes).__name__}")
    if not set(axes) <= set(LETTERS) or len(set(axes)) < len(axes) or "R" not in axes:
        raise ValueError(f"axes must be different letters of {LETTERS!r}, R among them, got {axes!r}")
    if len(axes) != len(shape):
        raise ValueError(f"axes must be {len(shape)} letters for a mass of shape {list(shape)}, got {axes!r}")
    return axes


def _one(mass: Any, part: Any) -> Any:
    """The mass of one part of a sum, or of labels that are not a sum."""
    if not isinstance(mass, tuple):
        if part is not None:
            raise ValueError(f"part must be left out for labels that are no sum, got {shown(part)}")
        return mass
    if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < len(mass):
        raise ValueError(f"part must say which of the {len(mass)} parts of the sum is drawn, got {shown(part)}")
    for index, one in enumerate(mass):
        check.tensor(f"mass[{index}]", one)
    return mass[part]


def _of_record(record: Mapping[Any, Any], part: Any) -> dict[str, np.ndarray]:
    """``[H, R]`` of each layer that has masses: the mean over all queries of all its calls."""
    layers: dict[str, np.ndarray] = {}
    for name, calls in record.items():
        if not isinstance(calls, list) or not all(isinstance(call, AttentionAux) for call in calls):
            raise TypeError("mass must be the dict of record_attention, from names to lists of AttentionAux")
        masses = [_by_query(_one(call.label_mass, part)) for call in calls if call.label_mass is not None]
        _same_labels({f"call {number} of {name!r}": mass for number, mass in enumerate(masses)})
        if masses:
            layers[str(name)] = np.concatenate(masses, 1).mean(1)
    if not layers:
        raise ValueError("mass must hold the label_mass of at least one call, got a record without any")
    _same_labels({repr(name): heads for name, heads in layers.items()})
    return layers


def _by_query(mass: Any) -> np.ndarray:
    """``[H, all queries, R]`` of a mass as layers give it."""
    values = non_negative("mass", finite_values("mass", mass, (3, 4), "[B, H, N, R] or [H, N, R]"))
    return values if values.ndim == 3 else np.concatenate(list(values), 1)


def _same_labels(named: dict[str, np.ndarray]) -> None:
    counts = {mass.shape[-1]: name for name, mass in named.items()}
    if len(counts) > 1:
        got = " and ".join(f"{count} in {name}" for count, name in counts.items())
        raise ValueError(f"mass must be of one labeling, got R = {got}: pass only layers that share labels")


def _stacked(layers: dict[str, np.ndarray]) -> MassRows:
    """A row for each head; the first of a layer also names the layer."""
    names, starts = [], []
    for name, heads in layers.items():
        starts.append(len(names))
        first = f"{written(name)}   " if name else ""
        names += [f"{first if head == 0 else ''}head {head}" for head in range(len(heads))]
    return MassRows(np.concatenate(list(layers.values())), tuple(names), tuple(starts))
