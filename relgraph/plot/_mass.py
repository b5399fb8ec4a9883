"""Read label masses, from a record or a Tensor: the mean over queries of each layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.functional.attention import AttentionAux
from relgraph.plot._weights import checked_values

LETTERS = "LBHNR"
BY_RANK = {1: "R", 4: "BHNR"}
SHAPES = "[R], [H, R], [B, H, N, R], or that of axes"

Masses = dict[str, np.ndarray]
"""``[H, R]`` of each layer by its name, or ``[R]`` without heads; the name is empty without layers."""


def read_masses(
    name: str, mass: Any, axes: Any, part: Any, *, padding: Any = None, layer: Any = None, head: Any = None
) -> Masses:
    """The masses in the argument ``name``, only of one layer and one head if these are chosen."""
    if isinstance(mass, Mapping):
        if axes is not None:
            raise ValueError(f"axes must be left out for a record, which tells them, got {shown(axes)}")
        layers = _of_record(name, _chosen(mass, layer), part, padding)
    elif isinstance(mass, (AttentionAux, list)):
        raise TypeError(
            f"{name} must be a Tensor, the tuple of a sum's, or the dict of record_attention, got "
            f"{type(mass).__name__}: give the label_mass of one call, or {{name: calls}}"
        )
    else:
        layers = _of_tensor(name, mass, axes, part, padding, layer)
    return layers if head is None else {layer: _head(heads, head) for layer, heads in layers.items()}


def _chosen(record: Mapping[Any, Any], layer: Any) -> Mapping[Any, Any]:
    """The layer of this name or number, or all."""
    if layer is None or not record:
        return record
    if isinstance(layer, bool) or not isinstance(layer, (str, int)):
        raise TypeError(f"layer must be the name of a layer or its number, got {type(layer).__name__}")
    if isinstance(layer, int):
        layer = list(record)[check.integer("layer", layer, minimum=0, maximum=len(record) - 1)]
    if layer not in record:
        raise ValueError(f"layer must be one of {', '.join(map(repr, record))}, or a number, got {shown(layer)}")
    return {layer: record[layer]}


def _head(heads: np.ndarray, head: Any) -> np.ndarray:
    if heads.ndim == 1:
        raise ValueError(f"head must be left out for a mass without heads, got {shown(head)}")
    return heads[check.integer("head", head, minimum=0, maximum=len(heads) - 1)]


def _of_record(name: str, record: Mapping[Any, Any], part: Any, padding: Any) -> Masses:
    layers: Masses = {}
    for layer, calls in record.items():
        if not isinstance(calls, list) or not all(isinstance(call, AttentionAux) for call in calls):
            raise TypeError(f"{name} must be the dict of record_attention, from names to lists of AttentionAux")
        several = isinstance(padding, (list, tuple))
        if several and len(padding) != len(calls):
            raise ValueError(f"padding must be one for each of the {len(calls)} calls of {layer!r}, got {len(padding)}")
        sums = []
        for number, call in enumerate(calls):
            if call.label_mass is not None:
                one = checked_values(name, _one(name, call.label_mass, part), (3, 4), "[B, H, N, R] or [H, N, R]")
                of_call = (f"padding[{number}]", padding[number]) if several else ("padding", padding)
                sums.append(_summed(name, one, "BHNR"[-one.dim() :], *of_call, f"call {number} of {layer!r}"))
        _same_labels(name, {f"call {number} of {layer!r}": total for number, (total, _) in enumerate(sums)})
        if sums:
            layers[str(layer)] = _mean(sums)
    if not layers:
        raise ValueError(f"{name} must hold the label_mass of at least one call, got a record without any")
    _same_labels(name, {repr(layer): heads for layer, heads in layers.items()})
    return layers


def _of_tensor(name: str, mass: Any, axes: Any, part: Any, padding: Any, layer: Any) -> Masses:
    values = checked_values(name, _one(name, mass, part), (1, 2, 3, 4, 5), SHAPES)
    letters = _letters(name, axes, values.shape)
    mean = _mean([_summed(name, values, letters, "padding", padding, name)])
    if "L" not in letters:
        if layer is not None:
            raise ValueError(f"layer must be left out for a mass without layers, got {shown(layer)}")
        return {"": mean}
    numbers = range(len(mean))
    if layer is not None:
        numbers = [check.integer("layer", layer, minimum=0, maximum=len(mean) - 1)]
    return {f"layer {number}": mean[number] for number in numbers}


def _letters(name: str, axes: Any, shape: Sequence[int]) -> str:
    """The meaning of each axis, one letter per axis."""
    if axes is None and len(shape) in BY_RANK:
        return BY_RANK[len(shape)]
    if axes is None:
        raise ValueError(
            f'axes must say what the axes of {name} [{", ".join(map(str, shape))}] are: "HR" for heads and labels, '
            '"NR" for queries and labels, "LHR" for layers, heads and labels, "HNR" of a packed batch or an input '
            'without a batch as a layer gives it, "NHR" of a packed batch as relation_attention_with_aux gives it, or '
            f"other letters of {LETTERS!r}"
        )
    if not isinstance(axes, str):
        raise TypeError(f"axes must be a string of letters of {LETTERS!r}, got {type(axes).__name__}")
    if not set(axes) <= set(LETTERS) or len(set(axes)) < len(axes) or "R" not in axes:
        raise ValueError(f"axes must be different letters of {LETTERS!r}, R among them, got {axes!r}")
    if len(axes) != len(shape):
        raise ValueError(f"axes must be {len(shape)} letters for {name} of shape {list(shape)}, got {axes!r}")
    return axes


def _one(name: str, mass: Any, part: Any) -> Any:
    """The mass of one part of a sum, or of labels that are not a sum."""
    if not isinstance(mass, tuple):
        if part is not None:
            raise ValueError(f"part must be left out for labels that are no sum, got {shown(part)}")
        return mass
    if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < len(mass):
        raise ValueError(f"part must say which of the {len(mass)} parts of the sum is drawn, got {shown(part)}")
    for index, one in enumerate(mass):
        check.tensor(f"{name}[{index}]", one)
    return mass[part]


def _summed(name: str, mass: Tensor, letters: str, pad_name: str, padding: Any, what: str) -> tuple[np.ndarray, int]:
    """The sum over queries that are not padding, with the axes L, H and R that there are, and their number.

    It sums on the device of the mass, so that little moves to the CPU.
    """
    order = [letter for letter in "BNLHR" if letter in letters]
    values = mass.permute([letters.index(letter) for letter in order])
    if padding is not None:
        values = values[~_padding(pad_name, padding, order[:2], values.shape[:2], what).to(values.device)]
    else:
        values = values.reshape(-1, *values.shape[sum(letter in "BN" for letter in order) :])
    if values.numel() and (least := float(values.min())) < 0:
        raise ValueError(f"{name} must not be negative, got values down to {least:.3g}")
    dtype = torch.float32 if values.device.type == "mps" else torch.float64  # mps has no float64
    total = values.sum(0, dtype=dtype)
    if not total.isfinite().all():
        raise ValueError(f"{name} must be finite, got {int((~values.isfinite()).sum())} values that are not")
    return total.cpu().double().numpy(), len(values)


def _padding(pad_name: str, padding: Any, letters: Sequence[str], shape: Sequence[int], what: str) -> Tensor:
    """True for queries that are padding, ``[B, N]``."""
    check.data(pad_name, check.tensor(pad_name, padding))
    if letters != ["B", "N"]:
        raise ValueError(f"{pad_name} must be left out for {what}, which has no axes B and N")
    if padding.dtype != torch.bool:
        raise ValueError(f"{pad_name} must have dtype torch.bool, True for padding, got {padding.dtype}")
    if padding.shape != torch.Size(shape):
        wanted, got = list(shape), list(padding.shape)
        raise ValueError(f"{pad_name} must have shape [B, N] = {wanted} like the queries of {what}, got {got}")
    return padding


def _mean(sums: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    queries = sum(count for _, count in sums)
    if not queries:
        raise ValueError("padding must leave at least one query, got only True")
    return np.sum([total for total, _ in sums], 0) / queries


def _same_labels(name: str, named: Mapping[str, np.ndarray]) -> None:
    counts = {mass.shape[-1]: what for what, mass in named.items()}
    if len(counts) > 1:
        got = " and ".join(f"{count} in {what}" for count, what in counts.items())
        raise ValueError(f"{name} must be of one labeling, got R = {got}: pass only layers that share labels")
