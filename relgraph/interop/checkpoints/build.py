"""Layers, stacks of layers and whole models of relgraph for weights that a reader took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from relgraph.interop.weights import AttentionWeights, Linear
from relgraph.nn import (
    RelationDecoder,
    RelationDecoderLayer,
    RelationEncoder,
    RelationEncoderLayer,
    RelationTransformer,
)
from relgraph.nn.layer_parts import Activation


@dataclass(frozen=True)
class Options:
    """Options that the weights do not determine.

    Attributes:
        labeler: makes the labels.
        dropout: dropout of the new module.
        norm_first: whether norms come before each step.
        activation: activation of the feed-forward networks.
        layer_norm_eps: the number that norms add to variances.
    """

    labeler: Any
    dropout: float
    norm_first: bool
    activation: Activation
    layer_norm_eps: float


@dataclass(frozen=True)
class Layer:
    """The weights of a layer; ``memory`` and a third norm are those of a decoder layer."""

    attention: AttentionWeights
    linears: tuple[Linear, Linear]
    norms: tuple[Linear, ...]
    memory: AttentionWeights | None = None

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationEncoderLayer` or :class:`~relgraph.RelationDecoderLayer`."""
        found = _under("self_attn", self.attention.state())
        if self.memory is not None:
            found |= _under("multihead_attn", self.memory.state())
        for what, parts in (("linear", self.linears), ("norm", self.norms)):
            for number, part in enumerate(parts, 1):
                found |= part.state(f"{what}{number}")
        return found


@dataclass(frozen=True)
class Stack:
    """The weights of an encoder or decoder, and the norm after its last layer, if there is one."""

    layers: Sequence[Layer]
    norm: Linear | None

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationEncoder` or :class:`~relgraph.RelationDecoder`."""
        found = {} if self.norm is None else self.norm.state("norm")
        for number, layer in enumerate(self.layers):
            found |= _under(f"layers.{number}", layer.state())
        return found

    def make(self, options: Options) -> RelationEncoder | RelationDecoder:
        """A decoder if its layers have a memory, and else an encoder."""
        first = self.layers[0]
        attention = make_attention(first.attention, options)
        sizes = (attention.embed_dim, attention.num_heads, first.linears[0].weight.shape[0], options.dropout)
        more: dict[str, Any] = {
            "activation": options.activation, "layer_norm_eps": options.layer_norm_eps,
            "norm_first": options.norm_first,
        }  # fmt: skip
        norm = None
        if self.norm is not None:
            norm = nn.LayerNorm(attention.embed_dim, options.layer_norm_eps, **first.attention.place)
        if first.memory is None:
            layer = RelationEncoderLayer(*sizes, attention=attention, **more)
            return RelationEncoder(layer, len(self.layers), norm, fresh=False)
        memory = first.memory.layer(None, options.dropout)
        layer = RelationDecoderLayer(*sizes, self_attention=attention, cross_attention=memory, **more)
        return RelationDecoder(layer, len(self.layers), norm, fresh=False)


@dataclass(frozen=True)
class Model:
    """The weights of an encoder and a decoder."""

    encoder: Stack
    decoder: Stack

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationTransformer`."""
        return _under("encoder", self.encoder.state()) | _under("decoder", self.decoder.state())

    def make(self, options: Options) -> RelationTransformer:
        """A model of both."""
        encoder: Any = self.encoder.make(options)
        decoder: Any = self.decoder.make(options)
        attention = encoder.layers[0].self_attn
        return RelationTransformer(
            attention.embed_dim, attention.num_heads, dropout=options.dropout, custom_encoder=encoder,
            custom_decoder=decoder,
        )  # fmt: skip


def make_attention(weights: AttentionWeights, options: Options) -> Any:
    """An attention that makes its labels itself."""
    return weights.layer(options.labeler, options.dropout, labeler=options.labeler)


def _under(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{inner}": tensor for inner, tensor in state.items()}
