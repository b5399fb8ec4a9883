"""The names of ids, which labels take from the labeler that made them."""

from __future__ import annotations

import copy
from typing import Any

KINDS: set[type] = set()
"""All kinds of labels, which are final: to look a type up here is faster than ``isinstance`` of an abstract class."""


def names_of(source: Any) -> tuple[Any, ...] | None:
    """The names of a labeler, one tuple for all labels that it makes; names and None stay."""
    if source is None or type(source) is tuple:
        return source
    try:
        fields = vars(source)
    except TypeError:  # a class with slots
        return source.names
    if "_found_names" not in fields:
        fields["_found_names"] = source.names
    return fields["_found_names"]


def named_by(source: Any, labels: Any) -> Any:
    """Labels with the names of ``source``, a labeler or a tuple; a copy if they have others."""
    if source is None or type(labels) not in KINDS or labels._named is source:
        return labels
    if labels._named is not None:
        if type(labels._named) is type(source) and labels._named == source:
            return labels
        labels = copy.copy(labels)
    vars(labels)["_named"] = source
    return labels
