"""Relation-aware attention: check the arguments once, then run one implementation."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.call import Answer, AttentionAux, Call, LabelsLike, Options, Table, check_call, check_read
from relgraph.call.operands import check_options, takes_options
from relgraph.functional.region import hook_for
from relgraph.functional.sink import with_sink
from relgraph.impl import IMPLEMENTATIONS, prepared
from relgraph.impl.rule import choose


@takes_options()
def relation_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: LabelsLike,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    **options: Unpack[Options],
) -> Tensor:
    """Attention over a labeled graph: scores and values carry a vector for each pair's label.

    Query i attends to key j, and l_ij is the label of this pair::

        e_ij = (q_i·(k_j + a^K[l_ij]) + k_j·a^Q[l_ij]) · scale + b[l_ij]
        α_i  = softmax_j(e_ij)
        z_i  = Σ_j α_ij (v_j + a^V[l_ij])

    A pair without a label (id -1) uses only q_i·k_j and v_j. A query that may attend to no key gets zeros. Masks, scale
    and grouped heads work as in :func:`~torch.nn.functional.scaled_dot_product_attention`. Scores and sums are computed
    in float32 or in a wider type.

    Source: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", eqs. 3-5; a^Q as in
    He et al. 2021 (DeBERTa) and Park et al. 2022 (GRPE); b as in Raffel et al. 2020 (T5) and Ying et al. 2021
    (Graphormer); u and v as in Dai et al. 2019 (Transformer-XL); W and its bases as in Schlichtkrull et al. 2018
    (R-GCN) and Busbridge et al. 2019 (RGAT).

    Args:
        query: ``[B, H, N_q, D]``, floating. Packed (labels with ``ptr``): ``[T_q, H, D]``.
        key: ``[B, H_kv, N_k, D]``, dtype and device of ``query``; packed ``[T_k, H_kv, D]``.
        value: ``[B, H_kv, N_k, D_v]``, dtype and device of ``query``; packed ``[T_k, H_kv, D_v]``.
        labels: the label of every pair: :class:`~relgraph.Labels`; or integer ids ``[N_q, N_k]`` or ``[B, N_q, N_k]``
            in ``[-1, R)`` (checked in eager mode on a CPU only), with a table whose number of rows gives R; or None for
            plain attention without tables.
        key_table: a^K: ``[R, D]`` shared by all heads, or ``[H, R, D]`` with one table per head. ``[B, 1, R, D]`` and
            ``[B, H, R, D]`` also have one per batch row (not packed). None leaves the term out. For a sum of labels, a
            tuple of one table (or None) per part. The other tables follow the same rules.
        value_table: a^V, ``[R, D_v]`` or ``[H, R, D_v]``.
        query_table: a^Q, ``[R, D]`` or ``[H, R, D]``.
        bias_table: b, ``[R]`` or ``[H, R]``, added after scaling.
        attn_mask: a mask that broadcasts to ``[B, H, N_q, N_k]`` (packed: ``[H, T_q, T_k]``). Bool: True lets a pair
            attend. Floating: added to the scores after ``score``; it may learn.
        is_causal: query i sees only keys j ≤ i + q_offset, within its graph when packed.
        q_offset: the key position of query row 0: an int, a scalar tensor, or ``[B]``, one number per batch row (per
            graph when packed), within ±2³¹; negative if keys were cut off on the left. By default the offset of the
            labels, or 0 if they have none. With ``is_causal`` and unequal lengths, either you or the labels must give
            it.
        dropout_p: probability in ``[0, 1)`` of dropping an attention weight; applied whenever it is not 0.
        scale: factor on the score terms that hold a vector; 1/√D by default, 1 for additive scores.
        enable_gqa: H_kv may divide H; each key head then serves H / H_kv query heads.
        score: None for the scaled dot product. :class:`~relgraph.score.Softcap`, :class:`~relgraph.score.LeakyReLU` or
            a function of your own changes every score after scale and bias and before masks. The function must act on
            each number by itself, give the same result each time, and be a module if it has parameters.
            :class:`~relgraph.score.Additive` and :class:`~relgraph.score.Bilinear` replace the dot product.
        content_bias: u, ``[H, D]``: added to the query in its product with the key, (q_i + u)·k_j.
        position_bias: v, ``[H, D]``: added to the query in its product with the key table, (q_i + v)·a^K[l_ij], in
            every part that has one. Both biases need dot-product scores and exclude ``edge_key``.
        row_scores: ``[B, H, N_q, R]`` (packed ``[T_q, H, R]``), floating: the number that each label adds to the scores
            of each query, unscaled. It replaces ``key_table``. For a sum of labels, a tuple.
        value_map: a linear map for each label, so that z_i = Σ_j α_ij (W[l_ij] v_j + a^V[l_ij]): W ``[R, D_v, D_v]`` or
            ``[H, R, D_v, D_v]``; or ``(coefficients, bases)``, ``[R, K]`` and ``[K, D_v, D_v]`` (each may have the
            heads first), for W[r] = Σ_k coefficients[r, k] · bases[k]. A pair without a label keeps v_j.
        key_gate: g^K, ``[R, D]`` or ``[H, R, D]``: a pair uses g^K[l_ij] ⊙ k_j + a^K[l_ij] as its key, and without a
            label k_j. The query table still multiplies k_j. For dot products.
        value_gate: g^V, ``[R, D_v]`` or ``[H, R, D_v]``: a pair uses g^V[l_ij] ⊙ v_j + a^V[l_ij] as its value. It
            excludes ``value_map``; gates, like maps, are for labels of one part.
        edge_attr: x, ``[E, F]``, floating: a vector for each edge of :class:`~relgraph.EdgeLabels`, in their order. If
            the labels have a default, all pairs attend and the listed pairs carry a vector too. Each vector costs F
            numbers per head.
        edge_key: W_k, ``[D, F]`` or ``[H, D, F]``: a listed pair uses k_j + a^K[l_ij] + W_k x_ij as its key.
        edge_value: W_v, ``[D_v, F]`` or ``[H, D_v, F]``: a listed pair uses v_j + a^V[l_ij] + W_v x_ij as its value.
        sink: ``[H]``, floating: a score that joins the softmax of each row and carries no value, so that the weights of
            a row sum to less than 1: α_ij = exp(e_ij) / (exp(sink_h) + Σ_j exp(e_ij)).
        impl: ``"reference"``, ``"dense"``, ``"chunked"``, ``"edges"`` (listed pairs only), ``"native"`` (kernels
            compiled for this CPU), ``"triton"`` (fused GPU kernels), or None to let the library choose:
            :func:`~relgraph.which_impl` shows its choice.

    Returns:
        z ``[B, H, N_q, D_v]``, in the dtype of ``query`` (or autocast's); packed ``[T_q, H, D_v]``.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit each other; tables that disagree with the labels on R, or
            tables without labels; ids out of range; ``is_causal`` between unequal lengths without an offset, or an
            offset that differs from the labels'; an unknown ``impl``.
        NotImplementedError: an ``impl`` that does not support the call (the message names one that does);
            ``torch.func`` and forward-mode derivatives unless ``impl`` is ``"reference"`` or ``"dense"``; DTensors,
            unless ``relgraph.distributed`` is imported and they are sharded by batch or heads; a call within torch's
            ``context_parallel``; or raw ids that ``torch.func.vmap`` maps over.

    Example:
        >>> q = k = v = torch.randn(2, 8, 5, 16)                # B, H, N, D
        >>> labels = rg.ClippedDistance(2)(5)                   # 5 labels: the distances -2 to 2
        >>> key_table, value_table = torch.randn(5, 16), torch.randn(5, 16)
        >>> rg.relation_attention(q, k, v, labels, key_table, value_table).shape
        torch.Size([2, 8, 5, 16])
        >>> masked = torch.tensor([True, True, True, False, False])            # keys that may be seen
        >>> z = rg.relation_attention(q, k, v, labels, key_table, value_table, attn_mask=masked)
    """
    check_options("relation_attention", options)
    given = {"query": query, "key": key, "value": value, "labels": labels, **options}
    given |= {"key_table": key_table, "value_table": value_table, "query_table": query_table, "bias_table": bias_table}
    return attend(given)[0]


@takes_options()
def relation_attention_with_aux(  # noqa: D417
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: LabelsLike,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    *,
    need_weights: bool = False,
    need_label_mass: bool = False,
    need_lse: bool = False,
    **options: Unpack[Options],
) -> tuple[Tensor, AttentionAux]:
    """Compute :func:`~relgraph.relation_attention`, and also return weights, label mass or log-sum-exp on request.

    Args:
        query: this and all further arguments as in :func:`~relgraph.relation_attention` (packed, ``[T_q, H, D]``).
        dropout_p: probability in ``[0, 1)`` of dropping a weight in the output; ``aux`` holds values before dropout.
        need_weights: return the attention weights, N_q · N_k numbers per head. Only ``impl="reference"`` and
            ``"dense"`` compute them all.
        need_label_mass: return how much attention each label receives.
        need_lse: return the log-sum-exp of each row, which :func:`~relgraph.functional.merge` needs.

    Returns:
        ``(z, aux)``, z ``[B, H, N_q, D_v]`` as :func:`~relgraph.relation_attention` gives it, and an
        :class:`~relgraph.functional.AttentionAux`.

    Raises:
        ValueError: as :func:`~relgraph.relation_attention`; or ``need_label_mass`` without labels.
        NotImplementedError: as :func:`~relgraph.relation_attention`; or ``need_weights`` with an ``impl`` that never
            has all weights in memory.

    Example:
        >>> x, labels = torch.randn(1, 2, 4, 8), rg.ClippedDistance(1)(4)
        >>> z, aux = rg.relation_attention_with_aux(x, x, x, labels, need_label_mass=True)
        >>> aux.label_mass.shape
        torch.Size([1, 2, 4, 3])
        >>> torch.allclose(aux.label_mass.sum(-1), torch.ones(1, 2, 4))     # every pair has a label here
        True
    """
    check_options("relation_attention_with_aux", options)
    given = {"query": query, "key": key, "value": value, "labels": labels, **options}
    given |= {"key_table": key_table, "value_table": value_table, "query_table": query_table, "bias_table": bias_table}
    given |= {"need_weights": need_weights, "need_label_mass": need_label_mass}
    return attend(given, need_lse=need_lse)


def attend(given: dict[str, Any], *, need_lse: bool = False) -> tuple[Tensor, AttentionAux]:
    """Output and extra results of a call, by the hook that takes it or by one implementation.

    Args:
        given: the arguments of :func:`~relgraph.relation_attention_with_aux` by name; a missing one has its default.
        need_lse: whether to return the log-sum-exp.
    """
    hook = hook_for(given)
    if hook is not None:
        output, aux = hook(given, need_lse=need_lse)
        return output, aux if need_lse else aux._replace(lse=None)
    if need_lse is not False:
        check.boolean("need_lse", need_lse)
    form, sink = prepared.form_of(given), given.get("sink")
    answer = None if form is None else prepared.answer(form, given)
    if answer is None:
        call = check_call(given)
        check_read(call, given)
        name = choose(call, given.get("impl"))
        answer = None if form is None else prepared.first_answer(form, given, call, name)
        if answer is None:
            packed = given["query"].dim() == 3
            answer = with_sink(_answer_by(name, call), sink)
            return to_caller(answer, call.query, packed), aux_of(answer, packed, need_lse=need_lse)
    answer = with_sink(answer, sink)
    return answer.output, aux_of(answer, given["query"].dim() == 3, need_lse=need_lse)


_NOTHING = AttentionAux()


def aux_of(answer: Answer, packed: bool, *, need_lse: bool) -> AttentionAux:
    """The extra results of an answer, in the layout of the caller."""
    lse, mass, weights = answer.lse if need_lse else None, answer.mass, answer.weights
    if lse is None and mass is None and weights is None:
        return _NOTHING
    if packed:
        lse = None if lse is None else lse[0].T
        mass = None if mass is None else tuple(m[0].transpose(0, 1) for m in mass)
        weights = None if weights is None else weights[0]
    single = mass[0] if mass is not None and len(mass) == 1 else mass
    return AttentionAux(weights, single, lse)


def answer_to(call: Call, impl: str | None) -> Answer:
    """The answer of the implementation that the caller named, or of the one that the rule chooses."""
    return _answer_by(choose(call, impl), call)


def _answer_by(name: str, call: Call) -> Answer:
    device = call.query.device.type
    if check.autocast_dtype(device) is None:
        return IMPLEMENTATIONS[name](call)
    with torch.autocast(device, enabled=False):  # the implementations choose their own precision
        return IMPLEMENTATIONS[name](call)


def to_caller(answer: Answer, query: Tensor, packed: bool) -> Tensor:
    """The output in the dtype of the query, packed if the query was."""
    output = answer.output.to(query.dtype)
    return output.squeeze(0).transpose(0, 1) if packed else output
