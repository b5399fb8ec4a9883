"""What comes in at the attention layer's door: checked before any work is done, and with a batch axis."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.arguments.sharding import check_local
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels
from relgraph.labels.distance import check_offset
from relgraph.nn.cache import KVCache
from relgraph.nn.masks import check_padding, check_pairs
from relgraph.nn.tables import RelationTables


class Widths(NamedTuple):
    """What the layer expects: the last axis of each input, its heads and one of its parameters."""

    embed_dim: int
    kdim: int
    vdim: int
    num_heads: int
    parameter: Tensor


class Inputs(NamedTuple):
    """Checked inputs.

    Attributes:
        query: ``[B, N_q, E]`` or ``[N_q, E]``.
        key: ``[B, n, kdim]`` or ``[n, kdim]``, the keys to project; None when a static cache holds them.
        value: likewise, ``vdim`` wide.
        padding: ``[B, n]``, of the keys to project (of all keys when a static cache holds them), or None.
        pairs: ``[B or 1, H or 1, N_q, N_k]``, or None.
        q_offset: the key position of query row 0, as ``functional`` wants it.
        alone: whether the input came without a batch axis.
        packed: whether it is a packed batch.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    padding: Tensor | None
    pairs: Tensor | None
    q_offset: int | Tensor | None
    alone: bool
    packed: bool


def check_inputs(
    widths: Widths,
    tables: RelationTables | None,
    query: Any,
    key: Any,
    value: Any,
    labels: Any,
    key_padding_mask: Any,
    attn_mask: Any,
    q_offset: Any,
    cache: Any,
) -> Inputs:
    """All that ``RelationAttention`` is called with, apart from its flags.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: shapes, dtypes, devices or values that do not fit.
        NotImplementedError: a cache beside packed labels.
    """
    if cache is not None and not isinstance(cache, KVCache):
        raise TypeError(f"cache must be a KVCache or None, got {type(cache).__name__}")
    packed = isinstance(labels, Labels) and labels.packed
    if packed and cache is not None:
        raise NotImplementedError("a cache holds one sequence a batch row: labels must not be packed beside it")
    held = cache if cache is not None and cache.static and len(cache) > 0 else None
    if held is None:
        key, value = _default_memory(query, key, value, cache)
    elif key is not None and value is None:
        value = key
    _check_tensors(widths, query, key, value, packed)
    alone = query.dim() == 2
    batch, q_len = 1 if alone else query.shape[0], query.shape[-2]
    past = 0 if cache is None else len(cache)
    if held is not None:
        _check_held(held, key, batch)
        key = value = None
        new = k_len = past
    else:
        new = check.tensor("key", key).shape[-2]
        k_len = past + new
        if cache is not None:
            cache.check(batch, new)
    _check_labels(labels, tables, batch, q_len, k_len)
    padding = check_padding(key_padding_mask, batch, new, alone=alone)
    pairs = check_pairs(attn_mask, batch, widths.num_heads, q_len, k_len, alone=alone)
    check.same_device(query=query, key_padding_mask=padding, attn_mask=pairs)
    q_offset = _check_position(q_offset, labels, cache)
    return Inputs(query, key, value, padding, pairs, q_offset, alone, packed)


def _default_memory(query: Any, key: Any, value: Any, cache: KVCache | None) -> tuple[Any, Any]:
    if key is None and value is not None:
        raise ValueError("key must be given beside value, got None")
    if cache is not None and cache.static and key is None:
        raise ValueError("key must be given to fill the static cache, got None")
    if cache is not None and not cache.static and key is not None and key is not query:
        raise ValueError("cache must be static where the keys are not the queries, got one that grows")
    key = query if key is None else key
    return key, key if value is None else value


def _check_tensors(widths: Widths, query: Any, key: Any, value: Any, packed: bool) -> None:
    named: dict[str, Any] = {"query": query, "key": key, "value": value}
    given: dict[str, Any] = {name: x for name, x in named.items() if x is not None or name == "query"}
    sizes = {"query": widths.embed_dim, "key": widths.kdim, "value": widths.vdim}
    names = {"query": "embed_dim", "key": "kdim", "value": "vdim"}
    weight = widths.parameter
    for name, x in given.items():
        check.tensor(name, x)
        check_local(**{name: x})
        if x.dim() != 2 and (packed or x.dim() != 3):
            shape = "[T, E], as the labels are packed" if packed else "[B, N, E] or [N, E]"
            raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}")
        if x.dim() != query.dim() or (x.dim() == 3 and x.shape[0] != query.shape[0]):
            raise ValueError(f"{name} must share its batch axis with query, {list(query.shape)}, got {list(x.shape)}")
        if x.shape[-1] != sizes[name]:
            raise ValueError(f"{name} must end in {names[name]} = {sizes[name]}, got {list(x.shape)}")
        if x.dtype != weight.dtype and (not x.is_floating_point() or check.autocast_dtype(x.device.type) is None):
            raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {x.dtype}")
    if key is not None and value.shape[:-1] != key.shape[:-1]:
        raise ValueError(f"value must have the length of key, {key.shape[-2]}, got {value.shape[-2]}")
    check.same_device(**{"the layer": weight}, **given)


def _check_held(cache: KVCache, key: Tensor | None, batch: int) -> None:
    cache.check(batch, 0)
    if key is not None and key.shape[-2] != len(cache):
        raise ValueError(
            f"key must have the length of the memory that the static cache holds, {len(cache)}, got {key.shape[-2]}: "
            "reset the cache for another memory"
        )


def _check_labels(labels: Any, tables: RelationTables | None, batch: int, q_len: int, k_len: int) -> None:
    if labels is None:
        if tables is not None:
            raise ValueError(f"labels must be given, as the layer has tables for {tables.num_labels}, got None")
        return
    if isinstance(labels, Tensor):
        check.integer_tensor("labels", labels, dim=(2, 3))
        if tables is None or isinstance(tables.num_labels, tuple):
            raise ValueError(
                "labels must be Labels where the layer has no tables or those of a sum, got a Tensor: make "
                "rg.DenseLabels(ids, num_labels) of it, with num_labels=0 where it only says who attends"
            )
        shapes = ([q_len, k_len], [batch, q_len, k_len], [1, q_len, k_len])
        if not check.shaped(labels, *shapes):
            raise ValueError(
                f"labels must have shape [N_q, N_k] = {shapes[0]} or [B, N_q, N_k] = {shapes[1]}, "
                f"got {list(labels.shape)}"
            )
        return
    if not isinstance(labels, Labels):
        raise TypeError(f"labels must be Labels, an integer Tensor or None, got {in_place_of_labels(labels)}")
    if tables is None:
        check_without_tables("labels", labels, "num_labels")
    elif not tables.fits(labels.num_labels):
        raise ValueError(f"labels must have num_labels = {tables.num_labels}, got {labels.num_labels}")
    if (labels.q_len, labels.k_len) != (q_len, k_len):
        raise ValueError(f"labels must cover [N_q, N_k] = [{q_len}, {k_len}], got [{labels.q_len}, {labels.k_len}]")
    if not check.among(labels.batch_size, 1, batch):
        raise ValueError(f"labels must have batch_size 1 or {batch}, got {labels.batch_size}")


def check_without_tables(name: str, labels: Labels, option: str) -> None:
    """Labels for a layer without tables say who attends: an id that a pair carries would not be looked up anywhere.

    Args:
        name: the argument.
        labels: what was given for it.
        option: the layer's argument that gives it tables.

    Raises:
        ValueError: a pair carries a label, or may carry one: ids that are written out with ``num_labels`` above 0 are
            looked at in eager mode on a CPU only.
    """
    if not _say_who_attends(labels):
        raise ValueError(
            f"{name} must say who attends and carry no ids for a layer without tables, which would ignore them: give "
            f"the layer {option}={labels.num_labels}, or make the labels with num_labels=0, got {labels!r}"
        )


def _say_who_attends(labels: Labels) -> bool:
    """Whether no pair is known to carry a label."""
    if isinstance(labels, SumLabels):
        return all(_say_who_attends(part) for part in labels.parts)
    if labels.num_labels == 0:
        return True
    if isinstance(labels, DistanceLabels):
        return max(labels.lookup) < 0
    if isinstance(labels, EdgeLabels) and labels.default is not None:
        default = labels.default
        if not (_say_who_attends(default) if isinstance(default, Labels) else default < 0):
            return False
    assert isinstance(labels, (BlockLabels, DenseLabels, EdgeLabels))
    ids = labels.ids
    if ids.numel() == 0:
        return True
    return ids.device.type == "cpu" and check.can_look_at_data(ids) and bool((ids < 0).all())


def _check_position(q_offset: Any, labels: Any, cache: KVCache | None) -> int | Tensor | None:
    """Where query row 0 stands: a cache that grows says it, and distance labels must agree with it."""
    check_offset(q_offset)
    if cache is None or cache.static:
        return q_offset
    if q_offset is not None:
        raise ValueError("q_offset must be left out with a cache that grows, which sets it")
    offsets = [labels.q_offset for labels in _distance_labels(labels)]
    if any(isinstance(offset, Tensor) for offset in offsets):
        return None
    for offset in offsets:
        if (0 if offset is None else offset) != len(cache):
            raise ValueError(
                f"labels must be built with q_offset = {len(cache)}, the number of keys in the cache, got {offset}"
            )
    return len(cache)


def _distance_labels(labels: Any) -> list[DistanceLabels]:
    """The labels by distance within ``labels``."""
    if isinstance(labels, SumLabels):
        return [found for part in labels.parts for found in _distance_labels(part)]
    if isinstance(labels, EdgeLabels):
        return _distance_labels(labels.default)
    return [labels] if isinstance(labels, DistanceLabels) else []
