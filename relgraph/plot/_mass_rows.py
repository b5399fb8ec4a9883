"""Label masses on their way into a picture: which axis is which, and the mean over all queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relgraph import _check
from relgraph._brief import shown
from relgraph.functional import AttentionAux
from relgraph.plot._text import written
from relgraph.plot._weights import non_negative, numbers

LETTERS = "LBHNR"
BY_RANK = {1: "R", 2: "HR", 4: "BHNR"}
SHAPES = "[R], [H, R], [B, H, N, R], or that of axes"


@dataclass(frozen=True)
class MassRows:
    """Masses as they are drawn: ``[R]`` alone, or a row for each layer and head.

    Attributes:
        values: ``[R]`` or ``[rows, R]``.
        names: one a row.
        starts: the first row of each layer.
    """

    values: np.ndarray
    names: tuple[str, ...] = ()
    starts: tuple[int, ...] = (0,)


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
    values = non_negative("mass", numbers("mass", _one(mass, part), (1, 2, 3, 4, 5), SHAPES))
    letters = _letters(axes, values.shape)
    values = values.mean(tuple(at for at, letter in enumerate(letters) if letter in "BN"))
    letters = [letter for letter in letters if letter not in "BN"]
    kept = [letter for letter in LETTERS if letter in letters]
    values = values.transpose([letters.index(letter) for letter in kept])
    if kept == ["R"]:
        return MassRows(values)
    if kept == ["H", "R"]:
        return _stacked({"": values})
    if kept == ["L", "R"]:
        return MassRows(values, tuple(f"layer {layer}" for layer in range(len(values))))
    return _stacked({f"layer {layer}": heads for layer, heads in enumerate(values)})


def _letters(axes: Any, shape: Sequence[int]) -> str:
    """What each axis is, one letter an axis."""
    if axes is None and len(shape) in BY_RANK:
        return BY_RANK[len(shape)]
    if axes is None:
        raise ValueError(
            f'axes must say what the axes of a mass [{", ".join(map(str, shape))}] are: "LHR" for layers, heads and '
            'labels, "HNR" of a packed batch or an input without a batch as a layer gives it, "NHR" of a packed batch '
            f"as relation_attention_with_aux gives it, or other letters of {LETTERS!r}"
        )
    if not isinstance(axes, str):
        raise TypeError(f"axes must be a string of letters of {LETTERS!r}, got {type(axes).__name__}")
    if not set(axes) <= set(LETTERS) or len(set(axes)) < len(axes) or "R" not in axes:
        raise ValueError(f"axes must be different letters of {LETTERS!r}, R among them, got {axes!r}")
    if len(axes) != len(shape):
        raise ValueError(f"axes must be {len(shape)} letters for a mass of shape {list(shape)}, got {axes!r}")
    return axes


def _one(mass: Any, part: Any) -> Any:
    """The mass of one part of a sum; that of labels which are no sum."""
    if not isinstance(mass, tuple):
        if part is not None:
            raise ValueError(f"part must be left out for labels that are no sum, got {shown(part)}")
        return mass
    if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < len(mass):
        raise ValueError(f"part must say which of the {len(mass)} parts of the sum is drawn, got {shown(part)}")
    for index, one in enumerate(mass):
        _check.tensor(f"mass[{index}]", one)
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
    values = non_negative("mass", numbers("mass", mass, (3, 4), "[B, H, N, R] or [H, N, R]"))
    return values if values.ndim == 3 else np.concatenate(list(values), 1)


def _same_labels(named: dict[str, np.ndarray]) -> None:
    counts = {mass.shape[-1]: name for name, mass in named.items()}
    if len(counts) > 1:
        told = " and ".join(f"{count} in {name}" for count, name in counts.items())
        raise ValueError(f"mass must be of one labeling, got R = {told}: give those layers alone that share labels")


def _stacked(layers: dict[str, np.ndarray]) -> MassRows:
    """A row for each head; the first of a layer also names the layer."""
    names, starts = [], []
    for name, heads in layers.items():
        starts.append(len(names))
        first = f"{written(name)}   " if name else ""
        names += [f"{first if head == 0 else ''}head {head}" for head in range(len(heads))]
    return MassRows(np.concatenate(list(layers.values())), tuple(names), tuple(starts))
