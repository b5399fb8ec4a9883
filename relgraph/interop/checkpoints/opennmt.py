"""OpenNMT-py's Transformer with ``max_relative_positions``: one table for keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relgraph.interop.checkpoints.reader import Reader
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationDecoder, RelationEncoder, RelationTransformer
from relgraph.nn.layer_parts import Activation


class _Reader(Reader):
    maps = ("linear_query", "linear_keys", "linear_values", "final_linear")
    tables: Mapping[str, str] = MappingProxyType({"key": "relative_positions_embeddings.weight"})
    alone = ("transformer.", "transformer_layers.")
    sides = ("encoder.transformer.", "decoder.transformer_layers.")
    memory_at = "context_attn."
    wanted = (
        "an attention, with 'linear_query.weight'", "an encoder, with 'transformer.0.'",
        "a decoder, with 'transformer_layers.0.'",
        "a model, with 'encoder.transformer.0.' and 'decoder.transformer_layers.0.'",
    )  # fmt: skip
    attention_bias = None  # later versions have none unless add_qkvbias is set
    tied = norm_first = True

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:
        """In a decoder, that of a language model too, the first norm has another name."""
        side, decoder, _ = at.partition("transformer_layers.")
        side = side.removesuffix("transformer.")
        first = ("layer_norm_1", "layer_norm_2")[: 1 + memory] if decoder else ("layer_norm",)
        return (*first, "feed_forward.layer_norm"), f"{side}layer_norm"


def from_opennmt(
    state: Mapping[str, Any],
    *,
    prefix: str = "",
    activation: Activation = "relu",
    layer_norm_eps: float = 1e-6,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention | RelationEncoder | RelationDecoder | RelationTransformer, ClippedDistance]:
    """Read a Transformer of OpenNMT-py, or a part of it; return it with the labeler of its distances.

    Each self-attention has one table, ``relative_positions_embeddings``, for keys and values. Its rows count j - i, key
    minus query, clipped at ±k, as in relgraph. The number of heads follows from the width of a row. Norms come before
    each step.

    Args:
        state: names and tensors, or arrays of numpy.
        prefix: the beginning of the names. The next part of the names decides which module is made:

            - ``linear_query.weight``: :class:`~relgraph.RelationAttention`;
            - ``transformer.0.self_attn...``: :class:`~relgraph.RelationEncoder`;
            - ``transformer_layers.0.self_attn...``: :class:`~relgraph.RelationDecoder`; for a language model, whose
              layers have no ``context_attn``, a RelationEncoder, which you call with ``is_causal=True``;
            - ``encoder.transformer...`` and ``decoder.transformer_layers...``: :class:`~relgraph.RelationTransformer`.

            Embeddings and the generator have no place in these modules: leave them out, for example by
            ``"*embeddings.make_embedding.*"``.
        activation: ``pos_ffn_activation_fn`` of the original.
        layer_norm_eps: ``norm_eps`` of the original.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix, pattern or tensor that does not fit; see the package.

    Example:
        >>> names = ("linear_query", "linear_keys", "linear_values", "final_linear")
        >>> at = "encoder.transformer.0.self_attn."
        >>> state = {f"{at}{name}.weight": torch.randn(16, 16) for name in names}
        >>> state[f"{at}relative_positions_embeddings.weight"] = torch.randn(7, 4)              # k = 3, 4 heads
        >>> layer, labeler = rg.interop.checkpoints.from_opennmt(state, prefix=at)
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(3), torch.Size([1, 5, 16]))
    """
    return _Reader(state, prefix, leave_out).build(dropout, activation=activation, layer_norm_eps=layer_norm_eps)
