"""The one check of all arguments of an attention call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.arguments.sharding import check_context, check_local
from relgraph.functional.offset import offset_of, sees_all_keys
from relgraph.impl.call import Call, Tables
from relgraph.labels import DenseLabels, Labels, SumLabels
from relgraph.plan import LabelPlan, lower, plain

LabelsLike = Labels | Tensor | None
"""Labels, raw ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``, or None for plain attention."""

Table = Tensor | Sequence[Tensor | None] | None
"""A table, or one per part when the labels are a sum."""

_KINDS = ("key_table", "value_table", "query_table", "bias_table")


def check_call(
    query: Any,
    key: Any,
    value: Any,
    labels: Any,
    tables: tuple[Any, Any, Any, Any],
    attn_mask: Any,
    is_causal: Any,
    q_offset: Any,
    dropout_p: Any,
    scale: Any,
    enable_gqa: Any,
    need_weights: bool = False,
    need_mass: bool = False,
) -> tuple[Call, bool]:
    """The checked call, and whether its inputs are packed."""
    check_labels_type(labels)
    check_context()
    query, key, value, packed = _check_inputs(query, key, value, labels, check.boolean("enable_gqa", enable_gqa))
    labels, given = _check_labels(labels, query, key, tables)
    plan = plain(query.shape[2], key.shape[2]) if labels is None else lower(labels)
    checked = _check_tables(given, plan, query, value, isinstance(labels, SumLabels))
    mask = _check_mask(attn_mask, query, key, packed)
    check.boolean("is_causal", is_causal)
    offset = offset_of(q_offset, labels, plan, is_causal, query)
    is_causal = is_causal and not sees_all_keys(offset, plan)
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    scale = check.finite("scale", scale)
    dropout_p = check.probability("dropout_p", dropout_p)
    call = Call(
        query, key, value, plan, checked, scale, mask, is_causal, offset, dropout_p, None, need_weights, need_mass
    )
    return call, packed


def _check_inputs(query: Any, key: Any, value: Any, labels: Any, gqa: bool) -> tuple[Tensor, Tensor, Tensor, bool]:
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        check.floating(name, x)
    check_local(**named)
    check.same_device(**named)
    packed = isinstance(labels, Labels) and labels.packed
    dims, shape = (3, "[T, H, D], as the labels are packed") if packed else (4, "[B, H, N, D]")
    for name, x in named.items():
        if x.dim() != dims:
            hint = "" if packed or x.dim() != 3 else "; [T, H, D] is for labels with ptr, a packed batch"
            raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}{hint}")
    dtype = check.autocast_dtype(query.device.type)
    if dtype is not None:
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if packed:
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    if query.shape[0] != key.shape[0] or query.shape[0] != value.shape[0]:
        raise ValueError(
            f"query, key and value must share their batch size, "
            f"got {query.shape[0]}, {key.shape[0]} and {value.shape[0]}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"key must have the head size of query, {query.shape[-1]}, got {key.shape[-1]}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(
            f"value must have the heads and length of key, {list(key.shape[1:3])}, got {list(value.shape[1:3])}"
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and (not gqa or kv_heads == 0 or heads % kv_heads):
        wanted = f"a divisor of the {heads} query heads" if gqa else f"{heads} heads like query (see enable_gqa)"
        raise ValueError(f"key must have {wanted}, got {kv_heads}")
    return query, key, value, packed


def _check_labels(labels: Any, query: Tensor, key: Tensor, tables: tuple[Any, ...]) -> tuple[Labels | None, list[Any]]:
    """Labels that fit the inputs, and a tuple of tables for each kind of table."""
    batch, q_len, k_len = query.shape[0], query.shape[2], key.shape[2]
    if labels is None:
        for name, table in zip(_KINDS, tables, strict=True):
            if table is not None:
                raise ValueError(f"{name} must be None when labels is None: no pair carries a label to look up")
        return None, [None] * len(tables)
    check_labels_fit(labels, batch, q_len, k_len, query.device)
    if isinstance(labels, Tensor):
        labels = _from_raw(labels, tables)
    if not isinstance(labels, SumLabels):
        return labels, [None if table is None else (table,) for table in tables]
    return labels, list(tables)


def check_labels_type(labels: Any) -> None:
    """Raise TypeError unless ``labels`` are Labels, a Tensor or None."""
    if labels is not None and not isinstance(labels, (Labels, Tensor)):
        raise TypeError(f"labels must be Labels, an integer Tensor or None, got {in_place_of_labels(labels)}")


def check_labels_fit(labels: Labels | Tensor, batch: int, q_len: int, k_len: int, device: torch.device) -> None:
    """Raise ValueError unless labels, or raw ids, are for this many batch rows, queries and keys, on this device."""
    if isinstance(labels, Tensor):
        check.tensor("labels", labels)
        check.unmapped("labels", labels)
        check_local(labels=labels)
        if labels.dtype not in check.INTEGER_DTYPES:
            raise ValueError(f"labels must have an integer dtype, got {labels.dtype}")
        if not check.shaped(labels, (q_len, k_len), (batch, q_len, k_len), (1, q_len, k_len)):
            raise ValueError(
                f"labels must have shape [N_q, N_k] = [{q_len}, {k_len}] or [{batch}, {q_len}, {k_len}], "
                f"got {list(labels.shape)}"
            )
    elif (labels.q_len, labels.k_len) != (q_len, k_len):
        raise ValueError(f"labels must cover [N_q, N_k] = [{q_len}, {k_len}], got [{labels.q_len}, {labels.k_len}]")
    elif not check.among(labels.batch_size, 1, batch):
        raise ValueError(f"labels must have batch_size 1 or {batch}, got {labels.batch_size}")
    if labels.device is not None and labels.device != device:
        raise ValueError(f"labels must be on the device of query, {device}, got {labels.device}")


def _from_raw(ids: Tensor, tables: tuple[Any, ...]) -> Labels:
    for name, table, dim in zip(_KINDS, tables, (-2, -2, -2, -1), strict=True):
        if isinstance(table, Tensor) and check.tensor(name, table).dim() >= -dim:
            return DenseLabels._trusted(ids, table.shape[dim])
    raise ValueError("labels given as a Tensor need a table, whose rows give R, got none: build DenseLabels")


def _check_tables(
    given: Sequence[Any], plan: LabelPlan, query: Tensor, value: Tensor, is_sum: bool
) -> tuple[Tables, ...]:
    widths = (query.shape[-1], value.shape[-1], query.shape[-1], None)
    by_kind: list[tuple[Tensor | None, ...]] = []
    for name, tables, width in zip(_KINDS, given, widths, strict=True):
        if tables is None:
            by_kind.append((None,) * len(plan.parts))
            continue
        if not isinstance(tables, (tuple, list)) or len(tables) != len(plan.parts):
            got = f"{len(tables)}" if isinstance(tables, (tuple, list)) else type(tables).__name__
            raise ValueError(f"{name} must be a tuple of {len(plan.parts)} tables, one per part of the sum, got {got}")
        for index, (table, part) in enumerate(zip(tables, plan.parts, strict=True)):
            shown = f"{name}[{index}]" if is_sum else name
            _check_table(shown, table, part.num_labels, width, query)
        by_kind.append(tuple(tables))
    return tuple(Tables(*of_part) for of_part in zip(*by_kind, strict=True))


def _check_table(name: str, table: Any, num_labels: int, width: int | None, query: Tensor) -> None:
    if table is None:
        return
    check.tensor(name, table)
    heads = query.shape[1]
    row = [num_labels] if width is None else [num_labels, width]
    if not check.shaped(table, row, [heads, *row]):
        what = "[R] or [H, R]" if width is None else "[R, D] or [H, R, D]"
        raise ValueError(f"{name} must have shape {what} = {row} or {[heads, *row]}, got {list(table.shape)}")
    check.floating(name, table)
    if table.dtype != query.dtype and check.autocast_dtype(query.device.type) is None:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {table.dtype}")
    check_local(**{name: table})
    check.same_device(query=query, **{name: table})


def _check_mask(mask: Any, query: Tensor, key: Tensor, packed: bool) -> Tensor | None:
    if mask is None:
        return None
    check.tensor("attn_mask", mask)
    if mask.dtype != torch.bool and mask.dtype not in check.FLOATING_DTYPES:
        raise ValueError(f"attn_mask must be bool or floating, got {mask.dtype}")
    check_local(attn_mask=mask)
    check.same_device(query=query, attn_mask=mask)
    wanted = [query.shape[0], query.shape[1], query.shape[2], key.shape[2]]
    shown = wanted[1:] if packed else wanted
    fits = mask.dim() <= len(shown) and all(
        check.among(m, 1, w) for m, w in zip(reversed(mask.shape), reversed(shown), strict=False)
    )
    if not fits:
        raise ValueError(f"attn_mask must broadcast to {shown}, got {list(mask.shape)}")
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
