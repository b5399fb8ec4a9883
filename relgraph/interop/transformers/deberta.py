"""DeBERTa: a table for keys and one for queries, which each layer computes from one embedding of distances.

    e_ij = (q_i·k_j + q_i·K[δ(i − j)] + k_j·Q[δ(i − j)]) / √(3 d)

δ counts i − j in buckets (v2, v3) or one by one (v1) and clips it. K and Q are projections of the embedding, per head.
``pos_att_type`` says which of both terms there are ("c2p": K, "p2c": Q); √(3 d) is √(2 d) with one of them.

transformers makes δ for all pairs, the same mask for all queries, and two tensors of scores per pair and term. Here the
encoder hands no δ on and a mask of keys alone, ``[B, 1, 1, N]``.

Source: He et al. 2021 (DeBERTa), equations 2 to 4; He et al. 2021 (DeBERTaV3); the code of transformers for δ, which
:class:`~relgraph.BucketedDistance` follows.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import attend, labels_by_distance, split_heads
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.rows import cut_to_length, rows_by_query_minus_key
from relgraph.labelers import BucketedDistance
from relgraph.labelers.sequence.distance import DistanceLabeler


def labeler_of(module: Any) -> DistanceLabeler:
    """The row of ``rel_embeddings`` for each distance."""
    return _labeler(getattr(module, "position_buckets", -1), module.max_relative_positions)


class DebertaV2Mixin:
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v2 and v3."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of ``query_states``, or of ``hidden_states`` themselves, over ``hidden_states``.

        Returns:
            The output, and the weights or None.
        """
        size = self.attention_head_size
        query = split_heads(self.query_proj(hidden_states if query_states is None else query_states), size)
        key, value = split_heads(self.key_proj(hidden_states), size), split_heads(self.value_proj(hidden_states), size)
        key_proj, query_proj = None, None
        if "c2p" in self.pos_att_type:
            key_proj = self.key_proj if self.share_att_key else self.pos_key_proj
        if "p2c" in self.pos_att_type:
            query_proj = self.query_proj if self.share_att_key else self.pos_query_proj
        terms = 1 + (key_proj is not None) + (query_proj is not None)
        return _attend(
            self, query, key, value, attention_mask, relative_pos, rel_embeddings, (key_proj, query_proj), terms,
            output_attentions,
        )  # fmt: skip


class DebertaMixin:
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v1: one projection for queries, keys and values."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention.

        Returns:
            The output, and the weights or None.
        """
        if query_states is not None:
            raise NotImplementedError(
                f"query_states must be None in a patched {type(self).__name__} of DeBERTa v1, got "
                f"{type(query_states).__name__}: transformers itself has no batches there"
            )
        size = self.attention_head_size
        query, key, value = split_heads(self.in_proj(hidden_states), 3 * size).chunk(3, dim=-1)
        query = query + self.q_bias.view(-1, 1, size)
        value = value + self.v_bias.view(-1, 1, size)
        key_proj = self.pos_proj if "c2p" in self.pos_att_type else None
        query_proj = self.pos_q_proj if "p2c" in self.pos_att_type else None
        return _attend(
            self, query, key, value, attention_mask, relative_pos, rel_embeddings, (key_proj, query_proj),
            1 + len(self.pos_att_type), output_attentions,
        )  # fmt: skip


class EncoderMixin:
    """What the encoders hand to their layers: no positions of pairs, and a mask of keys."""

    _relgraph_mixin = True

    def get_rel_pos(self, hidden_states: Any, query_states: Any = None, relative_pos: Any = None) -> Any:  # noqa: ARG002
        """What was given: patched layers count distances themselves."""
        return relative_pos

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """``[B, 1, 1, N]`` for a mask ``[B, N]``; padded queries see what the others see, and mean nothing."""
        if attention_mask.dim() <= 2:
            return attention_mask[..., None, None, :].bool()
        return attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    relative_pos: Tensor | None,
    rel_embeddings: Tensor | None,
    projections: tuple[nn.Module | None, nn.Module | None],
    terms: int,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the tables that the projections, for keys and for queries, make of the embedding of distances."""
    if relative_pos is not None:
        raise NotImplementedError(
            f"relative_pos must be None in a patched {type(module).__name__}, got {type(relative_pos).__name__}: "
            "distances are counted here; patch the whole model, so that its encoder makes none"
        )
    labels, tables = None, (None, None)
    if rel_embeddings is not None:
        rows, labeler = cut_to_length(labeler_of(module), query.shape[2], key.shape[2])
        labels = labels_by_distance(labeler, query.shape[2], key.shape[2])
        embeddings = module.pos_dropout(rel_embeddings[rows])
        tables = tuple(
            None if projection is None else split_heads(projection(embeddings)[None], query.shape[-1])[0]
            for projection in projections
        )
    return attend(
        module, query, key, value, labels, mask=_added(mask, query.dtype), dropout=module.dropout.p,
        scale=1 / _root(query.shape[-1] * terms), need_weights=need_weights, key_table=tables[0], query_table=tables[1],
    )  # fmt: skip


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of keys as numbers that are added to scores, which is faster; one of pairs stays a choice."""
    seen = mask.bool()
    if seen.shape[-2] > 1:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -math.inf)


def _root(number: int) -> float:
    """The square root as transformers has it in every dtype: rounded to float32, whose mantissa has 24 bits."""
    mantissa, exponent = math.frexp(math.sqrt(number))
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


@functools.cache
def _labeler(buckets: int, most: int) -> DistanceLabeler:
    if buckets > 0:
        return BucketedDistance(2 * buckets, most, rule="deberta")
    return rows_by_query_minus_key(-most, most - 1)


def _why_not(module: Any) -> str | None:
    """No tables, or scores that mix heads. An encoder is left as it is if one of its layers is."""
    if hasattr(module, "layer"):
        reasons = [_why_not(layer.attention.self) for layer in module.layer]
        return next((reason for reason in reasons if reason is not None), None)
    if not module.relative_attention:
        return "it has no tables: relative_attention is False"
    if not {"c2p", "p2c"} & set(module.pos_att_type):
        return f"it has no tables: pos_att_type is {module.pos_att_type!r}"
    if getattr(module, "talking_head", False):
        return "talking_head mixes the scores of its heads"
    try:
        labeler_of(module)
    except ValueError as error:
        return f"buckets that relgraph does not have: {error}"
    return None


FAMILY = Family(
    "deberta",
    "DeBERTa v1, v2 and v3",
    {
        "deberta_v2.DisentangledSelfAttention": DebertaV2Mixin,
        "deberta_v2.DebertaV2Encoder": EncoderMixin,
        "deberta.DisentangledSelfAttention": DebertaMixin,
        "deberta.DebertaEncoder": EncoderMixin,
    },
    _why_not,
)
