"""The one check of all arguments of an attention call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.arguments.sharding import check_context, check_local
from relgraph.functional.biases import with_query_biases
from relgraph.functional.offset import offset_of, sees_all_keys
from relgraph.functional.region import Drawn
from relgraph.functional.vectors import check_vectors
from relgraph.impl.call import Call, Tables, ValueMap, accumulation_dtype
from relgraph.labels import DenseLabels, Labels, SumLabels
from relgraph.plan import LabelPlan, lower, plain
from relgraph.score import Additive, Bilinear, Named, applied

LabelsLike = Labels | Tensor | None
"""Labels, raw ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``, or None for plain attention."""

Table = Tensor | Sequence[Tensor | None] | None
"""A table, or one per part when the labels are a sum."""

Maps = Tensor | tuple[Tensor, Tensor]
"""A map for each label, or coefficients and bases of the maps."""

OWN_DROPOUT = Drawn()
"""Dropout of a call that is not a part of a larger one."""

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
    need_weights: Any = False,
    need_mass: Any = False,
    score: Any = None,
    row_scores: Any = None,
    value_map: Any = None,
    edge: tuple[Any, Any, Any] = (None, None, None),
    nodes: bool = False,
    query_biases: tuple[Any, Any] = (None, None),
    drawn: Drawn = OWN_DROPOUT,
) -> tuple[Call, bool]:
    """The checked call, and whether its inputs are packed; ``nodes`` is True if they come from a graph layer."""
    check_labels_type(labels)
    check_context()
    packed = isinstance(labels, Labels) and labels.packed
    layout = _NODES if nodes else _PACKED if packed else _BATCHED
    query, key, value = _check_inputs(query, key, value, layout, check.boolean("enable_gqa", enable_gqa))
    labels, given = _check_labels(labels, query, key, tables)
    plan = plain(query.shape[2], key.shape[2]) if labels is None else lower(labels)
    is_sum = isinstance(labels, SumLabels)
    checked = _check_tables(given, plan, query, value, is_sum, batched=layout is _BATCHED)
    checked = _with_row_scores(row_scores, checked, plan, query, packed, is_sum)
    check_score(score, query, plan, checked)
    maps = _check_value_map(value_map, plan, query, value)
    mask = _check_mask(attn_mask, query, key, packed)
    check.boolean("is_causal", is_causal)
    offset = offset_of(q_offset, labels, plan, is_causal, query)
    is_causal = is_causal and not sees_all_keys(offset, plan)
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] and not isinstance(score, Additive) else 1.0
    scale = check.finite("scale", scale)
    dropout_p = check.probability("dropout_p", dropout_p)
    vectors = check_vectors(*edge, labels, query, value)
    check.boolean("need_weights", need_weights)
    if check.boolean("need_label_mass", need_mass) and labels is None:
        raise ValueError("need_label_mass must be False when labels is None: there is no label to receive attention")
    query, checked = with_query_biases(*query_biases, query, checked, scale, score, vectors)
    call = Call(
        query, key, value, plan, checked, scale, mask, is_causal, offset, dropout_p, None, need_weights, need_mass,
        score, maps, vectors,
    )  # fmt: skip
    if drawn.seed is not None:
        call = replace(call, dropout_seed=drawn.seed, dropout_origin=(drawn.batch, drawn.head, 0, 0))
    return call, packed


class _Layout(NamedTuple):
    """The axes of inputs: how many, and their names."""

    dims: int
    shape: str


_BATCHED = _Layout(4, "[B, H, N, D]")
_PACKED = _Layout(3, "[T, H, D], as the labels are packed")
_NODES = _Layout(3, "[N, H, D]")


def _check_inputs(query: Any, key: Any, value: Any, layout: _Layout, gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The checked inputs, ``[B, H, N, D]`` whatever their layout was."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        check.floating(name, x)
        if x.dim() != layout.dims:
            hint = "; [T, H, D] is for labels with ptr, a packed batch" if (x.dim(), layout.dims) == (3, 4) else ""
            raise ValueError(f"{name} must have shape {layout.shape}, got {list(x.shape)}{hint}")
    check_local(**named)
    check.same_device(**named)
    dtype = check.autocast_dtype(query.device.type)
    if dtype is not None:
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if layout.dims == 3:
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    q, k, v = query.shape, key.shape, value.shape
    if q[0] != k[0] or q[0] != v[0]:
        raise ValueError(f"query, key and value must share their batch size, got {q[0]}, {k[0]} and {v[0]}")
    if q[-1] != k[-1]:
        raise ValueError(f"key must have the head size of query, {q[-1]}, got {k[-1]}")
    if k[1:3] != v[1:3]:
        raise ValueError(f"value must have the heads and length of key, {list(k[1:3])}, got {list(v[1:3])}")
    heads, kv_heads = q[1], k[1]
    if heads != kv_heads and (not gqa or kv_heads == 0 or heads % kv_heads):
        wanted = f"a divisor of the {heads} query heads" if gqa else f"{heads} heads like query (see enable_gqa)"
        raise ValueError(f"key must have {wanted}, got {kv_heads}")
    return query, key, value


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
        labels = labels_from_ids(labels, tables)
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


def labels_from_ids(ids: Tensor, tables: tuple[Any, ...]) -> Labels:
    """Labels from raw ids, with as many labels as the tables have rows."""
    for name, table, dim in zip(_KINDS, tables, (-2, -2, -2, -1), strict=True):
        if isinstance(table, Tensor) and check.tensor(name, table).dim() >= -dim:
            return DenseLabels._trusted(ids, table.shape[dim])
    raise ValueError("labels given as a Tensor need a table, whose rows give R, got none: build DenseLabels")


def _check_tables(
    given: Sequence[Any], plan: LabelPlan, query: Tensor, value: Tensor, is_sum: bool, *, batched: bool
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
            row = [part.num_labels] if width is None else [part.num_labels, width]
            _check_table(shown, table, row, query, batched=batched)
        by_kind.append(tuple(tables))
    return tuple(Tables(*of_part) for of_part in zip(*by_kind, strict=True))


def _check_table(name: str, table: Any, row: list[int], query: Tensor, *, batched: bool) -> None:
    """Raise unless this is a table of these rows, or one per head or, if inputs have a batch axis, per batch row."""
    if table is None:
        return
    check.tensor(name, table)
    batch, heads = query.shape[:2]
    axes = "R" if len(row) == 1 else "R, D"
    if table.dim() == len(row) + 2 and not batched:
        wanted = f"[{axes}] or [H, {axes}] = {row} or {[heads, *row]}"
        raise ValueError(f"{name} must have shape {wanted}, as inputs have no batch axis, got {list(table.shape)}")
    if table.dim() == len(row) + 2 and not check.shaped(table, [batch, 1, *row], [batch, heads, *row]):
        wanted = f"[B, 1, {axes}] or [B, H, {axes}] = {[batch, 1, *row]} or {[batch, heads, *row]}"
        raise ValueError(f"{name} must have shape {wanted}, got {list(table.shape)}")
    if table.dim() != len(row) + 2 and not check.shaped(table, row, [heads, *row]):
        wanted = f"[{axes}] or [H, {axes}] = {row} or {[heads, *row]}"
        raise ValueError(f"{name} must have shape {wanted}, got {list(table.shape)}")
    check.floating_dtype(name, table)
    if table.dtype != query.dtype and check.autocast_dtype(query.device.type) is None:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {table.dtype}")
    check_local(**{name: table})
    check.same_device(query=query, **{name: table})


def _with_row_scores(
    given: Any, tables: tuple[Tables, ...], plan: LabelPlan, query: Tensor, packed: bool, is_sum: bool
) -> tuple[Tables, ...]:
    """The tables with scores given by row."""
    if given is None:
        return tables
    if plan.total_labels == 0:
        raise ValueError("row_scores must be None without labels: no pair carries a label to look up")
    each = given if is_sum else (given,)
    if not isinstance(each, (tuple, list)) or len(each) != len(plan.parts):
        got = f"{len(each)}" if isinstance(each, (tuple, list)) else type(each).__name__
        raise ValueError(f"row_scores must be a tuple of {len(plan.parts)} tensors, one per part of the sum, got {got}")
    found = []
    for index, (rows, table, part) in enumerate(zip(each, tables, plan.parts, strict=True)):
        name = f"row_scores[{index}]" if is_sum else "row_scores"
        if rows is None:
            found.append(table)
            continue
        if table.key is not None:
            raise ValueError(f"{name} must be None with a key_table, which would give the same term again")
        batch, heads, q_len = query.shape[:3]
        wanted = [q_len, heads, part.num_labels] if packed else [batch, heads, q_len, part.num_labels]
        if not check.shaped(check.floating(name, rows), wanted):
            what = "[T_q, H, R]" if packed else "[B, H, N_q, R]"
            raise ValueError(f"{name} must have shape {what} = {wanted}, got {list(rows.shape)}")
        check_local(**{name: rows})
        check.same_device(query=query, **{name: rows})
        found.append(table._replace(rows=rows.transpose(0, 1)[None] if packed else rows))
    return tuple(found)


def check_score(score: Any, query: Tensor, plan: LabelPlan, tables: tuple[Tables, ...]) -> None:
    """Raise unless ``score`` is one that fits query, labels and tables."""
    check_score_type(score)
    if not isinstance(score, (Additive, Bilinear)):
        if score is not None and not isinstance(score, Named):
            _check_function("score", score, query)
        return
    heads, size = query.shape[1], query.shape[-1]
    if isinstance(score, Additive):
        if not isinstance(score.activation, str):
            _check_function("activation", score.activation, query)
        if any(table.query is not None for table in tables):
            raise ValueError("query_table must be None with score=Additive: a^Q would add to a^K before the activation")
        weight = check_score_weight(score, heads, size, None)
    else:
        _check_one_label("score=Bilinear", plan)
        weight = check_score_weight(score, heads, size, plan.num_labels[0])
    check_local(**{"score.weight": weight})
    check.same_device(query=query, **{"score.weight": weight})


def _check_function(name: str, function: Any, query: Tensor) -> None:
    """Raise unless a function keeps shape and dtype, gives the same result each time, and torch can differentiate it.

    Backward computes blocks again, so the function must give the same result each time. Blocks hold any rows and keys,
    so it must act on each number by itself. Blocks compute with copies of the parameters, and find them only in a
    module, so a plain function may not hold tensors that learn.
    """
    device, like = query.device.type, accumulation_dtype(query.dtype)
    few = torch.linspace(-2.0, 2.0, 256, dtype=like, device=query.device).view(1, 1, 16, 16)
    few = few + few.square() / 8  # uneven steps, so that the mean of some numbers differs from the mean of all
    as_computed = torch.autocast(device, enabled=False) if check.has_autocast(device) else nullcontext()
    with as_computed:
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or peek_interpreter_stack() is not None:
            applied(function, few, name)  # nothing can be differentiated here
            return
        with torch.enable_grad():
            given = few.clone()
            first = applied(function, given, name)
            if few.device.type != "meta" and not torch.equal(given, few):
                raise ValueError(f"{name} must leave its input as it is, got a function that changes it in place")
            if not isinstance(function, nn.Module) and first.requires_grad:
                raise ValueError(
                    f"{name} must be an nn.Module if it learns: its parameters are known, "
                    "got a function that holds a tensor with a gradient"
                )
            again = applied(function, given.requires_grad_(), name)
            turned = applied(function, _turned(few), name)  # fewer numbers, in another order
        if few.device.type == "meta":
            return
        if not torch.equal(first.detach().nan_to_num(), again.detach().nan_to_num()):
            raise ValueError(f"{name} must repeat itself, as it is computed again in backward, got a random function")
        if not _close(turned, _turned(first)):
            raise ValueError(
                f"{name} must act on each number by itself, got a function that mixes them or knows their place"
            )


def _turned(numbers: Tensor) -> Tensor:
    """The inner rows and columns of a square of numbers, the last ones first."""
    return numbers.detach().flip(-1, -2)[..., 1:-2, 1:-2].contiguous()


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are the same up to rounding, which may depend on their position."""
    near = 1e3 * torch.finfo(one.dtype).eps
    return torch.allclose(one.detach(), other.detach(), near, near, equal_nan=True)


def check_score_type(score: Any) -> None:
    """Raise TypeError unless ``score`` is None, one of ``relgraph.score`` or a function."""
    if score is not None and (isinstance(score, type) or not callable(score)):
        got = f"the class {score.__name__}" if isinstance(score, type) else type(score).__name__
        raise TypeError(f"score must be one of relgraph.score, a function of scores or None, got {got}")


def check_score_weight(score: Additive | Bilinear, heads: int, size: int, num_labels: int | None) -> Tensor:
    """Return the weight of ``score``; raise unless it is for these heads of this size and, if bilinear, labels."""
    weight = check.floating("score.weight", score.weight)
    one, what = [size], "[D] or [H, D]"
    if isinstance(score, Bilinear):
        one, what = [num_labels, size, size], "[R, D, D] or [H, R, D, D]"
    if not check.shaped(weight, one, [heads, *one]):
        raise ValueError(f"score.weight must have shape {what} = {one} or {[heads, *one]}, got {list(weight.shape)}")
    return weight


def _check_value_map(given: Any, plan: LabelPlan, query: Tensor, value: Tensor) -> ValueMap | None:
    if given is None:
        return None
    if isinstance(given, Tensor):
        maps = ValueMap(None, given)
    elif isinstance(given, (tuple, list)) and len(given) == 2:
        maps = ValueMap(*given)
    else:
        what = f"{len(given)} of them" if isinstance(given, (tuple, list)) else type(given).__name__
        raise TypeError(f"value_map must be a tensor or a pair (coefficients, bases), got {what}")
    _check_one_label("value_map", plan)
    heads, labels, size = query.shape[1], plan.num_labels[0], value.shape[-1]
    bases = check.floating("value_map", maps.bases)
    count = labels if maps.coefficients is None else bases.shape[-3] if bases.dim() > 2 else 0
    one = [count, size, size]
    if not check.shaped(bases, one, [heads, *one]):
        what = "[R, D_v, D_v]" if maps.coefficients is None else "bases [K, D_v, D_v]"
        raise ValueError(
            f"value_map must have shape {what} = {one}, or that with the {heads} heads first, got {list(bases.shape)}"
        )
    wanted = [labels, count]
    if maps.coefficients is not None:
        coefficients = check.floating("value_map", maps.coefficients)
        if not check.shaped(coefficients, wanted, [heads, *wanted]):
            raise ValueError(
                f"value_map must have coefficients [R, K] or [H, R, K] = {wanted} or {[heads, *wanted]}, "
                f"got {list(coefficients.shape)}"
            )
    for x in (x for x in maps if x is not None):
        check_local(value_map=x)
        check.same_device(query=query, value_map=x)
    return maps


def _check_one_label(what: str, plan: LabelPlan) -> None:
    """Raise unless every pair carries one label at most: a map is for one label."""
    part = plan.parts[0]
    if plan.total_labels == 0:
        raise ValueError(f"{what} needs labels, got None: no pair carries a label to look up")
    if len(plan.parts) > 1:
        raise NotImplementedError(f"{what} needs one label per pair, got a sum of {len(plan.parts)} labels")
    if part.csr is not None and part.csr.parallel and not part.edges_only:
        raise NotImplementedError(f"{what} needs one label per pair, got edges with duplicates='sum'")


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
