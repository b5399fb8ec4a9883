"""Conformers of speech: a key table by clipped distance, or Transformer-XL's table of sines with biases of the query.

    relative_key:  e_ij = q_i·(k_j + a[clip(j − i, −left, right)]) / √d
    relative:      e_ij = ((q_i + u)·k_j + (q_i + v)·R[j − i]) / √d,  R = W·sines

Parakeet has its positions in the second form too, with rows in the order of ours, and takes biases from ``bias_u`` and
``bias_v``; Nemotron's streaming encoder adds a cache and masks by chunks.

SeamlessM4T v2 masks by chunks. Its eager attention in transformers adds that bool mask to the scores as 0 and 1.
Here the mask blocks pairs, as it does in transformers with SDPA.

Source: Shaw et al. 2018, section 3.2, and Dai et al. 2019, section 3.3; the code of transformers for the clips and for
the order of R: its rows are the distances 1 − N to N − 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from relgraph.interop.transformers.common import made_once, rows_of, split_heads, with_cache
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import SelfAttentionMixin, head_size_of
from relgraph.labelers import ClippedDistance


def labeler_of(module: Any) -> ClippedDistance:
    """The distances of a module with a key table (``relative_key``)."""
    return ClippedDistance((module.left_max_position_embeddings, module.right_max_position_embeddings))


class ConformerMixin(SelfAttentionMixin):
    """The self-attention of Wav2Vec2-BERT, Wav2Vec2-Conformer and SeamlessM4T."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "relative_position_embeddings")

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        if self.position_embeddings_type != "relative":
            labels = made_once(self, "labeler", labeler_of)(states.shape[1])
            return {"labels": labels, "key_table": rows_of(self.distance_embedding).to(states.dtype)}
        return _of_sines(self, states, _given(self, given, "relative_position_embeddings"))


class ParakeetMixin(SelfAttentionMixin):
    """The self-attention of Parakeet, of models with its encoder, and of Nemotron's streaming encoder."""

    _relgraph_words = (*SelfAttentionMixin._relgraph_words, "position_embeddings", "cache")

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        query, key, value = super()._relgraph_heads(states, given)
        return [query, *with_cache(given.get("cache"), self.layer_idx, lambda: (key, value), over_others=False)]

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        sines = _given(self, given, "position_embeddings")
        # in training each sequence may drop others
        return _of_sines(self, states, sines if self.training and self.config.dropout_positions > 0.0 else sines[:1])


def _given(module: Any, given: dict[str, Any], name: str) -> Tensor:
    """The sines of a call."""
    if given.get(name) is None:
        raise ValueError(f"{name} must be given to {type(module).__name__}, got None")
    return given[name]


def _names(module: Any) -> tuple[str, str, str]:
    """The projection of the sines, and the biases u and v of the query."""
    parakeet = hasattr(module, "relative_k_proj")
    return ("relative_k_proj", "bias_u", "bias_v") if parakeet else ("linear_pos", "pos_bias_u", "pos_bias_v")


def _of_sines(module: Any, states: Tensor, sines: Tensor) -> dict[str, Any]:
    """Labels and terms for sines ``[1 or B, 2N - 1, E]`` of the distances 1 - N to N - 1 of N keys."""
    project, content, position = (getattr(module, name) for name in _names(module))
    length, keys = states.shape[1], (sines.shape[1] + 1) // 2
    rows = split_heads(project(sines), head_size_of(module))
    return {
        "labels": ClippedDistance(max(keys - 1, 0))(length, keys, q_offset=keys - length),
        "key_table": rows if len(rows) > 1 else rows[0],
        "content_bias": content,
        "position_bias": position,
    }


def _why_not(module: nn.Module) -> str | None:
    """Adapters have no positions, and rotary positions no table."""
    kind = getattr(module, "position_embeddings_type", None)
    return None if kind in ("relative", "relative_key") else f"it has no table: position_embeddings_type is {kind!r}"


FAMILIES = (
    Family(
        "wav2vec2_bert",
        "Wav2Vec2-BERT, the speech encoder of SeamlessM4T v2",
        {
            "wav2vec2_bert.Wav2Vec2BertSelfAttention": ConformerMixin,
            "seamless_m4t_v2.SeamlessM4Tv2ConformerSelfAttention": ConformerMixin,
        },
        _why_not,
    ),
    Family(
        "conformer",
        "Wav2Vec2-Conformer, the speech encoder of SeamlessM4T",
        {
            "wav2vec2_conformer.Wav2Vec2ConformerSelfAttention": ConformerMixin,
            "seamless_m4t.SeamlessM4TConformerSelfAttention": ConformerMixin,
        },
        _why_not,
    ),
    Family(
        "parakeet",
        "Parakeet, Canary, Cohere Transcribe, Nemotron ASR",
        {
            "parakeet.ParakeetEncoderAttention": ParakeetMixin,
            "nemotron_asr_streaming.NemotronAsrStreamingEncoderAttention": ParakeetMixin,
        },
    ),
)
