"""Relation-aware attention: the arguments are checked once, one implementation answers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields
from relgraph.functional.check import LabelsLike, Table, check_call
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.call import Answer, Call
from relgraph.impl.rule import choose
from relgraph.labels import SumLabels


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

    Source: Dao 2023 (FlashAttention-2) for ``lse``.

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
    call, packed = check_call(
        query, key, value, labels, (key_table, value_table, query_table, bias_table), attn_mask, is_causal, q_offset,
        dropout_p, scale, enable_gqa,
    )  # fmt: skip
    return leave(_attend(call, impl), call, packed)


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

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5.

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
    call, packed = check_call(
        query, key, value, labels, (key_table, value_table, query_table, bias_table), attn_mask, is_causal, q_offset,
        dropout_p, scale, enable_gqa, check.boolean("need_weights", need_weights),
        check.boolean("need_label_mass", need_label_mass),
    )  # fmt: skip
    if need_label_mass and labels is None:
        raise ValueError("need_label_mass must be False when labels is None: there is no label to receive attention")
    answer = _attend(call, impl)
    lse = answer.lse if check.boolean("need_lse", need_lse) else None
    mass = answer.mass
    weights = answer.weights
    if packed:
        lse = None if lse is None else lse[0].T
        mass = None if mass is None else tuple(m[0].transpose(0, 1) for m in mass)
        weights = None if weights is None else weights[0]
    single = mass if mass is None or isinstance(labels, SumLabels) else mass[0]
    return leave(answer, call, packed), AttentionAux(weights, single, lse)


def _attend(call: Call, impl: str | None) -> Answer:
    name = choose(call, impl)
    device = call.query.device.type
    if not check.has_autocast(device):
        return IMPLEMENTATIONS[name](call)
    with torch.autocast(device, enabled=False):  # the implementations choose their own precision
        return IMPLEMENTATIONS[name](call)


def leave(answer: Answer, call: Call, packed: bool) -> Tensor:
    """The output in the dtype of the query, packed as the query came."""
    output = answer.output.to(call.query.dtype)
    return output[0].transpose(0, 1) if packed else output
