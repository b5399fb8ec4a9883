"""Attributes of networkx's nodes and edges as tensors: types as ids, features as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.interop._networkx_items import Item, attribute

Read = str | Callable[..., Hashable]
"""An attribute's name, or a function of an edge's u, v and attributes, or of a node and its attributes."""

ReadNumbers = str | Sequence[str] | Callable[..., Any]
"""The names of one or more attributes that hold numbers, or a function of the same arguments that returns numbers."""


def read_types(
    kind: str, items: list[Item], read: Read | None, types: Sequence[Hashable] | None
) -> tuple[Tensor | None, tuple[Hashable, ...]]:
    """The type of every edge or node as an id, and the types in the order of their ids."""
    name = "types" if kind == "edge" else "node_types"
    if read is None:
        if types is not None:
            raise ValueError(f"{kind}_type must say where the types are when {name} is given, got None")
        return None, ()
    if not isinstance(read, str) and not _is_function(read):
        raise TypeError(f"{kind}_type must be an attribute's name or a function, got {_kind(read)}")
    values = [_plain(_value(f"{kind}_type", kind, item, read)) for item in items]
    for item, value in zip(items, values, strict=True):
        if types is None and isinstance(read, str) and _is_measure(value):
            raise ValueError(
                f"{kind}_type must be an attribute with few kinds of values, got the number {value} at {kind} {item}: "
                f"read numbers with {kind}_features={read!r}, make kinds of them with a function, or list them in "
                f"{name}"
            )
        if not isinstance(value, Hashable) or isinstance(value, Tensor) or value != value:
            raise TypeError(f"{kind}_type must give hashable types, got {shown(value)} at {kind} {item}")
    absent = {None} if kind == "node" else set()
    types = _sorted(name, set(values) - absent) if types is None else distinct(name, types)
    number = {value: at for at, value in enumerate(types)} | dict.fromkeys(absent, -1)
    for item, value in zip(items, values, strict=True):
        if value not in number:
            raise ValueError(f"{name} must hold the type of every {kind}, got {shown(value)} at {kind} {item}")
    return torch.tensor([number[value] for value in values], dtype=torch.int64), types


def _value(argument: str, kind: str, item: Item, read: Any) -> Any:
    """The value of an edge or a node: an attribute by name, or the result of a function."""
    return attribute(argument, kind, item, read) if isinstance(read, str) else read(*item.ends, item.of)


def _is_function(read: Any) -> bool:
    """Whether it is callable and not a class."""
    return callable(read) and not isinstance(read, type)


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _plain(value: Any) -> Any:
    """A number that a Tensor or NumPy holds as Python's: equal ones are one type."""
    if isinstance(value, Tensor) and value.is_meta:
        return value
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _is_measure(value: Any) -> bool:
    """Whether it is a non-integer number (or nan); each would become its own type."""
    return isinstance(value, Real) and not isinstance(value, Integral) and value % 1 != 0


def _sorted(name: str, values: set[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple(sorted(values))
    except TypeError as error:
        raise ValueError(f"{name} must be given where types cannot be sorted: {error}") from None


def distinct(name: str, types: Any, *, of: str = "types", most: int = 0) -> tuple[Hashable, ...]:
    """``types`` as a tuple; raise an error unless they are different and at most MOST_LABELS, or ``most`` if larger."""
    if isinstance(types, str) or not isinstance(types, Sequence):
        raise TypeError(f"{name} must be a sequence of {of}, got {shown(types)}")
    listed = check.items(name, types, f"a sequence of {of}", most=max(most, check.MOST_LABELS))
    if not all(isinstance(value, Hashable) and not isinstance(value, Tensor) for value in listed):
        raise TypeError(f"{name} must be hashable, got {shown(types)}")
    if len(set(listed)) != len(listed):
        raise ValueError(f"{name} must be different, got {shown(list(listed))}")
    return listed


def read_features(kind: str, items: list[Item], read: ReadNumbers | None) -> Tensor | None:
    """The numbers of every edge or node, ``[E or N, F]``, in the default floating type; None if none are read."""
    if read is None:
        return None
    names = _names(kind, read)
    rows = [_row(kind, item, read) for item in items]
    width = len(rows[0]) if rows else len(names or ())
    for item, row in zip(items, rows, strict=True):
        if len(row) != width:
            raise ValueError(
                f"{kind}_features must be as many for every {kind}, {width} at {items[0]}, "
                f"got {len(row)} at {kind} {item}"
            )
    return torch.tensor(rows, dtype=torch.get_default_dtype()).view(len(rows), width)


def listed_features(name: str, count: int, features: Any) -> list[Any] | None:
    """The features of every edge or node as an attribute: a number, or a list of numbers."""
    if features is None:
        return None
    check.data(name, check.tensor(name, features))
    if features.dim() not in (1, 2) or features.shape[0] != count:
        raise ValueError(f"{name} must have shape [{count}] or [{count}, F], got {list(features.shape)}")
    return features.detach().tolist()


def _names(kind: str, read: Any) -> tuple[str, ...] | None:
    """The attributes that are read; None for a function."""
    if isinstance(read, str):
        return (read,)
    if isinstance(read, Sequence) and read and all(isinstance(name, str) for name in read):
        return tuple(read)
    if not _is_function(read):
        raise TypeError(f"{kind}_features must be attributes' names or a function, got {shown(read)}")
    return None


def _row(kind: str, item: Item, read: Any) -> list[float]:
    """All numbers of an edge or a node: each value a number, or a sequence, an array or a tensor of numbers."""
    names = _names(kind, read)
    row: list[float] = []
    for name in (read,) if names is None else names:
        value = _value(f"{kind}_features", kind, item, name)
        if isinstance(value, Tensor):
            check.data(f"{kind}_features", check.tensor(f"{kind}_features", value))
        listed = value.tolist() if hasattr(value, "tolist") else value
        numbers = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else [listed]
        if not all(isinstance(number, Real) for number in numbers):
            raise TypeError(f"{kind}_features must be numbers, got {shown(value)} at {kind} {item}")
        row.extend(_as_float(kind, item, name, number) for number in numbers)
    return row


def _as_float(kind: str, item: Item, name: Any, number: Any) -> float:
    """A number, which may be an int or a fraction of any size, as a float of the default type."""
    dtype = torch.get_default_dtype()
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if (math.isinf(value) and abs(number) != math.inf) or torch.finfo(dtype).max < abs(value) < math.inf:
        where = f"in {name!r} at {kind} {item}" if isinstance(name, str) else f"at {kind} {item}"
        raise ValueError(f"{kind}_features must be numbers that {dtype} holds, got a larger one {where}")
    return value
