"""LayoutLMv2 and v3: biases per head by distance in the text, and by distance of the boxes on the page.

    v2:  e_ij = q_i·k_j / √d + b[p_j − p_i] + b_x[x_j − x_i] + b_y[y_j − y_i]
    v3:  e_ij = (q_i·k_j + b[p_j − p_i] + b_x[x_j − x_i] + b_y[y_j − y_i]) / √d

All distances are in T5's buckets; x is the left edge of a box, y the lower one. transformers makes the biases of all
pairs and heads in the encoder. In a patched model the encoder passes on the label of each pair, which all heads share,
and the tables. Neither transformers nor this file computes gradients of these tables, so they do not train further.

Source: Xu et al. 2021 (LayoutLMv2), equation 9; Huang et al. 2022 (LayoutLMv3); the code of transformers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.interop.transformers.common import (
    attend,
    made_once,
    refuse,
    split_heads,
    version,
    wants_weights,
    weight_of,
)
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.layers import Linear, layer_of, linear_of, needs_model
from relgraph.labelers import BucketedDistance, Labeler
from relgraph.labels import DenseLabels, Labels, total
from relgraph.nn import RelationAttention

LEFT, LOWER = 0, 3
"""Which edges of a box are read, of left, upper, right and lower."""


@dataclass(frozen=True)
class Biases:
    """Labels and tables that an encoder passes to its layers in place of the biases of all pairs.

    Attributes:
        labels: labels of the text, or of x and y, in this order.
        tables: a table ``[H, R]`` for each.
    """

    labels: tuple[DenseLabels, ...]
    tables: tuple[Tensor, ...]


@dataclass(frozen=True)
class TextAndPage(Labeler):
    """Distances in the text, and on the page from left edge to left edge and from lower edge to lower edge, as a sum.

    Attributes:
        text: the buckets of distances in the text; None without that part.
        page: the buckets of distances on the page, of x and of y; None without these parts.
    """

    text: BucketedDistance | None
    page: BucketedDistance | None

    def __post_init__(self) -> None:
        if not self._parts:
            raise ValueError("text or page must be a labeler of distances, got None for both")

    @property
    def _parts(self) -> list[BucketedDistance]:
        return [part for part in (self.text, self.page, self.page) if part is not None]

    @property
    def num_labels(self) -> int | tuple[int, ...]:
        """The numbers of buckets: of the text, of x and of y; not a tuple if there is only the text."""
        first, *others = (part.num_labels for part in self._parts)
        return (first, *others) if others else first

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The distances in each bucket, part by part."""
        first, *others = (part.names for part in self._parts)
        return (first, *others) if others else first

    def __call__(self, position_ids: Tensor | None = None, bbox: Tensor | None = None) -> Labels:
        """The labels of tokens at these places.

        Args:
            position_ids: ``[B, N]`` or ``[N]``, integer, positions in the text; patches of an image after it count from
                0 again. Needed with ``text``, else not read.
            bbox: ``[B, N, 4]`` or ``[N, 4]``, integer: left, upper, right and lower edge. Needed with ``page``, else
                not read.

        Returns:
            A sum of dense labels; dense labels if there is only the text.

        Raises:
            TypeError: places that are needed but are not a tensor.
            ValueError: places of another shape or dtype.
        """
        labels: list[Labels] = []
        if self.text is not None:
            labels.append(self.text.at(check.tensor("position_ids", position_ids)))
        if self.page is not None:
            boxes = check.tensor("bbox", bbox)
            if boxes.dim() not in (2, 3) or boxes.shape[-1] != 4:
                raise ValueError(f"bbox must have shape [B, N, 4] or [N, 4], got {list(boxes.shape)}")
            labels += [self.page.at(boxes[..., edge]) for edge in (LEFT, LOWER)]
        return total(*labels) if len(labels) > 1 else labels[0]


class LayoutLMv2Mixin:
    """The forward of ``LayoutLMv2SelfAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **given: Any
    ) -> tuple[Tensor | None, ...]:
        """Self-attention with a mask that is 0 where keys are seen; see :func:`_attend`."""
        query, key, value = self.compute_qkv(hidden_states)
        mask = None if attention_mask is None else ~attention_mask.bool()
        return _attend(self, query, key, value, mask, more, given, 1.0)


class LayoutLMv3Mixin:
    """The forward of ``LayoutLMv3SelfAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **given: Any
    ) -> tuple[Tensor | None, ...]:
        """Self-attention; see :func:`_attend`."""
        query, key, value = (one(hidden_states) for one in (self.query, self.key, self.value))
        return _attend(self, query, key, value, attention_mask, more, given, self.attention_head_size**-0.5)


class EncoderV2Mixin:
    """The labels and tables that the encoder of LayoutLMv2 passes to its layers."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        _prepare(self)

    def _calculate_1d_position_embeddings(self: Any, position_ids: Tensor) -> Biases:
        return _text_biases(self, position_ids)

    def _calculate_2d_position_embeddings(self: Any, bbox: Tensor) -> Biases:
        return _page_biases(self, bbox)


class EncoderV3Mixin:
    """The labels and tables that the encoder of LayoutLMv3 passes to its layers."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        _prepare(self)

    def _cal_1d_pos_emb(self: Any, position_ids: Tensor) -> Biases:
        return _text_biases(self, position_ids)

    def _cal_2d_pos_emb(self: Any, bbox: Tensor) -> Biases:
        return _page_biases(self, bbox)


def text_labeler_of(encoder: Any) -> BucketedDistance:
    """The buckets of distances in the text."""
    return _labeler(encoder.rel_pos_bins, encoder.max_rel_pos)


def page_labeler_of(encoder: Any) -> BucketedDistance:
    """The buckets of distances on the page."""
    return _labeler(encoder.rel_2d_pos_bins, encoder.max_rel_2d_pos)


def _prepare(encoder: Any) -> None:
    if encoder.has_relative_attention_bias:
        made_once(encoder, "text", text_labeler_of)
    if encoder.has_spatial_attention_bias:
        made_once(encoder, "page", page_labeler_of)


def _text_biases(encoder: Any, position_ids: Tensor) -> Biases:
    if position_ids.stride(0) == 0:  # one row for all of the batch
        position_ids = position_ids[:1]
    labeler = made_once(encoder, "text", text_labeler_of)
    return Biases((labeler.at(position_ids),), (weight_of(encoder.rel_pos_bias).detach(),))


def _page_biases(encoder: Any, bbox: Tensor) -> Biases:
    labeler = made_once(encoder, "page", page_labeler_of)
    tables = tuple(weight_of(one).detach() for one in (encoder.rel_pos_x_bias, encoder.rel_pos_y_bias))
    return Biases((labeler.at(bbox[..., LEFT]), labeler.at(bbox[..., LOWER])), tables)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    more: tuple[Any, ...],
    given: dict[str, Any],
    factor: float,
) -> tuple[Tensor | None, ...]:
    """Attention with the biases that the encoder passed on.

    Args:
        module: the patched module.
        query: ``[B, N, E]``, like key and value.
        key: keys.
        value: values.
        mask: as in :func:`~relgraph.interop.transformers.common.attend`.
        more: positional arguments: before transformers 5 a mask of heads and whether to return weights, then the biases
            of text and of the page.
        given: keyword arguments.
        factor: factor on the biases.

    Returns:
        The output, and the weights if they are wanted (from transformers 5 on, None if not).
    """
    names = ("rel_pos", "rel_2d_pos")
    given |= zip(names if version() >= (5, 0) else ("head_mask", "output_attentions", *names), more, strict=False)
    refuse(module, given, "head_mask")
    biases = []
    for name, has in zip(names, (module.has_relative_attention_bias, module.has_spatial_attention_bias), strict=True):
        if has:
            biases.append(_checked(module, name, given.get(name)))
    labels, tables = _joined(biases)
    size = module.attention_head_size
    query, key, value = (split_heads(x, size) for x in (query, key, value))
    scaled = tuple(table * factor for table in tables)
    bias_table = scaled[0] if len(scaled) == 1 else scaled
    output, weights = attend(
        module, query, key, value, labels, mask=mask, dropout=module.dropout.p, scale=size**-0.5,
        need_weights=wants_weights(module, given), bias_table=bias_table,
    )  # fmt: skip
    return (output, weights) if version() >= (5, 0) or weights is not None else (output,)


def _checked(module: Any, name: str, biases: Any) -> Biases:
    """The biases, which must come from a patched encoder."""
    if not isinstance(biases, Biases):
        raise TypeError(
            f"{name} must come from a patched encoder in a patched {type(module).__name__}, got "
            f"{type(biases).__name__}: patch the whole model"
        )
    return biases


def _joined(biases: list[Biases]) -> tuple[Labels, tuple[Tensor, ...]]:
    """The labels of all biases as a sum, and their tables."""
    labels = [one for bias in biases for one in bias.labels]
    tables = tuple(one for bias in biases for one in bias.tables)
    return (total(*labels) if len(labels) > 1 else labels[0]), tables


@functools.lru_cache(maxsize=64)
def _labeler(bins: int, most: int) -> BucketedDistance:
    return BucketedDistance(bins, most)


def convert(module: Any, encoder: Any) -> tuple[RelationAttention, TextAndPage]:
    """A layer with the weights of a module; see :func:`relgraph.interop.transformers.convert`."""
    needs_model(module, encoder, "its encoder")
    text, page = module.has_relative_attention_bias, module.has_spatial_attention_bias
    labeler = TextAndPage(
        text_labeler_of(encoder) if text else None,
        page_labeler_of(encoder) if page else None,
    )
    names = ["rel_pos_bias"] * text + ["rel_pos_x_bias", "rel_pos_y_bias"] * page
    factor = 1.0 if _is_v2(module) else module.attention_head_size**-0.5
    rows = tuple(linear_of(encoder, name)[0] * factor for name in names)
    layer = layer_of(
        _inputs(module), None, {"bias": rows if page else rows[0]}, labeler, heads=module.num_attention_heads,
        dropout=module.dropout.p,
    )  # fmt: skip
    return layer, labeler


def _is_v2(module: Any) -> bool:
    """Whether biases are added to scores after their division."""
    return hasattr(module, "fast_qkv")


def _inputs(module: Any) -> list[Linear]:
    """The projections of queries, keys and values, which may be one without a bias of keys."""
    if not getattr(module, "fast_qkv", False):
        return [linear_of(module, name) for name in ("query", "key", "value")]
    weight, _ = linear_of(module, "qkv_linear")
    query, key, value = weight.chunk(3)
    return [(query, module.q_bias.flatten()), (key, None), (value, module.v_bias.flatten())]


def _why_not(module: Any) -> str | None:
    """No tables, or buckets that T5's rule does not have."""
    text, page = module.has_relative_attention_bias, module.has_spatial_attention_bias
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
        "layoutlmv2.LayoutLMv2Encoder": EncoderV2Mixin,
        "layoutlmv3.LayoutLMv3SelfAttention": LayoutLMv3Mixin,
        "layoutlmv3.LayoutLMv3Encoder": EncoderV3Mixin,
    },
    _why_not,
    convert,
    ("layoutlmv2.LayoutLMv2Encoder", "layoutlmv3.LayoutLMv3Encoder"),
)
