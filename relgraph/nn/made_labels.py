"""The labels of a layer: checked, or made by its labeler from what a call gives."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.hints import in_place_of_labels
from relgraph.functional.region import active, whole_length
from relgraph.graphs import Graph
from relgraph.labelers.base import Labeler, check_made
from relgraph.labelers.sequence.difference import check_positions
from relgraph.labels import Labels
from relgraph.nn.cache import KVCache, LayerCache, StackCache, labels_of_new_rows
from relgraph.nn.inputs import Names
from relgraph.nn.tables import RelationTables

_AnyCache = KVCache | LayerCache | StackCache


def check_labeler(labeler: Any, num_labels: Any, tables: Any, name: str = "labeler") -> tuple[Any, Any]:
    """The number and names of the labels, from the labeler, which errors call ``name``, if there is one."""
    if labeler is None:
        if isinstance(num_labels, Labeler):
            raise TypeError(f"num_labels must be an int, got {type(num_labels).__name__}: pass it as labeler=")
        return num_labels, None
    wanted = f"{name} must be callable and have num_labels and names"
    usable = callable(labeler) and all(hasattr(labeler, name) for name in ("num_labels", "names"))
    if isinstance(labeler, type):
        raise TypeError(f"{wanted}, got the class {labeler.__name__}: call it, {labeler.__name__}()")
    if isinstance(labeler, Labels):
        raise TypeError(f"{wanted}, got {type(labeler).__name__}: pass num_labels= here, and the labels to forward")
    if not usable:
        hint = ": make it a labeler with rg.FromFunction" if callable(labeler) else ""
        raise TypeError(f"{wanted}, got {type(labeler).__name__}{hint}")
    if num_labels is not None:
        raise ValueError(f"num_labels must be left out with a labeler, which has its own, got {shown(num_labels)}")
    known: Any = labeler
    if known.num_labels == 0:
        return None, None
    return known.num_labels, None if isinstance(tables, RelationTables) else known.names


def make_labels(labeler: Any, labels: Any, name: str, x: Any, cache: _AnyCache | None, argument: str = "labels") -> Any:
    """Return ``labels``, or let the labeler make them from its input or the lengths of ``x`` and the cache.

    With a cache, labels of a whole sequence are cut to the rows of ``x``.
    """
    past, length = 0 if cache is None else len(cache), whole_length(length_of(name, x))
    if labels is not None and labeler is not None and not isinstance(labels, Labels):
        given, labels = labels, labels_of(labeler, labels, argument)
        misfit = isinstance(given, Graph) and labels.q_len != length and not (labels.packed and x.dim() == 3)
        if misfit and cache is None and active() is None:
            raise ValueError(
                f"{argument} must cover the {length} rows of {name}, got a graph of {given.num_nodes} nodes"
            )
    if labels is not None or labeler is None:
        return labels if cache is None else labels_of_new_rows(labels, past, length)
    if past:
        return labels_of_lengths(labeler, [length, past + length], past, x, argument)
    return labels_of_lengths(labeler, [length], None, x, argument)


def labels_between(labeler: Any, labels: Any, query: Any, key: Any, cache: Any, q_offset: Any, names: Names) -> Any:
    """Return ``labels``, or let the labeler make them from its input or from the lengths of queries and keys."""
    grows = isinstance(cache, KVCache) and not cache.static
    if labels is not None or grows:
        return make_labels(labeler, labels, names.query, query, cache if grows else None, names.labels)
    lengths = [whole_length(length_of(names.query, query))]
    if isinstance(cache, KVCache) and len(cache) > 0:
        lengths.append(len(cache))
    elif key is not None and key is not query:
        if isinstance(key, Graph):
            raise TypeError(f"{names.key} must be a Tensor, got Graph: pass it as {names.labels}=")
        if isinstance(key, Tensor) and not key.is_floating_point():
            raise ValueError(
                f"{names.key} must have a floating dtype, got {key.dtype}: pass ids or a Graph as {names.labels}="
            )
        lengths.append(whole_length(length_of(names.key, key)))
    return labels_of_lengths(labeler, lengths, q_offset, query, names.labels)


def labels_at(layer: Any, labels: Any, positions: Any, query: Any, **others: Any) -> Any:
    """Return ``labels``, or let the labeler of a self-attention make them from the positions of its rows.

    ``others`` are arguments of the call that do not go with positions.
    """
    check_positions("positions", positions, 1)
    name = layer._names.query
    length_of(name, query)
    wanted = [query.shape[-2]], [*query.shape[:-1]]
    if list(positions.shape) not in wanted:
        allowed = " or ".join(map(str, wanted if query.dim() == 3 else wanted[:1]))
        raise ValueError(f"positions must have shape {allowed}, as {name} has, got {list(positions.shape)}")
    check.same_device(**{name: query, "positions": positions})
    for other, given in others.items():
        if given is not None and given is not query:
            raise NotImplementedError(
                f"positions must be None with {other}: they are for the rows of one self-attention"
            )
    if active() is not None:
        raise NotImplementedError("positions must be None within context_parallel, where each process holds some rows")
    if labels is None and layer.labeler is not None:
        at = getattr(layer.labeler, "at", None)
        if at is None:
            raise TypeError(f"positions must be None for a layer with {shown(layer.labeler)}, which does not read them")
        return at(positions)
    if layer.rotary is None:
        raise ValueError("positions must be None for a layer that has no rotary positions and makes no labels")
    return labels


def length_of(name: str, x: Any) -> int:
    """How many rows there are."""
    if check.tensor(name, x).dim() not in (2, 3):
        raise ValueError(f"{name} must have shape [B, N, E], [N, E] or, packed, [T, E], got {list(x.shape)}")
    return x.shape[-2]


def labels_of_lengths(
    labeler: Any, lengths: Sequence[int], q_offset: Any, x: Tensor, name: str = "labels", ptr: Tensor | None = None
) -> Labels:
    """The labels that a labeler makes from lengths, on the device of ``x``; errors call them ``name``."""
    given: dict[str, Any] = {} if q_offset is None else {"q_offset": q_offset}
    if ptr is not None:
        given["ptr"] = ptr
    try:
        made = labeler(*lengths, **given)
    except TypeError as error:
        needed, reads_lengths = _inputs(labeler), getattr(labeler, "_reads_lengths", True)
        read = needed[0] if needed and not reads_lengths else "..."
        pass_it = f"{'it reads a Graph, so pass' if read == 'graph' else 'pass what it reads,'} {name}={read}"
        if len(needed) > 1:
            pass_it = f"call it, {name}=labeler({', '.join(needed)})"
        why = f" ({error})" if len(needed) > 1 or reads_lengths else ""  # else it got no length
        raise TypeError(
            f"{name} must be given, as the labeler {shown(labeler)} does not label lengths: {pass_it}{why}"
        ) from error
    where = check_made(labeler, made).device
    return made if where is None or where == x.device else made.to(x.device)


def labels_of(labeler: Any, given: Any, name: str = "labels") -> Labels:
    """The labels that a layer's labeler makes from its input, which errors call ``name``."""
    if isinstance(given, int):
        raise TypeError(f"{name} must be Labels, or what {shown(labeler)} reads, got int: the layer knows its length")
    try:
        made = labeler(given)
    except TypeError as error:
        if isinstance(given, Graph):
            raise
        needed = _inputs(labeler)
        if len(needed) > 1:
            raise TypeError(
                f"{name} must be Labels, as {shown(labeler)} reads several inputs, got {type(given).__name__}: "
                f"call it, {name}=labeler({', '.join(needed)})"
            ) from error
        got = in_place_of_labels(given, or_graph=True)
        own_hint = ": make it a Graph with rg.Graph(edge_index, num_nodes)"
        if str(error).endswith(own_hint) and given.dim() == 2 and given.shape[0] == 2:  # an edge_index, it seems
            got = f"{type(given).__name__}{own_hint}"
        why = "" if got in str(error) else f" ({error})"
        raise TypeError(f"{name} must be Labels, or what {shown(labeler)} reads, got {got}{why}") from error
    return check_made(labeler, made)


def _inputs(labeler: Any) -> list[str]:
    """The names of the inputs that a labeler must be called with, such as ``height`` and ``width``, if it has names."""
    parts = getattr(labeler, "parts", ())
    if parts:  # a composition calls all its parts alike, but makes lengths for those that read them
        found = [(_inputs(part), getattr(part, "_reads_lengths", True)) for part in parts]
        return max((names for names, lengths in found if len(names) > 1 or not lengths), key=len, default=[])
    try:
        parameters = inspect.signature(labeler).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
