"""LayoutLMv2 and v3: biases per head by distance in the text, and by distance of the boxes on the page.

    v2:  e_ij = q_i·k_j / √d + b[p_j − p_i] + b_x[x_j − x_i] + b_y[y_j − y_i]
    v3:  e_ij = (q_i·k_j + b[p_j − p_i] + b_x[x_j − x_i] + b_y[y_j − y_i]) / √d

All distances are in T5's buckets; x is the left edge of a box, y the lower one. transformers makes the biases of all
pairs and heads in the encoder. In a patched model the encoder passes on the label of each pair, which all heads share,
and the tables. Neither transformers nor this file computes gradients of these tables, so they do not train further.

Source: Xu et al. 2021 (LayoutLMv2), equation 9; Huang et al. 2022 (LayoutLMv3); the code of transformers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.interop.transformers.common import Biases, made_once, split_heads, weight_of
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import SelfAttentionMixin
from relgraph.labelers import BucketedDistance

LEFT, LOWER = 0, 3
"""Which edges of a box are read, of left, upper, right and lower."""


class LayoutLMv3Mixin(SelfAttentionMixin):
    """The self-attention of LayoutLMv3, with the labels and tables that the encoder passes on."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "position_bias")

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        bias = _from_encoder(self, "position_bias", given)
        return Biases(bias.labels, tuple(one * self.attention_head_size**-0.5 for one in bias.tables)).terms()


class LayoutLMv2Mixin(SelfAttentionMixin):
    """The self-attention of LayoutLMv2, whose mask is 0 where keys are seen."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "rel_pos", "rel_2d_pos")

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:  # noqa: ARG002
        return [split_heads(x, self.attention_head_size) for x in self.compute_qkv(states)]

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        has = {"rel_pos": self.has_relative_attention_bias, "rel_2d_pos": self.has_spatial_attention_bias}
        bias = _joined([_from_encoder(self, name, given) for name in has if has[name]])
        mask = given.get("attention_mask")
        return bias.terms() | {"mask": None if mask is None else ~mask.bool()}


class EncoderMixin:
    """The labels and tables that an encoder passes to its layers."""

    _relgraph_mixin = True

    def _relgraph_prepare(self: Any) -> None:
        """Make everything that a recorded graph may not wait for."""
        if self.has_relative_attention_bias:
            made_once(self, "text", text_labeler_of)
        if self.has_spatial_attention_bias:
            made_once(self, "page", page_labeler_of)

    def _cal_1d_pos_emb(self: Any, position_ids: Tensor) -> Biases:
        if position_ids.stride(0) == 0:  # one row for all of the batch
            position_ids = position_ids[:1]
        labeler = made_once(self, "text", text_labeler_of)
        return Biases((labeler.at(position_ids),), (weight_of(self.rel_pos_bias).detach(),))

    def _cal_2d_pos_emb(self: Any, bbox: Tensor) -> Biases:
        labeler = made_once(self, "page", page_labeler_of)
        tables = tuple(weight_of(one).detach() for one in (self.rel_pos_x_bias, self.rel_pos_y_bias))
        return Biases((labeler.at(bbox[..., LEFT]), labeler.at(bbox[..., LOWER])), tables)

    def _compute_position_bias(self: Any, position_ids: Tensor, bbox: Tensor) -> Biases:
        """All of them, which LayoutLMv3 passes on in one."""
        page = [self._cal_2d_pos_emb(bbox)] if self.has_spatial_attention_bias else []
        return _joined([self._cal_1d_pos_emb(position_ids), *page])

    # the names of LayoutLMv2
    _calculate_1d_position_embeddings, _calculate_2d_position_embeddings = _cal_1d_pos_emb, _cal_2d_pos_emb


def _from_encoder(module: Any, name: str, given: dict[str, Any]) -> Biases:
    """The biases, which must come from a patched encoder."""
    biases = given.get(name)
    if not isinstance(biases, Biases):
        raise TypeError(
            f"{name} must come from a patched encoder in a patched {type(module).__name__}, got "
            f"{type(biases).__name__}: patch the whole model"
        )
    return biases


def _joined(parts: list[Biases]) -> Biases:
    return Biases(tuple(x for one in parts for x in one.labels), tuple(x for one in parts for x in one.tables))


def text_labeler_of(encoder: Any) -> BucketedDistance:
    """The buckets of distances in the text."""
    return BucketedDistance(encoder.rel_pos_bins, encoder.max_rel_pos)


def page_labeler_of(encoder: Any) -> BucketedDistance:
    """The buckets of distances on the page."""
    return BucketedDistance(encoder.rel_2d_pos_bins, encoder.max_rel_2d_pos)


def _why_not(module: Any) -> str | None:
    """No tables, or buckets that T5's rule does not have."""
    config = getattr(module, "config", module)  # some modules have no configuration
    text, page = config.has_relative_attention_bias, config.has_spatial_attention_bias
    if not text and not page:
        return "it has no tables: has_relative_attention_bias and has_spatial_attention_bias are False"
    if not text and type(module).__name__.startswith("LayoutLMv3"):
        return "transformers ignores the tables of LayoutLMv3 unless has_relative_attention_bias is True"
    return None


FAMILY = Family(
    "layoutlm",
    "LayoutLMv2 and v3",
    {
        "layoutlmv2.LayoutLMv2SelfAttention": LayoutLMv2Mixin,
        "layoutlmv2.LayoutLMv2Encoder": EncoderMixin,
        "layoutlmv3.LayoutLMv3SelfAttention": LayoutLMv3Mixin,
        "layoutlmv3.LayoutLMv3Encoder": EncoderMixin,
    },
    _why_not,
)
