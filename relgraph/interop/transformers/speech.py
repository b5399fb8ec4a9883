"""Speech models, each with another kind of table: VITS, SpeechT5, WavLM, Granite Speech.

    VITS:            e_ij = q_i·(k_j + a^K[j − i]) / √d,  z_i = Σ_j α_ij (v_j + a^V[j − i]),  no row beyond the window
    SpeechT5:        e_ij = q_i·(k_j + a[clip(i − j, −m, m − 1)]) / √d
    WavLM:           e_ij = q_i·k_j / √d + g_i·b[bucket(j − i)],  g_i a gate per head and query
    Granite Speech:  e_ij = q_i·(k_j + a[i − j]) / √d,  within blocks of a fixed length

Source: Shaw et al. 2018 (VITS, SpeechT5, Granite Speech); Chen et al. 2022, section 3.1 (WavLM); the code of
transformers for the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.interop.transformers.common import (
    attend,
    refuse,
    rows_of,
    split_heads,
    wants_weights,
)
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.layers import layer_of, linear_of, needs_model, plain_rows
from relgraph.labelers import BucketedDistance, ClippedDistance, DistanceLabeler, Labeler
from relgraph.labels import UNLABELED, DenseLabels, Labels
from relgraph.nn import RelationAttention


@dataclass(frozen=True)
class WindowDistance(DistanceLabeler):
    """The distances −window to window; farther pairs attend without a label.

    Args:
        window: the farthest distance with a label.
    """

    window: int

    @property
    def num_labels(self) -> int:
        return 2 * self.window + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, key position minus query position."""
        return tuple(str(distance) for distance in range(-self.window, self.window + 1))

    @property
    def lookup(self) -> tuple[int, ...]:
        return (UNLABELED, *range(self.num_labels), UNLABELED)

    @property
    def reach(self) -> int:
        return self.window + 1


@dataclass(frozen=True)
class BlockDistance(Labeler):
    """The distances of pairs in the same block of a sequence; other pairs do not attend.

    Args:
        size: how many positions a block has; the last one may have fewer.

    Example:
        >>> from relgraph.interop.transformers.speech import BlockDistance
        >>> BlockDistance(2)(3).to_dense()[0]                                    # the last position does not see others
        tensor([[[ 1,  2, -1],
                 [ 0,  1, -1],
                 [-1, -1,  1]]])
    """

    size: int

    @property
    def num_labels(self) -> int:
        return 2 * self.size - 1

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, key position minus query position."""
        return self._within_a_block().names

    def __call__(self, length: int) -> Labels:  # type: ignore[override]
        """The labels of a sequence; written out if it has more than one block.

        Args:
            length: N.
        """
        labels = self._within_a_block()(length)
        if length <= self.size:
            return labels
        check.written("length", length, length)
        blocks = torch.arange(length) // self.size
        return DenseLabels(labels.to_dense()[0][0], self.num_labels, attend=blocks[:, None] == blocks)

    def _within_a_block(self) -> ClippedDistance:
        return ClippedDistance(self.size - 1)


class VitsMixin:
    """The forward of ``VitsAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,  # noqa: ARG002
        attention_mask: Tensor | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention; like the model's own forward it does not read ``key_value_states``.

        Returns:
            The output, and the weights or None.
        """
        refuse(self, given, "layer_head_mask")
        length = hidden_states.shape[1]
        output, weights = _self_attention(
            self, hidden_states, attention_mask, WindowDistance(self.window_size)(length),
            wants_weights(self, given), key_table=self.emb_rel_k[0], value_table=self.emb_rel_v[0],
        )  # fmt: skip
        return self.out_proj(output), weights


class SpeechT5PositionsMixin:
    """The forward of ``SpeechT5RelativePositionalEncoding``: the table in place of a row for each pair."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_states: Tensor) -> Tensor:  # noqa: ARG002
        """The table ``[R, D]``, its rows in the order of the labeler."""
        rows = rows_of(self.pe_k)
        return speecht5_labeler(rows.shape[0]).rows_from(rows, "query-key")


class SpeechT5Mixin:
    """The forward of ``SpeechT5Attention`` in an encoder."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        *,
        position_bias: Tensor | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention; ``position_bias`` is the table ``[R, D]`` of the encoder.

        Returns:
            The output, and the weights or None.
        """
        refuse(self, given, "layer_head_mask")
        for name, value in (("key_value_states", key_value_states), ("past_key_values", past_key_values)):
            if value is not None:
                raise NotImplementedError(
                    f"{name} must be None in the patched SpeechT5Attention of an encoder, got {type(value).__name__}"
                )
        labels, length = None, hidden_states.shape[1]
        if position_bias is not None:
            if position_bias.dim() != 2:
                shape = list(position_bias.shape)
                raise ValueError(
                    f"position_bias must be the table [R, D] of a patched encoder, got shape {shape}: all layers of an "
                    "encoder share it, so patch the whole encoder"
                )
            labels = speecht5_labeler(position_bias.shape[0])(length)
        output, weights = _self_attention(
            self, hidden_states, attention_mask, labels, wants_weights(self, given), key_table=position_bias
        )
        return self.out_proj(output), weights


def speecht5_labeler(rows: int) -> ClippedDistance:
    """The distances of a SpeechT5 table of 2m rows, which count i − j from −m to m − 1."""
    return ClippedDistance((rows // 2 - 1, rows // 2))


class WavLMMixin:
    """The forward of ``WavLMAttention``.

    The first layer hands its table ``[H, R]`` to the others in place of the bias of all pairs.
    """

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Self-attention.

        Returns:
            The output; the mean of the weights over the heads, once for each head (what the model gives), or None; and
            the table ``[H, R]``.
        """
        if position_bias is not None and position_bias.dim() != 2:
            shape = list(position_bias.shape)
            raise ValueError(
                f"position_bias must be the table [H, R] of a patched layer, got shape {shape}: all layers share one "
                "bias, so patch all of them"
            )
        table = rows_of(self.rel_attn_embed).t() if position_bias is None else position_bias
        length = hidden_states.shape[1]
        mask = None if attention_mask is None else attention_mask.eq(1)[:, None, None, :]
        output, weights = _self_attention(
            self, hidden_states, mask, wavlm_labeler(self)(length),
            wants_weights(self, given), row_scores=_gate(self, hidden_states) * table[:, None],
        )  # fmt: skip
        if weights is not None:
            weights = weights.mean(1, keepdim=True).expand(-1, self.num_heads, -1, -1)
        return self.out_proj(output), weights, table


def wavlm_labeler(module: Any) -> BucketedDistance:
    """The buckets of a WavLM module, which are those of T5."""
    return BucketedDistance(module.num_buckets, module.max_distance)


def _gate(module: Any, states: Tensor) -> Tensor:
    """The factor on the bias of each query, ``[B, H, N, 1]``."""
    parts = module.gru_rel_pos_linear(split_heads(states, module.head_dim))
    first, second = parts.unflatten(-1, (2, -1)).sum(-1).sigmoid().chunk(2, -1)
    return first * (second * module.gru_rel_pos_const - 1.0) + 2.0


class GraniteMixin:
    """The forward of ``GraniteSpeechConformerAttention``."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_states: Tensor, attention_dists: Tensor) -> Tensor:  # noqa: ARG002
        """Self-attention within blocks of ``context_size``, the last of which may be shorter.

        Args:
            hidden_states: ``[B, N, E]``.
            attention_dists: the rows of all pairs of a block; not read, as they follow from the distances.

        Returns:
            The output ``[B, N, E]``.
        """
        states = self.pre_norm(hidden_states)
        query = self.to_q(states)
        key, value = self.to_kv(states).chunk(2, -1)
        batch, length, size = *states.shape[:2], self.context_size
        whole = length - length % size
        outputs = []
        for begin, end, block in ((0, whole, size), (whole, length, length - whole)):
            if begin == end:
                continue
            q, k, v = (
                split_heads(x[:, begin:end].reshape(-1, block, x.shape[-1]), self.dim_head) for x in (query, key, value)
            )
            # only the rows that a block has, because their products with the query are the cost of the table
            labels = ClippedDistance(block - 1)(block)
            output, _ = attend(
                self, q, k, v, labels, mask=None, dropout=0.0, scale=self.scale, key_table=_rows_of_block(self, block)
            )
            outputs.append(output.reshape(batch, end - begin, -1))
        return self.dropout(self.to_out(outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)))


def _rows_of_block(module: Any, length: int) -> Tensor:
    """The rows of Granite Speech's table for the distances within a block of this length, ``[2 · length - 1, D]``."""
    rows = rows_of(module.rel_pos_emb)[module.max_pos_emb - length + 1 : module.max_pos_emb + length]
    return ClippedDistance(length - 1).rows_from(rows, "query-key")


def _self_attention(
    module: Any, states: Tensor, mask: Tensor | None, labels: Any, need_weights: bool, **terms: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of states to themselves by projections of the usual names: ``[B, N, E]``, and the weights or None."""
    size = module.head_dim
    return attend(
        module,
        split_heads(module.q_proj(states), size),
        split_heads(module.k_proj(states), size),
        split_heads(module.v_proj(states), size),
        labels,
        mask=mask,
        dropout=module.dropout,
        scale=module.scaling,
        need_weights=need_weights,
        **terms,
    )


def convert_vits(module: Any) -> tuple[RelationAttention, WindowDistance]:
    """A layer with the weights of a module; see :func:`relgraph.interop.transformers.convert`."""
    tables = {"key": module.emb_rel_k[0], "value": module.emb_rel_v[0]}
    labeler = WindowDistance(module.window_size)
    return _converted(module, tables, labeler), labeler


def convert_speecht5(module: Any, encoder: Any) -> tuple[RelationAttention, ClippedDistance]:
    """A layer with the weights of a module and its encoder's table; see the public function."""
    rows = plain_rows(needs_model(module, encoder, "its encoder").embed_positions, "pe_k")
    labeler = speecht5_labeler(rows.shape[0])
    return _converted(module, {"key": labeler.rows_from(rows, "query-key")}, labeler), labeler


def _converted(module: Any, tables: dict[str, Tensor], labeler: Labeler) -> RelationAttention:
    """A layer with these tables and with projections of the usual names."""
    inputs = [linear_of(module, name) for name in ("q_proj", "k_proj", "v_proj")]
    output = linear_of(module, "out_proj")
    return layer_of(inputs, output, tables, labeler, heads=module.num_heads, dropout=module.dropout)


def convert_granite(module: Any) -> tuple[RelationAttention, BlockDistance]:
    """A layer with the weights of a module, for states that are normalized; see the public function."""
    labeler = BlockDistance(module.context_size)
    query, both = linear_of(module, "to_q"), linear_of(module, "to_kv")
    inputs = [query, *((weight, None) for weight in both[0].chunk(2))]
    plain_rows(module, "rel_pos_emb")  # with an adapter its weight would not be all of it
    tables = {"key": _rows_of_block(module, module.context_size)}
    layer = layer_of(inputs, linear_of(module, "to_out"), tables, labeler, heads=module.num_heads, dropout=0.0)
    return layer, labeler


def _no_window(module: nn.Module) -> str | None:
    return None if getattr(module, "window_size", None) else "it has no tables: window_size is not set"


def _of_decoder(module: nn.Module) -> str | None:
    return "the decoder has no tables" if getattr(module, "is_decoder", False) else None


FAMILIES = (
    Family("vits", "the text encoder of VITS and MMS-TTS", {"vits.VitsAttention": VitsMixin}, _no_window, convert_vits),
    Family(
        "speecht5",
        "the encoder of SpeechT5",
        {
            "speecht5.SpeechT5RelativePositionalEncoding": SpeechT5PositionsMixin,
            "speecht5.SpeechT5Attention": SpeechT5Mixin,
        },
        _of_decoder,
        convert_speecht5,
        ("speecht5.SpeechT5Encoder",),
        {
            "speecht5.SpeechT5RelativePositionalEncoding": "it makes the table of an encoder: convert the attention "
            "modules, with model="
        },
    ),
    Family(
        "wavlm",
        "WavLM",
        {"wavlm.WavLMAttention": WavLMMixin},
        no_layer={
            "wavlm.WavLMAttention": "each query multiplies its biases by a gate, and the tables of a layer are "
            "the same for all queries"
        },
    ),
    Family(
        "granite_speech",
        "the speech encoder of Granite Speech",
        {
            "granite_speech.GraniteSpeechConformerAttention": GraniteMixin,
            "granite_speech_plus.GraniteSpeechPlusConformerAttention": GraniteMixin,
        },
        convert=convert_granite,
    ),
)
