"""XLNet and Funnel: Transformer-XL's terms, and a vector that says whether query and key are in the same segment.

    e_ij = ((q_i + u)·k_j + (q_i + v)·R[j − i] + (q_i + w)·s[segment_i ≠ segment_j]) / √d,    R = W·sines

XLNet takes keys from the states that it remembers, ``mems``, as well. Its second stream of queries, whose rows do not
see themselves, reads the same keys and tables. Funnel counts positions in the strides of a block; where a block begins,
queries are pooled and keys are not. Pairs of its first token, if ``separate_cls`` sets it apart, have the first term
only.

A sum of labels has one bias for all key tables, here v. So s also gets a bias table, (w − v)·s / √d.

Source: Yang et al. 2019, section 2.5; Dai et al. 2020, appendix A.2; the code of transformers for the order of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import compute, score_of_row, split_heads
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import dropout_of
from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels, Labels, total
from relgraph.labels.memory import memory_of


class XLNetMixin:
    """The forward of ``XLNetRelativeAttention``, whose tensors have the sequence first, ``[N, B, E]``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Tensor | None,
        attn_mask_g: Tensor | None,
        r: Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Any, ...]:
        """Both streams, the second None without ``g``; on request the weights ``[N_q, N_k, B, H]`` of each stream."""
        seen = h if mems is None or mems.dim() == 1 else torch.cat((mems, h))
        key, value = (torch.einsum("ibh,hnd->bnid", seen, weight) for weight in (self.k, self.v))
        positions, rows = _distances(self, r, h.shape[0], seen.shape[0])
        terms = _terms(self, positions, rows, None if seg_mat is None else _segments(seg_mat))

        def attended(states: Tensor, mask: Tensor | None, mapping: Tensor | None) -> tuple[Tensor, Tensor | None]:
            query = torch.einsum("ibh,hnd->bnid", states, self.q)
            if mapping is not None:
                query = torch.einsum("bnmd,mlb->bnld", query, mapping)
            output, weights = compute(
                self, query, key, value, mask=None if mask is None else _added(mask), dropout=dropout_of(self),
                need_weights=output_attentions, **terms,
            )  # fmt: skip
            output = output.unflatten(-1, (self.n_head, -1)).transpose(0, 1)
            if mapping is not None:
                output = torch.einsum("lbnd,mlb->mbnd", output, mapping)
            return self.post_attention(states, output), None if weights is None else weights.permute(2, 3, 0, 1)

        output_h, weights_h = attended(h, attn_mask_h, None)
        if g is None:
            return (output_h, None, weights_h) if output_attentions else (output_h, None)
        output_g, weights_g = attended(g, attn_mask_g, target_mapping)
        return (output_h, output_g, (weights_h, weights_g)) if output_attentions else (output_h, output_g)


def _distances(module: Any, sines: Tensor, q_len: int, k_len: int) -> tuple[Labels, Tensor]:
    """Labels and rows ``[B or none, H, R, D]`` of XLNet; its first row, of ``sines`` ``[R + 1, B, E]``, has no pair.

    The rows begin at distance 1 − k_len. A model that is causal (``"uni"``) has none for keys after the query.
    """
    # a batch axis that is only expanded has the same rows for all; bi_data and dropout make others
    sines = sines[1:, :1] if sines.stride(1) == 0 else sines[1:]
    rows = torch.einsum("ibh,hnd->bnid", sines.to(module.r.dtype), module.r)
    labels = ClippedDistance((k_len - 1, sines.shape[0] - k_len))(q_len, k_len, q_offset=k_len - q_len)
    return labels, rows if len(rows) > 1 else rows[0]


def _segments(one_hot: Tensor) -> Labels:
    """Labels for XLNet's ``[N_q, N_k, B, 2]``: 0 for the same segment and 1 for another; all layers get one tensor."""
    return memory_of([one_hot]).once(
        "segments", lambda: DenseLabels(one_hot[..., 1].permute(2, 0, 1).to(torch.int8), 2)
    )


def _added(mask: Tensor) -> Tensor:
    """What XLNet adds to scores for a mask ``[1 or N_q, N_k, B, 1]``: 1 in it blocks, but a row of ones sees all."""
    lowest = -65500 if mask.dtype == torch.float16 else -1e30
    return memory_of([mask]).once("added", lambda: mask.permute(2, 3, 0, 1) * lowest)


class FunnelMixin:
    """The forward of ``FunnelRelMultiheadAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_inputs: tuple[Any, ...],
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        """The output for states ``[B, N, E]``, and the weights if they are asked for."""
        position_embeds, token_type_mat, attention_mask, cls_mask = attention_inputs
        q_len, k_len = query.shape[1], key.shape[1]
        stride = 1 if q_len == k_len else 2
        sines = position_embeds[self.block_index][stride - 1]
        if len(sines) != stride * q_len + k_len:
            raise ValueError(
                f"attention_inputs must have sines of {stride * q_len + k_len} distances for {q_len} queries and "
                f"{k_len} keys, got {len(sines)}: too few tokens for the blocks of this model"
            )
        parts, size = (self.q_head(query), self.k_head(key), self.v_head(value)), self.config.d_head
        heads = split_heads(parts[0], size), split_heads(parts[1], size), split_heads(parts[2], size)
        rows = torch.einsum("td,dnh->nth", sines[stride:], self.r_kernel)
        mask = None if attention_mask is None else (attention_mask[:, None, None].float() - 1) * 1e6
        # the first token by itself leaves labels by distance, which are faster than those of pairs
        split = cls_mask is not None and stride == 1 < q_len and not output_attentions
        attended = _first_apart if split else _attended
        kinds = None if token_type_mat is None else _kinds(token_type_mat, None if split else cls_mask, split)
        output, weights = attended(self, heads, rows, kinds, mask, cls_mask, output_attentions)
        output = self.layer_norm(query + self.hidden_dropout(self.post_proj(output)))
        return (output,) if weights is None else (output, weights)


def _attended(
    module: Any,
    heads: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    kinds: Labels | None,
    mask: Tensor | None,
    cls_mask: Tensor | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Funnel's output and weights; pairs where ``cls_mask`` is 0 have no label."""
    q_len, k_len = heads[0].shape[2], heads[1].shape[2]
    positions = ClippedDistance(q_len - 1)(q_len)
    if q_len != k_len or cls_mask is not None:
        stride = 1 if q_len == k_len else 2
        from_last = stride * (q_len - 1 - torch.arange(q_len, device=rows.device))
        ids = from_last[:, None] + torch.arange(k_len, device=rows.device)
        positions = DenseLabels(ids if cls_mask is None else ids.masked_fill(cls_mask == 0, -1), rows.shape[1])
    return compute(
        module, *heads, mask=mask, dropout=dropout_of(module), need_weights=need_weights,
        **_terms(module, positions, rows, kinds),
    )  # fmt: skip


def _first_apart(
    module: Any,
    heads: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    kinds: Labels | None,
    mask: Tensor | None,
    *_: Any,
) -> tuple[Tensor, None]:
    """Funnel's output, as of :func:`_attended`, where pairs of the first token have no labels and others all have."""
    (query, key, value), dropout = heads, dropout_of(module)
    plain = {"dropout": dropout, "scale": module.scale, "content_bias": module.r_w_bias}
    first, _weights = compute(module, query[:, :, :1], key, value, None, mask=mask, **plain)
    sinks = score_of_row(query[:, :, 1:] + module.r_w_bias[:, None], key[:, :, :1], module.scale)
    if mask is not None:
        sinks = sinks + mask[..., 0]
    positions = ClippedDistance(query.shape[2] - 2)(query.shape[2] - 1)
    others, _weights = compute(
        module, query[:, :, 1:], key[:, :, 1:], value[:, :, 1:], mask=None if mask is None else mask[..., 1:],
        dropout=dropout, row_sinks=sinks, sink_values=value[:, :, :1],
        **_terms(module, positions, rows[:, 1:-1], kinds),
    )  # fmt: skip
    return torch.cat((first, others), 1), None


def _kinds(same: Tensor, cls_mask: Tensor | None, split: bool) -> Labels:
    """Labels for Funnel's ``[B, N_q, N_k]``, True for the same segment: 0 for another one and 1 for the same.

    They leave out the first token, if that is ``split`` off; otherwise its pairs, 0 in ``cls_mask``, have no label.
    """

    def made() -> Labels:
        ids = (same[:, 1:, 1:] if split else same).to(torch.int8)
        return DenseLabels(ids if cls_mask is None else ids.masked_fill(cls_mask == 0, -1), 2)

    return memory_of([same] if cls_mask is None else [same, cls_mask]).once(("kinds", split), made)


def _terms(module: Any, positions: Labels, rows: Tensor, segments: Labels | None) -> dict[str, Any]:
    """The arguments of :func:`compute` for key rows by distance, and by segment if there are labels of them."""
    terms = {"content_bias": module.r_w_bias, "position_bias": module.r_r_bias, "scale": module.scale}
    if segments is None:
        return terms | {"labels": positions, "key_table": rows}
    table = module.seg_embed.transpose(0, 1)
    more = ((module.r_s_bias - module.r_r_bias)[:, None] * table).sum(-1) * module.scale
    return terms | {
        "labels": total(positions, segments), "key_table": (rows, table), "bias_table": (None, more),
    }  # fmt: skip


def _why_not(module: nn.Module) -> str | None:
    """Funnel's other way to compute positions."""
    if getattr(getattr(module, "config", None), "attention_type", "relative_shift") == "relative_shift":
        return None
    return "attention_type is 'factorized': dropout changes its sines position by position, so no row has a distance"


FAMILIES = (
    Family("xlnet", "XLNet", {"xlnet.XLNetRelativeAttention": XLNetMixin}),
    Family("funnel", "Funnel", {"funnel.FunnelRelMultiheadAttention": FunnelMixin}, _why_not),
)
