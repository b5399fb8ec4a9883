"""The front door: checks the arguments once, picks one implementation, and does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph import _check
from relgraph._brief import brief_fields
from relgraph._distributed import check_context, check_local
from relgraph._hints import in_place_of_labels
from relgraph._offset import offset_of, sees_all_keys
from relgraph.impl import IMPLEMENTATIONS, choose
from relgraph.impl.common import Answer, Call, Tables
from relgraph.labels import DenseLabels, Labels, SumLabels
from relgraph.plan import LabelPlan, lower, plain

LabelsLike = Labels | Tensor | None
"""Labels, raw ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``, or None for plain attention."""

Table = Tensor | Sequence[Tensor | None] | None
"""A table, or one a part when the labels are a sum."""


class AttentionAux(NamedTuple):
    """What :func:`~relgraph.relation_attention_with_aux` gives beside the output; None where it was not asked for.

    α_ij is the attention of query i to key j, the softmax over j before dropout.

    Args:
        weights: α, ``[B, H, N_q, N_k]``; packed ``[H, T_q, T_k]``.
        label_mass: α summed over the keys with each label, ``[B, H, N_q, R]``; packed ``[T_q, H, R]``, as the queries
            came. For a sum of labels a tuple, one tensor a part. A row sums to 1 less the attention on pairs without a
            label. Layers, and :func:`~relgraph.record_attention`, give ``[H, T_q, R]`` where it is packed, and
            ``[H, N_q, R]`` without a batch.
        lse: log Σ_j exp(e_ij) of each row of scores, ``[B, H, N_q]``; packed ``[T_q, H]``. It is -inf on a row that
            sees nothing, and NaN, as its output, on a row with a score of NaN or +inf.

    Source: relgraph's own; ``lse`` as Dao 2023 (FlashAttention-2) keeps it.

    Example:
        >>> x, labels = torch.randn(1, 2, 4, 8), rg.ClippedDistance(1)(4)
        >>> _, aux = rg.relation_attention_with_aux(x, x, x, labels, need_weights=True, need_label_mass=True)
        >>> aux.weights.shape, aux.label_mass.shape, aux.lse
        (torch.Size([1, 2, 4, 4]), torch.Size([1, 2, 4, 3]), None)
    """

    weights: Tensor | None = None
    label_mass: Tensor | tuple[Tensor, ...] | None = None
    lse: Tensor | None = None

    def __repr__(self) -> str:
        return brief_fields(self, *self._fields)


def relation_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: LabelsLike,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    q_offset: int | Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    impl: str | None = None,
) -> Tensor:
    """Attention over a labeled graph: scores and values carry a vector for each pair's label.

    The output z_i of query i, which receives, over the keys j, which are looked at, with l_ij the label of the pair::

        e_ij = (q_i·(k_j + a^K[l_ij]) + k_j·a^Q[l_ij]) · scale + b[l_ij]
        α_i  = softmax_j(e_ij)
        z_i  = Σ_j α_ij (v_j + a^V[l_ij])

    A pair without a label (id -1) attends with q_i·k_j and v_j alone. A row that may look at nothing gives zeros.
    Masks, scale and grouped heads are those of :func:`~torch.nn.functional.scaled_dot_product_attention`. Scores and
    sums are computed in float32 at least.

    Source: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", eqs. 3-5; a^Q as in
    He et al. 2021 (DeBERTa) and Park et al. 2022 (GRPE); b as in Raffel et al. 2020 (T5) and Ying et al. 2021
    (Graphormer).

    Args:
        query: ``[B, H, N_q, D]``, floating. Packed (labels with ``ptr``): ``[T_q, H, D]``.
        key: ``[B, H_kv, N_k, D]``, dtype and device of ``query``; packed ``[T_k, H_kv, D]``.
        value: ``[B, H_kv, N_k, D_v]``, likewise; packed ``[T_k, H_kv, D_v]``.
        labels: which label every pair carries: :class:`~relgraph.Labels`; ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``,
            integers in ``[-1, R)`` (checked in eager mode on a CPU only), with a table beside them that tells R; or
            None for plain attention, without any table.
        key_table: a^K, ``[R, D]`` shared by the heads or ``[H, R, D]``; None for no such term. For a sum of labels a
            tuple, one table (or None) a part; so for the other tables.
        value_table: a^V, ``[R, D_v]`` or ``[H, R, D_v]``.
        query_table: a^Q, ``[R, D]`` or ``[H, R, D]``.
        bias_table: b, ``[R]`` or ``[H, R]``, added after scaling.
        attn_mask: broadcasts to ``[B, H, N_q, N_k]`` (packed: ``[H, T_q, T_k]``); bool, True attends, or floating,
            added to the scores. ``"chunked"`` and ``"triton"`` give it no gradient.
        is_causal: query i sees keys j ≤ i + q_offset only, within its graph when packed.
        q_offset: the key position of query row 0: an int, a scalar tensor, or ``[B]``, one number a batch row (graph);
            at most 2³¹ either way, and negative where keys were cut off on the left. Unset it is the labels' own, or 0;
            with ``is_causal`` and unequal lengths it must be known.
        dropout_p: probability in ``[0, 1)`` with which an attention weight is dropped; applied whenever it is not 0.
        scale: factor on the score terms that hold a vector; 1/√D when left out.
        enable_gqa: H_kv may divide H; each key head then serves H / H_kv query heads.
        impl: ``"reference"``, ``"dense"``, ``"chunked"``, ``"edges"`` (listed pairs alone), ``"triton"`` (fused
            kernels, on a GPU), or None, which picks one by the rule of :func:`~relgraph.which_impl`.

    Returns:
        z ``[B, H, N_q, D_v]``, in the dtype of ``query`` (or autocast's); packed ``[T_q, H, D_v]``.

    Raises:
        TypeError: an argument of the wrong kind, such as labels that are a list.
        ValueError: shapes, dtypes or devices that do not fit each other; tables that disagree with the labels on R, or
            tables without labels; ids out of range; ``is_causal`` between unequal lengths without an offset, or an
            offset other than the labels'; an unknown ``impl``.
        NotImplementedError: an ``impl`` that cannot do the call (it says which can); ``torch.func`` and forward-mode
            derivatives unless ``impl`` is ``"reference"`` or ``"dense"``; DTensors; or a call within torch's
            ``context_parallel``, where each rank holds a part of the keys; or raw ids that ``torch.func.vmap`` maps
            over.

    Example:
        >>> q = k = v = torch.randn(2, 8, 5, 16)                # B, H, N, D
        >>> labels = rg.ClippedDistance(2)(5)                   # 5 labels: the distances -2 to 2
        >>> key_table, value_table = torch.randn(5, 16), torch.randn(5, 16)
        >>> rg.relation_attention(q, k, v, labels, key_table, value_table).shape
        torch.Size([2, 8, 5, 16])
        >>> masked = torch.tensor([True, True, True, False, False])            # keys that may be seen
        >>> z = rg.relation_attention(q, k, v, labels, key_table, value_table, attn_mask=masked)
    """
    call, packed = _check_call(
        query, key, value, labels, (key_table, value_table, query_table, bias_table), attn_mask, is_causal, q_offset,
        dropout_p, scale, enable_gqa,
    )  # fmt: skip
    return _leave(_attend(call, impl), call, packed)


def relation_attention_with_aux(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: LabelsLike,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    q_offset: int | Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    impl: str | None = None,
    need_weights: bool = False,
    need_label_mass: bool = False,
    need_lse: bool = False,
) -> tuple[Tensor, AttentionAux]:
    """:func:`~relgraph.relation_attention`, and beside the output whatever else was asked for.

    Formula, directions and masks are those of :func:`~relgraph.relation_attention`; query i looks at key j.

    Source: relgraph's own; the attention is that of Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5.

    Args:
        query: ``[B, H, N_q, D]``; packed ``[T_q, H, D]``.
        key: ``[B, H_kv, N_k, D]``; packed ``[T_k, H_kv, D]``.
        value: ``[B, H_kv, N_k, D_v]``; packed ``[T_k, H_kv, D_v]``.
        labels: ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``, Labels or None, as in :func:`~relgraph.relation_attention`.
        key_table: a^K, ``[R, D]`` or ``[H, R, D]``.
        value_table: a^V, ``[R, D_v]`` or ``[H, R, D_v]``.
        query_table: a^Q, ``[R, D]`` or ``[H, R, D]``.
        bias_table: b, ``[R]`` or ``[H, R]``.
        attn_mask: broadcasts to ``[B, H, N_q, N_k]`` (packed: ``[H, T_q, T_k]``); bool, True attends, or added.
        is_causal: query i sees keys j ≤ i + q_offset only.
        q_offset: the key position of query row 0: an int, a scalar tensor or ``[B]``.
        dropout_p: probability in ``[0, 1)`` with which a weight is dropped in the output; weights and mass are those
            before.
        scale: factor on the score terms that hold a vector; 1/√D when left out.
        enable_gqa: H_kv may divide H.
        impl: as in :func:`~relgraph.relation_attention`; ``"reference"`` and ``"dense"`` alone hold all weights.
        need_weights: give the attention weights, N_q · N_k numbers a head.
        need_label_mass: give the attention that each label receives.
        need_lse: give the log-sum-exp of each row, with which partial results merge (:func:`~relgraph.merge`).

    Returns:
        ``(z, aux)``, z ``[B, H, N_q, D_v]`` as :func:`~relgraph.relation_attention` gives it, and an
        :class:`~relgraph.AttentionAux` with ``weights`` ``[B, H, N_q, N_k]``, ``label_mass`` ``[B, H, N_q, R]`` and
        ``lse`` ``[B, H, N_q]``.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: as :func:`~relgraph.relation_attention`; or ``need_label_mass`` without labels.
        NotImplementedError: as :func:`~relgraph.relation_attention`; or ``need_weights`` of an ``impl`` that never
            holds all of them.

    Example:
        >>> x, labels = torch.randn(1, 2, 4, 8), rg.ClippedDistance(1)(4)
        >>> z, aux = rg.relation_attention_with_aux(x, x, x, labels, need_label_mass=True)
        >>> aux.label_mass.shape
        torch.Size([1, 2, 4, 3])
        >>> torch.allclose(aux.label_mass.sum(-1), torch.ones(1, 2, 4))     # every pair has a label here
        True
    """
    call, packed = _check_call(
        query, key, value, labels, (key_table, value_table, query_table, bias_table), attn_mask, is_causal, q_offset,
        dropout_p, scale, enable_gqa, _check.boolean("need_weights", need_weights),
        _check.boolean("need_label_mass", need_label_mass),
    )  # fmt: skip
    if need_label_mass and labels is None:
        raise ValueError("need_label_mass must be False when labels is None: there is no label to receive attention")
    answer = _attend(call, impl)
    lse = answer.lse if _check.boolean("need_lse", need_lse) else None
    mass = answer.mass
    weights = answer.weights
    if packed:
        lse = None if lse is None else lse[0].T
        mass = None if mass is None else tuple(m[0].transpose(0, 1) for m in mass)
        weights = None if weights is None else weights[0]
    single = mass if mass is None or isinstance(labels, SumLabels) else mass[0]
    return _leave(answer, call, packed), AttentionAux(weights, single, lse)


def _attend(call: Call, impl: str | None) -> Answer:
    name = choose(call, impl)
    device = call.query.device.type
    if not _check.has_autocast(device):
        return IMPLEMENTATIONS[name](call)
    with torch.autocast(device, enabled=False):  # the implementations choose their own precision
        return IMPLEMENTATIONS[name](call)


def _leave(answer: Answer, call: Call, packed: bool) -> Tensor:
    output = answer.output.to(call.query.dtype)
    return output[0].transpose(0, 1) if packed else output


def _check_call(
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
    """One checked call, and whether it came packed."""
    if labels is not None and not isinstance(labels, (Labels, Tensor)):
        raise TypeError(f"labels must be Labels, an integer Tensor or None, got {in_place_of_labels(labels)}")
    check_context()
    query, key, value, packed = _check_inputs(query, key, value, labels, _check.boolean("enable_gqa", enable_gqa))
    labels, given = _check_labels(labels, query, key, tables)
    plan = plain(query.shape[2], key.shape[2]) if labels is None else lower(labels)
    checked = _check_tables(given, plan, query, value, isinstance(labels, SumLabels))
    mask = _check_mask(attn_mask, query, key, packed)
    _check.boolean("is_causal", is_causal)
    offset = offset_of(q_offset, labels, plan, is_causal, query)
    is_causal = is_causal and not sees_all_keys(offset, plan)
    if scale is not None:
        scale = _check.finite("scale", scale)
    else:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    call = Call(
        query,
        key,
        value,
        plan,
        checked,
        scale,
        mask,
        is_causal,
        offset,
        _check.probability("dropout_p", dropout_p),
        None,
        need_weights,
        need_mass,
    )
    return call, packed


def _check_inputs(query: Any, key: Any, value: Any, labels: Any, gqa: bool) -> tuple[Tensor, Tensor, Tensor, bool]:
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        _check.floating(name, x)
    check_local(**named)
    _check.same_device(**named)
    packed = isinstance(labels, Labels) and labels.packed
    dims, shape = (3, "[T, H, D], as the labels are packed") if packed else (4, "[B, H, N, D]")
    for name, x in named.items():
        if x.dim() != dims:
            hint = "" if packed or x.dim() != 3 else "; [T, H, D] is for labels with ptr, a packed batch"
            raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}{hint}")
    dtype = _check.autocast_dtype(query.device.type)
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
    """Labels that fit the inputs, and the tables as one tuple a kind."""
    batch, q_len, k_len = query.shape[0], query.shape[2], key.shape[2]
    if isinstance(labels, Tensor):
        labels = _from_raw(labels, batch, q_len, k_len, tables)
    if labels is None:
        for name, table in zip(_KINDS, tables, strict=True):
            if table is not None:
                raise ValueError(f"{name} must be None where labels is None: no pair carries a label to look up")
        return None, [None] * len(tables)
    if (labels.q_len, labels.k_len) != (q_len, k_len):
        raise ValueError(f"labels must cover [N_q, N_k] = [{q_len}, {k_len}], got [{labels.q_len}, {labels.k_len}]")
    if not _check.among(labels.batch_size, 1, batch):
        raise ValueError(f"labels must have batch_size 1 or {batch}, got {labels.batch_size}")
    if labels.device is not None and labels.device != query.device:
        raise ValueError(f"labels must be on the device of query, {query.device}, got {labels.device}")
    if not isinstance(labels, SumLabels):
        return labels, [None if table is None else (table,) for table in tables]
    return labels, list(tables)


def _from_raw(ids: Tensor, batch: int, q_len: int, k_len: int, tables: tuple[Any, ...]) -> Labels:
    _check.tensor("labels", ids)
    _check.unmapped("labels", ids)
    if ids.dtype not in _check.INTEGER_DTYPES:
        raise ValueError(f"labels must have an integer dtype, got {ids.dtype}")
    if not _check.shaped(ids, (q_len, k_len), (batch, q_len, k_len), (1, q_len, k_len)):
        raise ValueError(
            f"labels must have shape [N_q, N_k] = [{q_len}, {k_len}] or [{batch}, {q_len}, {k_len}], "
            f"got {list(ids.shape)}"
        )
    for name, table, dim in zip(_KINDS, tables, (-2, -2, -2, -1), strict=True):
        if isinstance(table, Tensor) and _check.tensor(name, table).dim() >= -dim:
            return DenseLabels._trusted(ids, table.shape[dim])
    raise ValueError("labels given as a Tensor need a table beside them, to know R; got no table: build DenseLabels")


_KINDS = ("key_table", "value_table", "query_table", "bias_table")


def _check_tables(
    given: Sequence[Any], plan: LabelPlan, query: Tensor, value: Tensor, is_sum: bool
) -> tuple[Tables, ...]:
    widths = (query.shape[-1], value.shape[-1], query.shape[-1], None)
    columns: list[tuple[Tensor | None, ...]] = []
    for name, tables, width in zip(_KINDS, given, widths, strict=True):
        if tables is None:
            columns.append((None,) * len(plan.parts))
            continue
        if not isinstance(tables, (tuple, list)) or len(tables) != len(plan.parts):
            got = f"{len(tables)}" if isinstance(tables, (tuple, list)) else type(tables).__name__
            raise ValueError(f"{name} must be a tuple of {len(plan.parts)} tables, one a part of the sum, got {got}")
        for index, (table, part) in enumerate(zip(tables, plan.parts, strict=True)):
            label = f"{name}[{index}]" if is_sum else name
            _check_table(label, table, part.num_labels, width, query)
        columns.append(tuple(tables))
    return tuple(Tables(*(column[p] for column in columns)) for p in range(len(plan.parts)))


def _check_table(name: str, table: Any, num_labels: int, width: int | None, query: Tensor) -> None:
    if table is None:
        return
    _check.tensor(name, table)
    heads = query.shape[1]
    row = [num_labels] if width is None else [num_labels, width]
    if not _check.shaped(table, row, [heads, *row]):
        what = "[R] or [H, R]" if width is None else "[R, D] or [H, R, D]"
        raise ValueError(f"{name} must have shape {what} = {row} or {[heads, *row]}, got {list(table.shape)}")
    _check.floating(name, table)
    if table.dtype != query.dtype and _check.autocast_dtype(query.device.type) is None:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {table.dtype}")
    check_local(**{name: table})
    _check.same_device(query=query, **{name: table})


def _check_mask(mask: Any, query: Tensor, key: Tensor, packed: bool) -> Tensor | None:
    if mask is None:
        return None
    _check.tensor("attn_mask", mask)
    if mask.dtype != torch.bool and mask.dtype not in _check.FLOATING_DTYPES:
        raise ValueError(f"attn_mask must be bool or floating, got {mask.dtype}")
    check_local(attn_mask=mask)
    _check.same_device(query=query, attn_mask=mask)
    wanted = [query.shape[0], query.shape[1], query.shape[2], key.shape[2]]
    shown = wanted[1:] if packed else wanted
    fits = mask.dim() <= len(shown) and all(
        _check.among(m, 1, w) for m, w in zip(reversed(mask.shape), reversed(shown), strict=False)
    )
    if not fits:
        raise ValueError(f"attn_mask must broadcast to {shown}, got {list(mask.shape)}")
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
