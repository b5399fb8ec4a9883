"""tensor2tensor's Transformer with ``dot_product_relative``: names of TensorFlow's variables, kernels ``[in, out]``."""

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
from relgraph.interop.checkpoints.weights import Attention, Linear, clip_of, maps, sizes
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationDecoder, RelationEncoder, RelationTransformer

_MAPS = ("q", "k", "v", "output_transform")
_TABLES = {kind: f"dot_product_attention_relative/relative_positions_{kind}s/embeddings" for kind in ("key", "value")}
_SELF, _MEMORY = "self_attention/multihead_attention/", "encdec_attention/multihead_attention/"
_BEFORE, _AFTER = "layer_prepostprocess/layer_norm/layer_norm_", "layer_postprocess/layer_norm/layer_norm_"


def from_tensor2tensor(
    state: Mapping[str, Any],
    *,
    prefix: str = "",
    layer_norm_eps: float = 1e-6,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention | RelationEncoder | RelationDecoder | RelationTransformer, ClippedDistance]:
    """Read a Transformer of tensor2tensor, or a part of it; return it with the labeler of its distances.

    It must have ``self_attention_type="dot_product_relative"``: tables for keys and for values in each self-attention,
    shared by its heads. Their rows count j - i, key minus query, clipped at ±k, as in relgraph. Kernels are transposed.
    The number of heads follows from the width of a row. Norms come before each step, as in the presets
    ``transformer_relative``, or after it; the names show which.

    Args:
        state: names and tensors, or arrays of numpy, such as those of ``tf.train.load_checkpoint``. A ``":0"`` at the
            end of a name is ignored.
        prefix: the beginning of the names. The next part of the names decides which module is made:

            - ``q/kernel``: :class:`~relgraph.RelationAttention`; such a prefix ends in
              ``"self_attention/multihead_attention/"``;
            - ``layer_0/self_attention/...``: :class:`~relgraph.RelationEncoder`, which you call with
              ``is_causal=True`` if it was a decoder without a memory; with ``layer_0/encdec_attention/...``
              :class:`~relgraph.RelationDecoder`; such a prefix is ``"transformer/body/encoder/"``;
            - ``encoder/layer_0/...`` and ``decoder/layer_0/...``: :class:`~relgraph.RelationTransformer`; such a prefix
              is ``"transformer/body/"``. Its ``target_space_embedding`` has no place there: leave it out, and add its
              row to the embedded inputs.

        layer_norm_eps: ``norm_epsilon`` of the original.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors that should not be read; each must match
            one. ``"*/Adam*"`` is the state of an optimizer.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix of something else; a tensor that is missing, has another shape, dtype or device, or that
            the module has no place for; a pattern that matches nothing.

    Example:
        >>> at = "transformer/body/encoder/layer_0/self_attention/multihead_attention/"
        >>> state = {f"{at}{name}/kernel": torch.randn(16, 16) for name in ("q", "k", "v", "output_transform")}
        >>> for kind in ("keys", "values"):                                                     # k = 3, 4 heads
        ...     state[f"{at}dot_product_attention_relative/relative_positions_{kind}/embeddings"] = torch.randn(7, 4)
        >>> layer, labeler = rg.interop.checkpoints.from_tensor2tensor(state, prefix=at)
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(3), torch.Size([1, 5, 16]))
    """
    entries = Entries(_without_numbers(state), prefix, leave_out)
    if "q/kernel" in entries:
        reader = _Reader(entries, "")
        weights = reader.self_attention("")
        entries.finish("a RelationAttention")
        options = Options(reader.labeler, dropout, layer_norm_eps=layer_norm_eps)
        return build_attention(reader.of, weights, options), reader.labeler

    def read(first: str) -> tuple[_Reader, Options]:
        reader = _Reader(entries, f"{first}layer_0/{_SELF}")
        _, reader.inner = entries.rank_two(f"{first}layer_0/ffn/conv1/kernel")
        reader.norm_first = f"{first}layer_0/self_attention/{_BEFORE}scale" in entries
        return reader, Options(reader.labeler, dropout, norm_first=reader.norm_first, layer_norm_eps=layer_norm_eps)

    depths = {at: entries.count(re.escape(at) + r"layer_(\d+)/") for at in ("encoder/", "decoder/", "")}
    if depths["encoder/"] and depths["decoder/"]:
        reader, options = read("encoder/")
        encoder = reader.encoder("encoder/", depths["encoder/"])
        decoder = reader.decoder("decoder/", depths["decoder/"])
        entries.finish("a RelationTransformer")
        return build_transformer(reader.of, encoder, decoder, options), reader.labeler
    if not depths[""]:
        raise entries.neither(
            "an attention, with 'q/kernel'", "an encoder or a decoder, with 'layer_0/self_attention/'",
            "a model, with 'encoder/layer_0/' and 'decoder/layer_0/'",
        )  # fmt: skip
    reader, options = read("")
    if f"layer_0/{_MEMORY}q/kernel" in entries:
        weights = reader.decoder("", depths[""])
        entries.finish("a RelationDecoder")
        return build_decoder(reader.of, weights, options), reader.labeler
    weights = reader.encoder("", depths[""])
    entries.finish("a RelationEncoder")
    return build_encoder(reader.of, weights, options), reader.labeler


def _without_numbers(state: Any) -> Any:
    """Names of tensors of TensorFlow end in ``:0``, those of its variables in a checkpoint do not."""
    if not isinstance(state, Mapping) or not any(isinstance(name, str) and name.endswith(":0") for name in state):
        return state
    found: dict[Any, Any] = {}
    for name, tensor in state.items():
        short = name.removesuffix(":0") if isinstance(name, str) else name
        if short in found:
            raise ValueError(f"state must have each name once, with or without ':0', got both for {short!r}")
        found[short] = tensor
    return found


class _Reader:
    """Takes layers of the sizes of the self-attention at ``first``; ``inner`` is the width of feed-forward networks."""

    inner: int
    norm_first: bool

    def __init__(self, entries: Entries, first: str) -> None:
        self.entries = entries
        self.of = sizes(entries, f"{first}q/kernel", first + _TABLES["key"], transposed=True)
        self.labeler = ClippedDistance(clip_of(entries, first + _TABLES["key"], self.of.labels))

    def linear(self, name: str, out: int, width: int, *, bias: bool = False) -> Linear:
        """A map whose kernel is ``[width, out]``."""
        weight = self.entries.take(f"{name}/kernel", width, out).T
        return Linear(weight, self.entries.take(f"{name}/bias", out) if bias else None)

    def attention(self, at: str) -> Attention:
        """The maps of an attention."""
        return Attention(maps(self.of, [at + name for name in _MAPS], self.linear))

    def self_attention(self, at: str) -> Attention:
        """An attention with its tables."""
        tables = {
            kind: self.entries.take(at + name, self.of.labels, self.of.head_dim) for kind, name in _TABLES.items()
        }
        return replace(self.attention(at), tables=tables)

    def encoder(self, at: str, depth: int) -> Stack:
        """Layers without a memory."""
        return Stack([self._layer(f"{at}layer_{number}/", ()) for number in range(depth)], self._last_norm(at))

    def decoder(self, at: str, depth: int) -> Stack:
        """Layers with a memory."""
        found = []
        for number in range(depth):
            layer = f"{at}layer_{number}/"
            memory = self.attention(layer + _MEMORY)
            found.append(replace(self._layer(layer, ("encdec_attention",)), memory=memory))
        return Stack(found, self._last_norm(at))

    def _layer(self, at: str, memory: Sequence[str]) -> Layer:
        width = self.of.width
        linears = (
            self.linear(f"{at}ffn/conv1", self.inner, width, bias=True),
            self.linear(f"{at}ffn/conv2", width, self.inner, bias=True),
        )
        steps = ("self_attention", *memory, "ffn")
        place = _BEFORE if self.norm_first else _AFTER
        norms = tuple(self._norm(f"{at}{step}/{place}") for step in steps)
        return Layer(self.self_attention(at + _SELF), linears, norms)

    def _norm(self, at: str) -> Linear:
        return Linear(self.entries.take(f"{at}scale", self.of.width), self.entries.take(f"{at}bias", self.of.width))

    def _last_norm(self, at: str) -> Linear | None:
        """With norms before each step, there is one more after the last layer."""
        return self._norm(at + _BEFORE) if self.norm_first else None
