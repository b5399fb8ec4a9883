"""DeBERTa and SEW-D: a table for keys and one for queries, which each layer computes from one embedding of distances.

    e_ij = (q_i·k_j + q_i·K[δ(i − j)] + k_j·Q[δ(i − j)]) / √(3 d)

δ counts i − j in buckets (v2, v3) or one by one (v1) and clips it. K and Q are projections of the embedding, per head.
``pos_att_type`` says which of both terms there are ("c2p": K, "p2c": Q); √(3 d) is √(2 d) with one of them.

transformers makes δ for all pairs, the same mask for all queries, and two tensors of scores per pair and term. In a
patched model, the encoder passes no δ, and only a mask of keys, ``[B, 1, 1, N]``.

Source: He et al. 2021 (DeBERTa), equations 2 to 4; He et al. 2021 (DeBERTaV3); the code of transformers for δ, which
:class:`~relgraph.BucketedDistance` follows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import made_once, split_heads, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.rows import cut_to_length, rows_by_query_minus_key
from relgraph.interop.transformers.self_attention import ByArgumentMixin, SelfAttentionMixin
from relgraph.labelers import BucketedDistance
from relgraph.labelers.sequence.distance import DistanceLabeler

Projections = tuple[nn.Module | None, nn.Module | None]
"""The projections of the embedding of distances, for the key and the query table; None without such a table."""


def labeler_of(module: Any) -> DistanceLabeler:
    """The row of ``rel_embeddings`` for each distance."""
    buckets, most = getattr(module, "position_buckets", -1), module.max_relative_positions
    if buckets > 0:
        return BucketedDistance(2 * buckets, most, rule="deberta")
    return rows_by_query_minus_key(-most, most - 1)


class DebertaV2Mixin(SelfAttentionMixin):
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v2 and v3: of ``query_states``, if given, over states."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "query_states", "relative_pos", "rel_embeddings")
    _relgraph_asked = ByArgumentMixin._relgraph_asked

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("relative_pos") is not None:
            raise NotImplementedError(
                f"relative_pos must be None in a patched {type(self).__name__}, got "
                f"{type(given['relative_pos']).__name__}: distances are counted here; patch the whole model, so that "
                "its encoder makes none"
            )
        others, embeddings = given.get("query_states"), given.get("rel_embeddings")
        terms = {"mask": _added(given["attention_mask"], states.dtype), "scale": _scale(self)}
        if embeddings is None:
            return terms
        q_len, k_len = states.shape[1] if others is None else others.shape[1], states.shape[1]
        rows, labeler = cut_to_length(made_once(self, "labeler", labeler_of), q_len, k_len)
        key_table, query_table = _tables(self, self.pos_dropout(embeddings[rows]), _projections(self))
        labels = labeler(q_len, k_len, q_offset=0)
        return terms | {"labels": labels, "key_table": key_table, "query_table": query_table}

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        others = given.get("query_states")
        queries = self.query_proj, states if others is None else others
        inputs = queries, (self.key_proj, states), (self.value_proj, states)
        return [split_heads(project(x), self.attention_head_size) for project, x in inputs]


class DebertaMixin(DebertaV2Mixin):
    """The forward of ``DisentangledSelfAttention`` in DeBERTa v1: one projection for queries, keys and values."""

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        if given.get("query_states") is not None:
            raise NotImplementedError(
                f"query_states must be None in a patched {type(self).__name__} of DeBERTa v1, got "
                f"{type(given['query_states']).__name__}: transformers itself has no batches there"
            )
        size = self.attention_head_size
        query, key, value = split_heads(self.in_proj(states), 3 * size).chunk(3, dim=-1)
        return [query + self.q_bias.view(-1, 1, size), key, value + self.v_bias.view(-1, 1, size)]


class SewDMixin(DebertaV2Mixin):
    """The forward of ``DisentangledSelfAttention`` in SEW-D, which is that of DeBERTa v2 with other arguments."""

    def _relgraph_asked(self: Any, given: dict[str, Any]) -> bool:
        return wants_weights(self, given)

    def _relgraph_answer(self, output: Tensor, weights: Tensor | None, given: dict[str, Any]) -> Any:  # noqa: ARG002
        return output, weights


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


def _projections(module: Any) -> Projections:
    """The projections that make the key and the query table."""
    if _is_v1(module):
        names = ("pos_proj", "pos_q_proj")
    else:
        names = ("key_proj", "query_proj") if module.share_att_key else ("pos_key_proj", "pos_query_proj")
    key_proj, query_proj = (
        getattr(module, name) if kind in module.pos_att_type else None
        for kind, name in zip(("c2p", "p2c"), names, strict=True)
    )
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


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of keys as values that are added to scores, which is faster; one of pairs stays a choice."""
    seen = mask.bool()
    if seen.shape[-2] > 1:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -math.inf)


def _root(number: int) -> float:
    """The square root as transformers computes it in every dtype: rounded to float32, whose mantissa has 24 bits."""
    mantissa, exponent = math.frexp(math.sqrt(number))
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


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
    "DeBERTa v1, v2 and v3, SEW-D",
    {
        "deberta_v2.DisentangledSelfAttention": DebertaV2Mixin,
        "deberta_v2.DebertaV2Encoder": EncoderMixin,
        "deberta.DisentangledSelfAttention": DebertaMixin,
        "deberta.DebertaEncoder": EncoderMixin,
        "sew_d.DisentangledSelfAttention": SewDMixin,
        "sew_d.SEWDTransformerEncoder": EncoderMixin,
    },
    _why_not,
)
