"""XLNet: Transformer-XL's terms, and a vector that says whether query and key are in the same segment.

    e_ij = ((q_i + u)·k_j + (q_i + v)·R[j − i] + (q_i + w)·s[segment_i ≠ segment_j]) / √d,    R = W·sines

XLNet takes keys from the states that it remembers, ``mems``, as well. Its second stream of queries, whose rows do not
see themselves, reads the same keys and tables.

A sum of labels has one bias for all key tables, here v. So s also gets a bias table, (w − v)·s / √d.

Source: Yang et al. 2019, section 2.5; the code of transformers for the order of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.interop.transformers.common import compute
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
            query = torch.einsum("ibh,hnd->bnid", states, self.q)  # [B, H, N_q, D]
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


FAMILY = Family("xlnet", "XLNet", {"xlnet.XLNetRelativeAttention": XLNetMixin})
