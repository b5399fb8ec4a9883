"""Modules of relgraph with copies of weights that a reader took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.interop.checkpoints.weights import Attention, Linear, Sizes
from relgraph.nn import (
    RelationAttention,
    RelationDecoder,
    RelationDecoderLayer,
    RelationEncoder,
    RelationEncoderLayer,
    RelationTransformer,
)
from relgraph.nn.layer_parts import Activation, check_activation

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Layer:
    """The weights of a layer; ``memory`` and a third norm are those of a decoder layer."""

    attention: Attention
    linears: tuple[Linear, Linear]
    norms: tuple[Linear, ...]
    memory: Attention | None = None

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationEncoderLayer` or :class:`~relgraph.RelationDecoderLayer`."""
        found = {f"self_attn.{name}": tensor for name, tensor in self.attention.state().items()}
        if self.memory is not None:
            found |= {f"multihead_attn.{name}": tensor for name, tensor in self.memory.state().items()}
        for what, parts in (("linear", self.linears), ("norm", self.norms)):
            for number, part in enumerate(parts, 1):
                found |= _named(f"{what}{number}", part)
        return found


@dataclass(frozen=True)
class Stack:
    """The weights of an encoder or decoder, and the norm after its last layer, if there is one."""

    layers: Sequence[Layer]
    norm: Linear | None

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationEncoder` or :class:`~relgraph.RelationDecoder`."""
        found: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            found |= {f"layers.{number}.{name}": tensor for name, tensor in layer.state().items()}
        return found if self.norm is None else found | _named("norm", self.norm)


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
    norm_first: bool = False
    activation: Activation = "relu"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Check options that a single attention would not read."""
        check_activation(self.activation)
        if check.finite("layer_norm_eps", self.layer_norm_eps) < 0:
            raise ValueError(f"layer_norm_eps must be at least 0, got {self.layer_norm_eps}")


def build_attention(of: Sizes, weights: Attention, options: Options) -> RelationAttention:
    """A :class:`~relgraph.RelationAttention` with these weights."""
    labeler = options.labeler
    made = RelationAttention(
        of.width, of.heads, options.dropout, weights.biased, head_dim=of.head_dim, num_labels=labeler.num_labels,
        names=labeler.names, tables=weights.kinds, tie_tables=weights.tied, **_place(weights),
    )  # fmt: skip
    return _fill(made, weights.state())


def build_encoder(of: Sizes, weights: Stack, options: Options) -> RelationEncoder:
    """A :class:`~relgraph.RelationEncoder` with these weights."""
    layer = RelationEncoderLayer(of.width, of.heads, **_layer_options(of, weights, options), labeler=options.labeler)
    norm = _norm(of, weights, options)
    return _fill(RelationEncoder(layer, len(weights.layers), norm), weights.state())


def build_decoder(of: Sizes, weights: Stack, options: Options) -> RelationDecoder:
    """A :class:`~relgraph.RelationDecoder` with these weights."""
    layer = RelationDecoderLayer(of.width, of.heads, **_layer_options(of, weights, options), labeler=options.labeler)
    norm = _norm(of, weights, options)
    return _fill(RelationDecoder(layer, len(weights.layers), norm), weights.state())


def build_transformer(of: Sizes, encoder: Stack, decoder: Stack, options: Options) -> RelationTransformer:
    """A :class:`~relgraph.RelationTransformer` with these weights; ``options.labeler`` clips at both ends alike."""
    made = RelationTransformer(
        of.width, of.heads, len(encoder.layers), len(decoder.layers), **_layer_options(of, encoder, options),
        max_distance=options.labeler.left,
    )  # fmt: skip
    for side, weights in ((made.encoder, encoder), (made.decoder, decoder)):
        if weights.norm is None:
            side.norm = None
    states = {"encoder": encoder.state(), "decoder": decoder.state()}
    return _fill(made, {f"{side}.{name}": tensor for side, state in states.items() for name, tensor in state.items()})


def _layer_options(of: Sizes, weights: Stack, options: Options) -> dict[str, Any]:
    first = weights.layers[0]
    return {
        "dim_feedforward": first.linears[0].weight.shape[0],
        "dropout": options.dropout,
        "activation": options.activation,
        "layer_norm_eps": options.layer_norm_eps,
        "norm_first": options.norm_first,
        "head_dim": of.head_dim,
        "attention_bias": first.attention.biased,
        "tables": first.attention.kinds,
        "tie_tables": first.attention.tied,
        **_place(first.attention),
    }


def _norm(of: Sizes, weights: Stack, options: Options) -> nn.LayerNorm | None:
    if weights.norm is None:
        return None
    return nn.LayerNorm(of.width, options.layer_norm_eps, **_place(weights.layers[0].attention))


def _place(weights: Attention) -> dict[str, Any]:
    weight = weights.maps["query"].weight
    return {"device": weight.device, "dtype": weight.dtype}


def _named(name: str, part: Linear) -> dict[str, Tensor]:
    return {f"{name}.weight": part.weight} | ({} if part.bias is None else {f"{name}.bias": part.bias})


def _fill(module: _Module, state: dict[str, Tensor]) -> _Module:
    """Copy each tensor into the parameter of its name; every parameter must get one."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == state.keys(), sorted(parameters.keys() ^ state.keys())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])
    return module
