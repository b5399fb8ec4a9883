"""OpenNMT-py's Transformer with ``max_relative_positions``: one table for keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relgraph.interop.checkpoints.build import (
    Layer,
    Options,
    Stack,
    build_attention,
    build_decoder,
    build_encoder,
    build_transformer,
)
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.checkpoints.weights import Attention, Linear, clip_of, linear, maps, norm, sizes
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationDecoder, RelationEncoder, RelationTransformer
from relgraph.nn.layer_parts import Activation

_MAPS = ("linear_query", "linear_keys", "linear_values", "final_linear")
_TABLE = "relative_positions_embeddings.weight"
_ENCODER, _DECODER = "transformer.", "transformer_layers."


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
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors that should not be read; each must match
            one.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix of something else; a tensor that is missing, has another shape, dtype or device, or that
            the module has no place for; a pattern that matches nothing.

    Example:
        >>> names = ("linear_query", "linear_keys", "linear_values", "final_linear")
        >>> at = "encoder.transformer.0.self_attn."
        >>> state = {f"{at}{name}.weight": torch.randn(16, 16) for name in names}
        >>> state[f"{at}relative_positions_embeddings.weight"] = torch.randn(7, 4)              # k = 3, 4 heads
        >>> layer, labeler = rg.interop.checkpoints.from_opennmt(state, prefix=at)
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(3), torch.Size([1, 5, 16]))
    """
    entries = Entries(state, prefix, leave_out)
    if f"{_MAPS[0]}.weight" in entries:
        reader = _Reader(entries, "")
        weights = reader.self_attention("")
        entries.finish("a RelationAttention")
        options = Options(reader.labeler, dropout, activation=activation, layer_norm_eps=layer_norm_eps)
        return build_attention(reader.of, weights, options), reader.labeler

    def read(first: str) -> tuple[_Reader, Options]:
        reader = _Reader(entries, f"{first}0.self_attn.")
        reader.inner, _ = entries.rank_two(f"{first}0.feed_forward.w_1.weight")
        options = Options(
            reader.labeler, dropout, norm_first=True, activation=activation, layer_norm_eps=layer_norm_eps
        )
        return reader, options

    sides = ("encoder." + _ENCODER, "decoder." + _DECODER)
    depths = {at: entries.count(re.escape(at) + r"(\d+)\.") for at in (*sides, _ENCODER, _DECODER)}
    if all(depths[at] for at in sides):
        reader, options = read(sides[0])
        encoder = reader.encoder("encoder.", _ENCODER, depths[sides[0]])
        decoder = reader.decoder("decoder.", depths[sides[1]])
        entries.finish("a RelationTransformer")
        return build_transformer(reader.of, encoder, decoder, options), reader.labeler
    at = _ENCODER if depths[_ENCODER] else _DECODER
    if not depths[at]:
        raise entries.neither(
            "an attention, with 'linear_query.weight'", "an encoder, with 'transformer.0.'",
            "a decoder, with 'transformer_layers.0.'",
            "a model, with 'encoder.transformer.0.' and 'decoder.transformer_layers.0.'",
        )  # fmt: skip
    reader, options = read(at)
    if f"{_DECODER}0.context_attn.{_MAPS[0]}.weight" in entries:
        weights = reader.decoder("", depths[at])
        entries.finish("a RelationDecoder")
        return build_decoder(reader.of, weights, options), reader.labeler
    weights = reader.encoder("", at, depths[at])
    entries.finish("a RelationEncoder")
    return build_encoder(reader.of, weights, options), reader.labeler


class _Reader:
    """Takes layers of the sizes of the self-attention at ``first``; ``inner`` is the width of feed-forward networks."""

    inner: int

    def __init__(self, entries: Entries, first: str) -> None:
        self.entries = entries
        self.of = sizes(entries, f"{first}{_MAPS[0]}.weight", first + _TABLE)
        self.labeler = ClippedDistance(clip_of(entries, first + _TABLE, self.of.labels))
        # later versions have no biases unless add_qkvbias is set
        self.biased = {name: f"{first}{name}.bias" in entries for name in _MAPS}

    def attention(self, at: str) -> Attention:
        """The maps of an attention."""

        def take(name: str, *shape: int) -> Linear:
            return linear(self.entries, at + name, *shape, bias=self.biased[name])

        return Attention(maps(self.of, _MAPS, take))

    def self_attention(self, at: str) -> Attention:
        """An attention with its table."""
        rows = self.entries.take(at + _TABLE, self.of.labels, self.of.head_dim)
        return replace(self.attention(at), tables={"key": rows}, tied=True)

    def encoder(self, at: str, layers: str, depth: int) -> Stack:
        """An encoder, or the decoder of a language model, whose first norm has another name."""
        first = "layer_norm" if layers == _ENCODER else "layer_norm_1"
        found = [self._layer(f"{at}{layers}{number}.", (first,)) for number in range(depth)]
        return Stack(found, norm(self.entries, f"{at}layer_norm", self.of.width))

    def decoder(self, at: str, depth: int) -> Stack:
        """A decoder with an attention to a memory."""
        found = []
        for number in range(depth):
            layer = f"{at}{_DECODER}{number}."
            memory = self.attention(f"{layer}context_attn.")
            found.append(replace(self._layer(layer, ("layer_norm_1", "layer_norm_2")), memory=memory))
        return Stack(found, norm(self.entries, f"{at}layer_norm", self.of.width))

    def _layer(self, at: str, norms: Sequence[str]) -> Layer:
        width, feed_forward = self.of.width, f"{at}feed_forward."
        linears = (
            linear(self.entries, f"{feed_forward}w_1", self.inner, width),
            linear(self.entries, f"{feed_forward}w_2", width, self.inner),
        )
        names = (*(at + name for name in norms), f"{feed_forward}layer_norm")
        found = tuple(norm(self.entries, name, width) for name in names)
        return Layer(self.self_attention(f"{at}self_attn."), linears, found)
