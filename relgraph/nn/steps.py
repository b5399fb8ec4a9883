"""Steps of decoding of a form that came before: a layer knows their checks, and their labels follow by arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.labelers import DistanceLabeler
from relgraph.labels import DistanceLabels
from relgraph.nn.cache import KVCache
from relgraph.nn.inputs import Inputs

Form = tuple[Any, ...]


def form_of(layer: Any, is_causal: Any, labels: Any, given: dict[str, Any]) -> Form | None:
    """All that decides how new rows after those in a cache are checked; None for calls that are given more than these.

    Labels by distance are the same ids for every number of keys, other labelers may read more.
    """
    cache, query, labeler = given["cache"], given["query"], layer.labeler
    if type(cache) is not KVCache or cache.static or not cache._length or labels is not None:
        return None
    if torch.compiler.is_compiling() or type(query) is not Tensor or query.layout != torch.strided or query.is_nested:
        return None
    for name, x in given.items():
        if x is not None and x is not False and name not in ("query", "cache"):
            return None
    weight = layer._first_weight
    if query.dtype != weight.dtype or query.device != weight.device:
        return None
    if labeler is not None and not isinstance(labeler, DistanceLabeler):
        return None
    return query.shape, query.dtype, query.device, bool(is_causal), labeler, layer.tables


def next_inputs(layer: Any, form: Form, given: dict[str, Any]) -> Inputs | None:
    """The inputs of a step; None if none of its form came before."""
    known: Inputs | None = layer._steps.found.get(form)
    if known is None:
        return None
    cache, query, labels = given["cache"], given["query"], known.labels
    past, rows = cache._length, query.shape[-2]
    cache._check_room(1 if known.unbatched else query.shape[0], rows)
    if type(labels) is DistanceLabels:
        labels = labels._between(rows, past + rows, past)
    return known._replace(query=query, key=query, value=query, labels=labels, q_offset=past)


def remember(layer: Any, form: Form, inputs: Inputs) -> None:
    """Keep what the next step of this form needs, without its rows."""
    nothing: Any = None
    layer._steps.once(form, lambda: inputs._replace(query=nothing, key=None, value=None))
