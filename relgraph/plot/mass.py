"""Attention by label: one bar or point per label, or a map of heads and labels, layer below layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.functional.attention import AttentionAux
from relgraph.plot import _style
from relgraph.plot._names import Naming, longest, naming, written
from relgraph.plot._weights import checked_values
from relgraph.plot.tables import draw_by_label, label_ticks, size_by_label

LETTERS = "LBHNR"
BY_RANK = {1: "R", 4: "BHNR"}


def label_mass(
    mass: Any,
    names: Sequence[Any] | None = None,
    *,
    axes: str | None = None,
    part: int | None = None,
    padding: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of attention that each label receives, by head and layer, as the mean over all queries.

    There is a row for each head, grouped by layer. Labels whose names are distances come first, ordered by distance;
    the rest follow. A row sums to 1 minus the attention on pairs without a label, or to less if queries see nothing. A
    mass ``[R]`` is drawn as :func:`~relgraph.plot.table_norms` draws norms.

    Args:
        mass: the dict of :func:`~relgraph.record_attention`, from layers' names to their calls, which all count; layers
            without masses are left out. Or a Tensor with these ``axes``; for a sum of labels, a tuple of one per part.
        names: one name per label, by default the ids.
        axes: one letter of ``"LBHNR"`` for each axis of a Tensor: layers, batch, heads, queries and labels. Not needed
            for ``[R]`` and ``[B, H, N, R]``. Required for two axes, ``"HR"`` or ``"NR"``, and for three: ``"LHR"`` for
            the stacked masses of layers, ``"HNR"`` for a layer's mass of a packed batch or an input without a batch,
            ``"NHR"`` for the mass that :func:`~relgraph.relation_attention_with_aux` gives for a packed batch.
        part: which part of a sum to draw; required for a sum.
        padding: ``[B, N]``, True for queries that do not count, as in the layers' ``key_padding_mask``.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> labeler = rg.ClippedDistance(1)
        >>> layer = rg.RelationAttention(8, 2, num_labels=3)
        >>> z, mass = layer(torch.randn(5, 8), labels=labeler(5), need_label_mass=True)     # [H, N, R]
        >>> ax = rg.plot.label_mass(mass, labeler.names, axes="HNR")
        >>> [text.get_text() for text in ax.get_yticklabels()], ax.images[0].get_array().shape
        (['head 0', 'head 1'], (2, 3))
        >>> plt.close("all")
    """
    layers = _read(mass, axes, part, padding)
    first = next(iter(layers.values()))
    known = naming(names, first.shape[-1])
    if first.ndim == 1 and len(layers) == 1:
        ax = _style.axes_or_new(ax, *size_by_label(known))
        draw_by_label(ax, first, known, "attention")
        return ax
    rows, starts = [], []  # names of rows, of which the first of a layer also names the layer
    for layer, heads in layers.items():
        starts.append(len(rows))
        own = [f"head {number}" for number in range(len(heads))] if heads.ndim == 2 else [""]
        rows += ["   ".join(filter(None, (written(layer), own[0]))), *own[1:]]
    values = np.vstack(list(layers.values()))[:, list(known.order)]  # [rows, R]
    below = 0.0 if known.only_distances and known.integers is not None else 0.07 * longest(known.texts)
    width = float(np.clip(0.3 * len(known.names), 2.6, 8.0)) + 1.9 + _style.margin(rows)
    ax = _style.axes_or_new(ax, width, float(np.clip(0.26 * len(rows), 1.1, 10.0)) + 0.9 + below)
    _draw_map(ax, values, rows, [0] if len(starts) == len(rows) else starts, known)
    return ax


def _draw_map(ax: Axes, values: np.ndarray, rows: Sequence[str], starts: Sequence[int], known: Naming) -> None:
    """A cell for each row and label; layers begin at ``starts``, after a line."""
    count, labels = values.shape
    image = ax.imshow(values, cmap=_style.MANY, norm=_style.from_zero(values), aspect="auto", interpolation="nearest")
    width, height = _style.room(ax)
    for start in starts[1:]:
        ax.axhline(start - 0.5, color="white", linewidth=3)
    if known.distances and known.rest:
        ax.axvline(len(known.distances) - 0.5, color="white", linewidth=2)
    shown = range(count) if height / count > 1.1 * _style.SMALL or len(starts) == 1 else starts
    _style.name_ticks(ax, "y", shown, [rows[at] for at in shown], height)
    label_ticks(ax, known, np.arange(labels))
    if min(width / labels / 2.2, height / count) > 11:
        digits = 2 if values.max(initial=0.0) >= 0.1 else 3  # small shares differ in the third
        for i, j in np.ndindex(values.shape):
            colour = _style.text_colour(image.cmap(image.norm(values[i, j])))
            ax.text(j, i, f"{values[i, j]:.{digits}f}", ha="center", va="center", fontsize=7.5, color=colour)
    ax.set_xlabel("distance" if known.only_distances else "label")
    _style.colour_bar(ax, image, "attention")


def _read(mass: Any, axes: Any, part: Any, padding: Any) -> dict[str, np.ndarray]:
    """The mean mass of each layer by its name, ``[H, R]`` or ``[R]``; the name is empty without layers."""
    if isinstance(mass, Mapping):
        if axes is not None:
            raise ValueError(f"axes must be left out for a record, which tells them, got {shown(axes)}")
        return _of_record(mass, part, padding)
    if isinstance(mass, (AttentionAux, list)):
        raise TypeError(f"mass must be that of one call or the dict of record_attention, got {type(mass).__name__}")
    values = checked_values("mass", _one(mass, part), (1, 2, 3, 4, 5), "[R], [H, R], [B, H, N, R], or that of axes")
    letters = _letters(axes, values.shape)
    mean = _mean([_summed(values, letters, padding, "mass")])
    return {f"layer {number}": heads for number, heads in enumerate(mean)} if "L" in letters else {"": mean}


def _of_record(record: Mapping[Any, Any], part: Any, padding: Any) -> dict[str, np.ndarray]:
    layers: dict[str, np.ndarray] = {}
    for layer, calls in record.items():
        if not isinstance(calls, list) or not all(isinstance(call, AttentionAux) for call in calls):
            raise TypeError("mass must be the dict of record_attention, from names to lists of AttentionAux")
        sums = []
        for number, call in enumerate(calls):
            if call.label_mass is not None:
                one = checked_values("mass", _one(call.label_mass, part), (3, 4), "[B, H, N, R] or [H, N, R]")
                sums.append(_summed(one, "BHNR"[-one.dim() :], padding, f"call {number} of {layer!r}"))
        if sums:
            layers[str(layer)] = _mean(sums)
    if not layers:
        raise ValueError("mass must hold the label_mass of at least one call, got a record without any")
    counts = {heads.shape[-1]: layer for layer, heads in layers.items()}
    if len(counts) > 1:
        got = " and ".join(f"{count} in {layer!r}" for count, layer in counts.items())
        raise ValueError(f"mass must be of one labeling, got R = {got}: pass only layers that share labels")
    return layers


def _letters(axes: Any, shape: Sequence[int]) -> str:
    """The meaning of each axis, one letter per axis."""
    if axes is None and len(shape) in BY_RANK:
        return BY_RANK[len(shape)]
    if axes is None:
        raise ValueError(
            f'axes must say what the axes of mass [{", ".join(map(str, shape))}] are: such as "HR" for heads and '
            'labels, "LHR" for layers, heads and labels, "HNR" of a layer or "NHR" of a function with a packed batch'
        )
    if not isinstance(axes, str):
        raise TypeError(f"axes must be a string of letters of {LETTERS!r}, got {type(axes).__name__}")
    if not set(axes) <= set(LETTERS) or not len(set(axes)) == len(axes) == len(shape) or "R" not in axes:
        wanted = f"{len(shape)} different letters of {LETTERS!r}, R among them"
        raise ValueError(f"axes must be {wanted}, for mass of shape {list(shape)}, got {axes!r}")
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


def _summed(mass: Tensor, letters: str, padding: Any, what: str) -> tuple[np.ndarray, int]:
    """The sum over queries that are not padding, with the axes L, H and R that there are, and their number."""
    order = [letter for letter in "BNLHR" if letter in letters]
    values = mass.permute([letters.index(letter) for letter in order])  # [B, N, L, H, R]
    if padding is not None:
        values = values[~_padding(padding, order[:2], values.shape[:2], what).to(values.device)]
    else:
        values = values.reshape(-1, *values.shape[sum(letter in "BN" for letter in order) :])
    # [queries, L, H, R]
    if values.numel() and (least := float(values.min())) < 0:
        raise ValueError(f"mass must not be negative, got values down to {least:.3g}")
    total = values.sum(0, dtype=torch.float32 if values.device.type == "mps" else torch.float64)  # mps has no float64
    if not total.isfinite().all():
        raise ValueError(f"mass must be finite, got {int((~values.isfinite()).sum())} values that are not")
    return total.cpu().double().numpy(), len(values)


def _padding(padding: Any, letters: Sequence[str], shape: Sequence[int], what: str) -> Tensor:
    """True for queries that are padding, ``[B, N]``."""
    check.data("padding", check.tensor("padding", padding))
    if letters != ["B", "N"]:
        raise ValueError(f"padding must be left out for {what}, which has no axes B and N")
    if padding.dtype != torch.bool:
        raise ValueError(f"padding must have dtype torch.bool, True for padding, got {padding.dtype}")
    if padding.shape != torch.Size(shape):
        wanted = f"[B, N] = {list(shape)} like the queries of {what}"
        raise ValueError(f"padding must have shape {wanted}, got {list(padding.shape)}")
    return padding


def _mean(sums: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    queries = sum(count for _, count in sums)
    if not queries:
        raise ValueError("padding must leave at least one query, got only True")
    return np.sum([total for total, _ in sums], 0) / queries
