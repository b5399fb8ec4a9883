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

from relgraph.interop.transformers.common import compute, rows_of, shared_table, split_heads
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import SelfAttentionMixin, head_size_of
from relgraph.labelers import BucketedDistance, ClippedDistance, DistanceLabeler
from relgraph.labels import UNLABELED


@dataclass(frozen=True)
class WindowDistance(DistanceLabeler):
    """The distances −window to window; farther pairs attend without a label."""

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


class VitsMixin(SelfAttentionMixin):
    """The forward of ``VitsAttention``; like the model's own it does not read ``key_value_states``."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "key_value_states")

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        labels = WindowDistance(self.window_size)(states.shape[1])
        return {"labels": labels, "key_table": self.emb_rel_k[0], "value_table": self.emb_rel_v[0]}


class SpeechT5PositionsMixin:
    """The forward of ``SpeechT5RelativePositionalEncoding``: the table in place of a row for each pair."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_states: Tensor) -> Tensor:  # noqa: ARG002
        """The table ``[R, D]``, its rows in the order of the labeler."""
        rows = rows_of(self.pe_k)
        return speecht5_labeler(rows.shape[0]).rows_from(rows, "query-key")


class SpeechT5Mixin(SelfAttentionMixin):
    """The forward of ``SpeechT5Attention`` in an encoder; ``position_bias`` is the table ``[R, D]`` of the encoder."""

    _relgraph_words = (
        *SelfAttentionMixin._relgraph_words, "key_value_states", "cache", "position_bias",
    )  # fmt: skip

    def _relgraph_terms(self, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        for name in ("key_value_states", "cache"):
            if given.get(name) is not None:
                kind = type(given[name]).__name__
                raise NotImplementedError(
                    f"{name} must be None in the patched SpeechT5Attention of an encoder, got {kind}"
                )
        table = given.get("position_bias")
        if table is None:
            return {}
        labels = speecht5_labeler(shared_table(table, "[R, D]").shape[0])(states.shape[1])
        return {"labels": labels, "key_table": table}


def speecht5_labeler(rows: int) -> ClippedDistance:
    """The distances of a SpeechT5 table of 2m rows, which count i − j from −m to m − 1."""
    return ClippedDistance((rows // 2 - 1, rows // 2))


class WavLMMixin(SelfAttentionMixin):
    """The forward of ``WavLMAttention``.

    The first layer hands its table ``[H, R]`` to the others in place of the bias of all pairs. As in transformers, the
    weights are their mean over the heads, once for each head.
    """

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "position_bias", "index")

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        table, mask = given.get("position_bias"), given.get("attention_mask")
        table = rows_of(self.rel_attn_embed).t() if table is None else shared_table(table, "[H, R]")
        given["position_bias"] = table
        return {
            "labels": wavlm_labeler(self)(states.shape[1]),
            "mask": None if mask is None else mask.eq(1)[:, None, None, :],
            "row_scores": _gate(self, states) * table[:, None],
        }

    def _relgraph_answer(
        self: Any, output: Tensor, weights: Tensor | None, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        if weights is not None:
            weights = weights.mean(1, keepdim=True).expand(-1, self.num_heads, -1, -1)
        return output, weights, given["position_bias"]


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
        """Self-attention of states ``[B, N, E]`` within blocks of ``context_size``; the last may be shorter."""
        states = self.pre_norm(hidden_states)
        query, (key, value) = self.to_q(states), self.to_kv(states).chunk(2, -1)
        return self.dropout(self.to_out(_in_blocks(self, query, key, value)))


def _in_blocks(module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output ``[B, N, H · D]`` for inputs of this shape, within blocks of ``context_size``."""
    batch, length, size = *query.shape[:2], module.context_size
    whole = length - length % size
    outputs = []
    for begin, end, block in ((0, whole, size), (whole, length, length - whole)):
        if begin == end:
            continue
        q, k, v = (
            split_heads(x[:, begin:end].reshape(-1, block, x.shape[-1]), head_size_of(module))
            for x in (query, key, value)
        )
        # only the rows that a block has, because their products with the query are the cost of the table
        labels = ClippedDistance(block - 1)(block)
        output, _ = compute(
            module, q, k, v, labels, mask=None, dropout=0.0, scale=None, key_table=_rows_of_block(module, block)
        )
        outputs.append(output.reshape(batch, end - begin, -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _rows_of_block(module: Any, length: int) -> Tensor:
    """The rows of Granite Speech's table for the distances within a block of this length, ``[2 · length - 1, D]``."""
    rows = rows_of(module.rel_pos_emb)
    middle = rows.shape[0] // 2
    return ClippedDistance(length - 1).rows_from(rows[middle - length + 1 : middle + length], "query-key")


def _no_window(module: nn.Module) -> str | None:
    return None if getattr(module, "window_size", None) else "it has no tables: window_size is not set"


def _of_decoder(module: nn.Module) -> str | None:
    return "the decoder has no tables" if getattr(module, "is_decoder", False) else None


FAMILIES = (
    Family("vits", "the text encoder of VITS and MMS-TTS", {"vits.VitsAttention": VitsMixin}, _no_window),
    Family(
        "speecht5",
        "the encoder of SpeechT5",
        {
            "speecht5.SpeechT5RelativePositionalEncoding": SpeechT5PositionsMixin,
            "speecht5.SpeechT5Attention": SpeechT5Mixin,
        },
        _of_decoder,
    ),
    Family(
        "wavlm",
        "WavLM",
        {"wavlm.WavLMAttention": WavLMMixin},
    ),
    Family(
        "granite_speech",
        "the speech encoder of Granite Speech",
        {
            "granite_speech.GraniteSpeechConformerAttention": GraniteMixin,
            "granite_speech_plus.GraniteSpeechPlusConformerAttention": GraniteMixin,
        },
    ),
)
