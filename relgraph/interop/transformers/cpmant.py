"""CPM-Ant: a bias per head for the bucket of a distance, or for a pair of segments if query and key are in two.

    e_ij = q_i·k_j / √d + b[bucket(j − i)]            in the same segment
    e_ij = q_i·k_j / √d + b[R + S · s_i + s_j]        in two of S segments, R buckets

The model makes the bias of all pairs once and cuts it to the queries of a step. In a patched model it cuts labels and
makes those of these queries only.

Source: the code of transformers, whose buckets are those of T5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relgraph.interop.transformers.common import Biases, compute, from_encoder, made_once, split_heads, with_cache
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import dropout_of
from relgraph.labelers import BucketedDistance
from relgraph.labels import DenseLabels
from relgraph.labels.memory import memory_of


@dataclass(frozen=True)
class _Uncut:
    """What the model gets for the bias of all pairs, ``[B, H, N_q, N_k]``, and cuts to the queries from one on."""

    module: Any
    query_segment: Tensor
    key_segment: Tensor

    def __getitem__(self, cut: tuple[slice, ...]) -> Biases:
        """The labels and the table of these queries."""
        module, segments = self.module, self.query_segment[:, cut[2]]
        first = self.query_segment.shape[1] - segments.shape[1]
        near = made_once(module, "labeler", labeler_of)(segments.shape[1], self.key_segment.shape[1], q_offset=first)
        buckets, _ = near.to_dense()
        query, key = segments[:, :, None].long(), self.key_segment[:, None]
        ids = torch.where(
            query == key, buckets.to(query.device), module.num_buckets + query * module.num_segments + key
        )
        table = module.relative_attention_bias.t()
        return Biases((DenseLabels(ids, table.shape[1]),), (table,))


def labeler_of(module: Any) -> BucketedDistance:
    """The buckets within a segment."""
    return BucketedDistance(module.num_buckets, module.max_distance)


class CpmAntBiasMixin:
    """The forward of ``CpmAntSegmentPositionEmbedding``."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

    def forward(
        self: Any,
        key_pos: Tensor,  # noqa: ARG002  # theirs does not read it either
        query_pos: Tensor,  # noqa: ARG002
        key_segment: Tensor,
        query_segment: Tensor,
    ) -> _Uncut:
        """Labels and a table in place of the bias of all pairs; segments are ``[B, N]``."""
        return _Uncut(self, query_segment, key_segment)


class CpmAntMixin:
    """The forward of ``CpmAntAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_q: Tensor,
        hidden_kv: Tensor,
        attention_mask: Tensor,
        position_bias: Any,
        output_attentions: bool | None = False,
        cache: Any = None,
        use_cache: bool | None = None,  # noqa: ARG002
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output ``[B, N, E]``, and the weights or None; ``attention_mask`` is ``[B, N_q, N_k]``."""
        size, source = self.dim_head, hidden_kv
        key, value = with_cache(
            cache, self.layer_idx,
            lambda: (split_heads(self.project_k(source), size), split_heads(self.project_v(source), size)),
            over_others=False,
        )  # fmt: skip
        seen = memory_of([attention_mask]).once("seen", lambda: attention_mask.bool()[:, None])
        output, weights = compute(
            self, split_heads(self.project_q(hidden_q), size), key, value, mask=seen,
            dropout=0.0 if self.dropout is None else dropout_of(self), scale=None, need_weights=bool(output_attentions),
            **from_encoder(self, "position_bias", position_bias).terms(),
        )  # fmt: skip
        return self.attention_out(output), weights


_KINDS = {"cpmant.CpmAntAttention": CpmAntMixin, "cpmant.CpmAntSegmentPositionEmbedding": CpmAntBiasMixin}
FAMILY = Family(
    "cpmant",
    "CPM-Ant",
    _KINDS,
    whole={"cpmant.CpmAntModel": "cpmant.CpmAntAttention"},
)
