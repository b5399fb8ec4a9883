"""What every kind of labels is registered for: names that its slices keep, and torch's pytree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from relgraph.labels.base import Labels
from relgraph.labels.naming import KINDS, named_by


def _keeps_names(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that returns labels, with the names of these."""

    @functools.wraps(method)
    def named(self: Labels, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        return made if self._named is None or torch.compiler.is_compiling() else named_by(self._named, made)

    return named


def register(kind: type[Labels]) -> None:
    """Register a kind of labels, also with torch's pytree: fields with tensors or labels are children."""
    KINDS.add(kind)
    for method in ("rows", "cols", "dense"):
        setattr(kind, method, _keeps_names(getattr(kind, method)))
    pytree.register_pytree_node(
        kind,
        _flatten,
        partial(_unflatten, kind),
        serialized_type_name=f"relgraph.{kind.__name__}",
        flatten_with_keys_fn=_flatten_with_keys,
    )


def _flatten(labels: Labels) -> tuple[list[Any], tuple[Any, ...]]:
    values = {field.name: getattr(labels, field.name) for field in fields(labels)}
    children = {name: value for name, value in values.items() if _holds_tensors(value)}
    rest = tuple((name, value) for name, value in values.items() if name not in children)
    return list(children.values()), (tuple(children), rest)


def _flatten_with_keys(labels: Labels) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    children, context = _flatten(labels)
    return [(pytree.GetAttrKey(name), child) for name, child in zip(context[0], children, strict=True)], context


def _unflatten(kind: type[Labels], children: Iterable[Any], context: tuple[Any, ...]) -> Labels:
    names, rest = context
    return kind._make(**dict(zip(names, children, strict=True)), **dict(rest))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, tuple):  # parts of a sum, positions, or a lookup of ids, which may be long: look at one entry
        return bool(value) and isinstance(value[0], (Tensor, Labels))
    return isinstance(value, (Tensor, Labels))
