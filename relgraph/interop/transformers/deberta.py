"""DeBERTa: a table for keys and one for queries, which each layer computes from one embedding of distances.

    e_ij = (q_i·k_j + q_i·K[δ(i − j)] + k_j·Q[δ(i − j)]) / √(3 d)

δ counts i − j in buckets (v2, v3) or one by one (v1) and clips it. K and Q are projections of the embedding, per head.
``pos_att_type`` says which of both terms there are ("c2p": K, "p2c": Q); √(3 d) is √(2 d) with one of them.

transformers makes δ for all pairs, the same mask for all queries, and two tensors of scores per pair and term. In a
patched model, the encoder passes no δ, and only a mask of keys, ``[B, 1, 1, N]``.

Source: He et al. 2021 (DeBERTa), equations 2 to 4; He et al. 2021 (DeBERTaV3); the code of transformers for δ, which
:class:`~relgraph.BucketedDistance` follows.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import attend, made_once, split_heads
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.layers import Linear, layer_of, linear_of, needs_model
from relgraph.interop.transformers.rows import cut_to_length, rows_by_query_minus_key
from relgraph.labelers import BucketedDistance, ClippedDistance
from relgraph.labelers.sequence.distance import DistanceLabeler
from relgraph.nn import RelationAttention

Projections = tuple[nn.Module | None, nn.Module | None]
"""The projections of the embedding of distances, for the key and the query table; None without such a table."""


def labeler_of(module: Any) -> DistanceLabeler:
    """The row of ``rel_embeddings`` for each distance."""
    return _labeler(getattr(module, "position_buckets", -1), module.max_relative_positions)


class DebertaV2Mixin:
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v2 and v3."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

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
        return _attend(
            self, query, key, value, attention_mask, relative_pos, rel_embeddings, _projections_v2(self),
            output_attentions,
        )  # fmt: skip


class DebertaMixin:
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v1: one projection for queries, keys and values."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

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
        return _attend(
            self, query, key, value, attention_mask, relative_pos, rel_embeddings, _projections_v1(self),
            output_attentions,
        )  # fmt: skip


class EncoderMixin:
    """The arguments that encoders pass to their layers: no positions of pairs, and a mask of keys."""

    _relgraph_mixin = True

    def get_rel_pos(self, hidden_states: Any, query_states: Any = None, relative_pos: Any = None) -> Any:  # noqa: ARG002
        """Return ``relative_pos`` unchanged, because patched layers count distances themselves."""
        return relative_pos

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """``[B, 1, 1, N]`` for a mask ``[B, N]``; padded queries see the same keys as others, and mean nothing."""
        if attention_mask.dim() <= 2:
            return attention_mask[..., None, None, :].bool()
        return attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask


def _projections_v2(module: Any) -> Projections:
    """The projections that make the key and the query table of DeBERTa v2 and v3."""
    key_proj, query_proj = None, None
    if "c2p" in module.pos_att_type:
        key_proj = module.key_proj if module.share_att_key else module.pos_key_proj
    if "p2c" in module.pos_att_type:
        query_proj = module.query_proj if module.share_att_key else module.pos_query_proj
    return key_proj, query_proj


def _projections_v1(module: Any) -> Projections:
    """The projections that make the key and the query table of DeBERTa v1."""
    key_proj = module.pos_proj if "c2p" in module.pos_att_type else None
    query_proj = module.pos_q_proj if "p2c" in module.pos_att_type else None
    return key_proj, query_proj


def _tables(module: Any, embeddings: Tensor, projections: Projections) -> tuple[Tensor | None, Tensor | None]:
    """The key and the query table ``[H, R, D]`` that projections make of an embedding of distances ``[R, E]``."""
    key_table, query_table = (
        None if projection is None else split_heads(projection(embeddings)[None], module.attention_head_size)[0]
        for projection in projections
    )
    return key_table, query_table


def _scale(module: Any) -> float:
    """The factor on all terms, of which there are up to three; DeBERTa v1 also counts types that it does not know."""
    kinds = module.pos_att_type
    terms = len(kinds) if _is_v1(module) else ("c2p" in kinds) + ("p2c" in kinds)
    return 1 / _root(module.attention_head_size * (1 + terms))


def _is_v1(module: Any) -> bool:
    """Whether queries, keys and values have one projection."""
    return hasattr(module, "in_proj")


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    relative_pos: Tensor | None,
    rel_embeddings: Tensor | None,
    projections: Projections,
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
        rows, labeler = cut_to_length(made_once(module, "labeler", labeler_of), query.shape[2], key.shape[2])
        labels = labeler(query.shape[2], key.shape[2], q_offset=0)
        embeddings = module.pos_dropout(rel_embeddings[rows])
        tables = _tables(module, embeddings, projections)
    return attend(
        module, query, key, value, labels, mask=_added(mask, query.dtype), dropout=module.dropout.p,
        scale=_scale(module), need_weights=need_weights, key_table=tables[0], query_table=tables[1],
    )  # fmt: skip


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of keys as numbers that are added to scores, which is faster; one of pairs stays a choice."""
    seen = mask.bool()
    if seen.shape[-2] > 1:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -math.inf)


def _root(number: int) -> float:
    """The square root as transformers computes it in every dtype: rounded to float32, whose mantissa has 24 bits."""
    mantissa, exponent = math.frexp(math.sqrt(number))
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


@functools.lru_cache(maxsize=64)
def _labeler(buckets: int, most: int) -> DistanceLabeler:
    if buckets > 0:
        return BucketedDistance(2 * buckets, most, rule="deberta")
    return rows_by_query_minus_key(-most, most - 1)


def convert(module: Any, encoder: Any) -> tuple[RelationAttention, BucketedDistance | ClippedDistance]:
    """A layer with the weights of a module; see :func:`relgraph.interop.transformers.convert`.

    Its tables are the rows that the projections make of the embedding of distances now.
    """
    embeddings = needs_model(module, encoder, "its encoder").get_rel_embedding()
    if _is_v1(module):
        inputs, projections = _inputs_v1(module), _projections_v1(module)
    else:
        inputs = [linear_of(module, name) for name in ("query_proj", "key_proj", "value_proj")]
        projections = _projections_v2(module)
    labeler = _public_labeler_of(module)
    key_table, query_table = _tables(module, embeddings[: labeler.num_labels], projections)
    found = {"key": key_table, "query": query_table}
    tables = {kind: labeler.rows_from(table, "query-key", dim=1) for kind, table in found.items() if table is not None}
    layer = layer_of(
        inputs, None, tables, labeler, heads=module.num_attention_heads, dropout=module.dropout.p, scale=_scale(module)
    )
    return layer, labeler


def _public_labeler_of(module: Any) -> BucketedDistance | ClippedDistance:
    """A labeler with names for the same rows, whatever their order."""
    buckets, most = getattr(module, "position_buckets", -1), module.max_relative_positions
    if buckets > 0:
        return BucketedDistance(2 * buckets, most, rule="deberta")
    return ClippedDistance((most - 1, most))  # i − j from −most to most − 1


def _inputs_v1(module: Any) -> list[Linear]:
    """The projections of queries, keys and values, which are one whose rows alternate head by head."""
    weight, _ = linear_of(module, "in_proj")
    parts = weight.unflatten(0, (module.num_attention_heads, 3, -1))
    query, key, value = (part.flatten(0, 1) for part in parts.unbind(1))
    return [(query, module.q_bias), (key, None), (value, module.v_bias)]


def _why_not(module: Any) -> str | None:
    """No tables, or scores that mix heads. An encoder stays unpatched if one of its layers does."""
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
    convert,
    ("deberta_v2.DebertaV2Encoder", "deberta.DebertaEncoder"),
)
