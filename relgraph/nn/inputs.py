"""The inputs of the attention layer: check them before any work is done, and add a batch axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.check import FLOATING_DTYPES, PLAIN
from relgraph.arguments.sharding import check_layer_input
from relgraph.call import check_labels_fit, check_labels_type
from relgraph.call.offset import offsets_of
from relgraph.functional.region import active
from relgraph.labels import Labels
from relgraph.labels.distance import check_offset
from relgraph.labels.naming import KINDS
from relgraph.nn.cache import KVCache, labels_of_new_rows
from relgraph.nn.masks import check_padding, check_pairs
from relgraph.nn.tables import RelationTables


class Names(NamedTuple):
    """What errors call the arguments of an attention: a layer around it has other names for some of them."""

    query: str = "query"
    key: str = "key"
    value: str = "value"
    labels: str = "labels"
    key_padding_mask: str = "key_padding_mask"
    attn_mask: str = "attn_mask"
    edge_attr: str = "edge_attr"
    is_causal: str = "is_causal"
    width: str = ""  # what the layer calls the width of all inputs, if not embed_dim, kdim and vdim


class Inputs(NamedTuple):
    """Checked inputs; ``key`` and ``value`` are None when a static cache holds them."""

    query: Tensor  # [B, N_q, E] or [N_q, E]
    key: Tensor | None  # [B, n, kdim] or [n, kdim], the keys to project
    value: Tensor | None  # [B, n, vdim] or [n, vdim]
    labels: Labels | Tensor | None  # of N_q queries and N_k keys
    padding: Tensor | None  # [B, n], of all keys when a static cache holds them
    pairs: Tensor | None  # [B or 1, H or 1, N_q, N_k]
    q_offset: int | Tensor | None
    unbatched: bool  # no batch axis
    packed: bool
    positions: Tensor | None = None  # [N] or [B, N], for rotary positions


def check_inputs(
    layer: Any, query: Any, key: Any, value: Any, labels: Any, padding: Any, attn_mask: Any, q_offset: Any, cache: Any,
    is_causal: Any,
) -> Inputs:  # fmt: skip
    """Check the arguments of ``forward`` of a RelationAttention, apart from other flags."""
    names: Names = layer._names
    if cache is not None and not isinstance(cache, KVCache):
        raise TypeError(f"cache must be a KVCache or None, got {type(cache).__name__}")
    region = active()
    if cache is not None and region is not None:
        raise NotImplementedError("cache must be None within context_parallel, where each process holds some rows only")
    packed = type(labels) in KINDS and labels.k_ptr is not None
    if packed and cache is not None:
        raise NotImplementedError(
            f"{names.labels} must not be packed with a cache, which holds one sequence per batch row"
        )
    filled = cache if cache is not None and cache.static and len(cache) > 0 else None
    if filled is None:
        key, value = _default_memory(query, key, value, cache, names)
    elif key is not None and value is None:
        value = key
    _check_tensors(layer, query, key, value, packed, names)
    unbatched = query.dim() == 2
    batch, q_len = 1 if unbatched else query.shape[0], query.shape[-2]
    past = 0 if cache is None else len(cache)
    if filled is not None:
        _check_memory(filled, key, batch, names)
        key = value = None
        new = k_len = past
    else:
        assert key is not None and value is not None  # by _default_memory
        new = key.shape[-2]
        k_len = past + new
        if cache is not None:
            cache._check_room(batch, new)
            labels = labels if cache.static else labels_of_new_rows(labels, past, new)
    rows, all_keys = q_len, k_len
    if region is not None:
        all_queries, all_keys = region.whole_length(q_len), region.whole_length(k_len)  # of all processes
        rows = q_len if _rows_of_one(labels, names.labels, q_len, all_queries) else all_queries
    _check_labels(labels, names, layer.tables, batch, rows, all_keys, query)
    padding = check_padding(padding, batch, new, unbatched=unbatched, name=names.key_padding_mask)
    pairs = check_pairs(attn_mask, batch, layer.num_heads, q_len, all_keys, unbatched=unbatched, name=names.attn_mask)
    if padding is not None or pairs is not None:
        check.same_device(**{names.query: query, names.key_padding_mask: padding, names.attn_mask: pairs})
    q_offset = _check_position(q_offset, labels, names, cache, new, is_causal)
    return Inputs(query, key, value, labels, padding, pairs, q_offset, unbatched, packed)


def _rows_of_one(labels: Any, name: str, q_len: int, all_queries: int) -> bool:
    """Whether labels cover only the rows of this process, not those that all processes hold."""
    if q_len == all_queries:
        return False
    if isinstance(labels, Tensor):
        return check.tensor(name, labels).dim() > 1 and labels.shape[-2] == q_len
    return isinstance(labels, Labels) and labels.q_len == q_len


def _default_memory(query: Any, key: Any, value: Any, cache: KVCache | None, names: Names) -> tuple[Any, Any]:
    if key is None and value is not None:
        raise ValueError(f"{names.key} must be given with {names.value}, got None")
    if cache is not None and cache.static and key is None:
        raise ValueError(f"{names.key} must be given to fill the static cache, got None")
    if cache is not None and not cache.static and key is not None and key is not query:
        raise ValueError(f"cache must be static when {names.key} is not {names.query}, got one that grows")
    key = query if key is None else key
    return key, key if value is None else value


def _check_tensors(layer: Any, query: Any, key: Any, value: Any, packed: bool, names: Names) -> None:
    given: dict[str, Any] = {"query": query}
    if key is not None:
        given["key"] = key
    if value is not None:
        given["value"] = value
    sizes = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
    weight = layer._first_weight
    for argument, x in given.items():
        if x is query and argument != "query" and sizes[argument] == sizes["query"]:
            continue
        name = getattr(names, argument)
        if type(x) not in PLAIN or x.layout != torch.strided or x.is_nested or x.dtype not in FLOATING_DTYPES:
            check.tensor(name, x)
            check_layer_input(name, x, weight)
        if x.dim() != 2 and (packed or x.dim() != 3):
            shape = f"[T, E], as the {names.labels} are packed" if packed else "[B, N, E] or [N, E]"
            padded = packed and x is query and x.dim() == 3
            hint = f"; rg.labels.padded({names.labels}) makes those of a padded batch" if padded else ""
            raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}{hint}")
        if x.dim() != query.dim() or (x.dim() == 3 and x.shape[0] != query.shape[0]):
            raise ValueError(
                f"{name} must share its batch axis with {names.query}, {list(query.shape)}, got {list(x.shape)}"
            )
        if x.shape[-1] != sizes[argument]:
            width = names.width or {"query": "embed_dim", "key": "kdim", "value": "vdim"}[argument]
            raise ValueError(f"{name} must end in {width} = {sizes[argument]}, got {list(x.shape)}")
        if x.dtype != weight.dtype and (not x.is_floating_point() or check.autocast_dtype(x.device.type) is None):
            raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {x.dtype}")
        if x.device != weight.device:
            raise ValueError(f"{name} must be on the device of the layer, {weight.device}, got {x.device}")
    if key is not None and value is not None and value.shape[:-1] != key.shape[:-1]:
        raise ValueError(f"{names.value} must have the length of {names.key}, {key.shape[-2]}, got {value.shape[-2]}")


def _check_memory(cache: KVCache, key: Tensor | None, batch: int, names: Names) -> None:
    cache._check_room(batch, 0)
    if key is not None and key.shape[-2] != len(cache):
        raise ValueError(
            f"{names.key} must have the length of the memory that the static cache holds, {len(cache)}, got "
            f"{key.shape[-2]}: reset the cache for another memory"
        )


def _check_labels(
    labels: Any, names: Names, tables: RelationTables | None, batch: int, q_len: int, k_len: int, query: Tensor
) -> None:
    name = names.labels
    if type(labels) not in KINDS:
        check_labels_type(labels, name)
    if labels is None:
        if tables is not None:
            raise ValueError(f"{name} must be given, as the layer has tables for {tables.num_labels}, got None")
        return
    if isinstance(labels, Tensor):
        if tables is None or isinstance(tables.num_labels, tuple):
            raise ValueError(
                f"{name} must be Labels if the layer has no tables, or tables for a sum, got a Tensor: pass "
                "rg.DenseLabels(ids, num_labels), with num_labels=0 if they only say who attends"
            )
    elif tables is None:
        check_without_tables(name, labels, f"give the layer num_labels={labels.num_labels}")
    elif tables.num_labels != labels.num_labels and not tables._fits(labels.num_labels):
        raise ValueError(f"{name} must have num_labels = {tables.num_labels}, got {labels.num_labels}")
    elif labels._named is not None and not torch.compiler.is_compiling():
        tables._check_names(name, labels)
    check_labels_fit(labels, batch, q_len, k_len, query.device, name, names.query)


def check_without_tables(name: str, labels: Labels, remedy: str) -> None:
    """Raise ValueError if a pair has an id, which a layer without tables ignores; ``remedy`` would give it tables."""
    if not labels._carries_no_ids():
        raise ValueError(
            f"{name} must say who attends and carry no ids for a layer without tables, which would ignore them: "
            f"{remedy}, or make the labels with num_labels=0, got {labels!r}"
        )


def _check_position(
    q_offset: Any, labels: Any, names: Names, cache: KVCache | None, new: int, is_causal: Any
) -> int | Tensor | None:
    """The key position of query row 0. A growing cache sets it; distance labels must agree, and rows be in order."""
    if q_offset is not None:
        check_offset(q_offset)
    if cache is None or cache.static:
        return q_offset
    if q_offset is not None:
        raise ValueError("q_offset must be left out with a cache that grows, which sets it")
    offsets = offsets_of(labels)
    for offset in offsets:
        if not isinstance(offset, Tensor) and (0 if offset is None else offset) != len(cache):
            raise ValueError(
                f"{names.labels} must be built with q_offset = {len(cache)}, the number of keys in the cache, got "
                f"{offset}"
            )
    # a row would see later ones only if they came in the same call, not as in one pass over all
    ordered = is_causal or (isinstance(labels, Labels) and labels._keeps_order())
    if not ordered and len(cache) + new > 1:
        kind = "no labels" if labels is None else type(labels).__name__
        raise ValueError(
            f"{names.is_causal} must be True with a cache that grows, or {names.labels} by distance must keep rows "
            f"from later ones, as rg.Window(n, 0) does, got {new} rows after {len(cache)} with "
            f"{names.is_causal}=False and {kind}"
        )
    return None if any(isinstance(offset, Tensor) for offset in offsets) else len(cache)
