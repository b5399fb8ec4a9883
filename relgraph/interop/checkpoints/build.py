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
    RelationTables,
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
    return _fill(_attention(of, weights, options), weights.state())


def build_encoder(of: Sizes, weights: Stack, options: Options) -> RelationEncoder:
    """A :class:`~relgraph.RelationEncoder` with these weights."""
    return _fill(_encoder(of, weights, options), weights.state())


def build_decoder(of: Sizes, weights: Stack, options: Options) -> RelationDecoder:
    """A :class:`~relgraph.RelationDecoder` with these weights."""
    return _fill(_decoder(of, weights, options), weights.state())


def build_transformer(of: Sizes, encoder: Stack, decoder: Stack, options: Options) -> RelationTransformer:
    """A :class:`~relgraph.RelationTransformer` with these weights."""
    made = RelationTransformer(
        of.width, of.heads, dropout=options.dropout, custom_encoder=_encoder(of, encoder, options),
        custom_decoder=_decoder(of, decoder, options),
    )  # fmt: skip
    states = {"encoder": encoder.state(), "decoder": decoder.state()}
    return _fill(made, {f"{side}.{name}": tensor for side, state in states.items() for name, tensor in state.items()})


def _attention(of: Sizes, weights: Attention, options: Options, *, labeled: bool = True) -> RelationAttention:
    """An attention of these sizes; without tables unless it is ``labeled``."""
    own: dict[str, Any] = {}
    if labeled:
        labeler = options.labeler
        tables = RelationTables(
            labeler.num_labels, of.head_dim, kinds=weights.kinds, tied=weights.tied, names=labeler.names, shared=False,
            **_place(weights),
        )  # fmt: skip
        own = {"labeler": labeler, "tables": tables}
    return RelationAttention(
        of.width, of.heads, options.dropout, weights.biased, head_dim=of.head_dim, **own, **_place(weights)
    )


def _encoder(of: Sizes, weights: Stack, options: Options) -> RelationEncoder:
    first = weights.layers[0]
    own: dict[str, Any] = {"attention": _attention(of, first.attention, options)}
    layer = RelationEncoderLayer(of.width, of.heads, **_layer_options(first, options), **own)
    return RelationEncoder(layer, len(weights.layers), _norm(of, weights, options), fresh=False)


def _decoder(of: Sizes, weights: Stack, options: Options) -> RelationDecoder:
    first = weights.layers[0]
    assert first.memory is not None
    own: dict[str, Any] = {
        "self_attention": _attention(of, first.attention, options),
        "cross_attention": _attention(of, first.memory, options, labeled=False),
    }
    layer = RelationDecoderLayer(of.width, of.heads, **_layer_options(first, options), **own)
    return RelationDecoder(layer, len(weights.layers), _norm(of, weights, options), fresh=False)


def _layer_options(layer: Layer, options: Options) -> dict[str, Any]:
    return {
        "dim_feedforward": layer.linears[0].weight.shape[0],
        "dropout": options.dropout,
        "activation": options.activation,
        "layer_norm_eps": options.layer_norm_eps,
        "norm_first": options.norm_first,
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
