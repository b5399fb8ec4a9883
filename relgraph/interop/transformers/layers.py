"""A layer of relgraph from the weights of a module: its linear projections, and tables in a labeler's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.self_attention import dropout_of, head_size_of, inputs_of, output_of
from relgraph.interop.weights import AttentionWeights, Linear, filled
from relgraph.labelers import Labeler
from relgraph.nn import RelationAttention
from relgraph.nn.projections import BIASED


def linear_of(module: nn.Module, name: str) -> Linear:
    """The weight and the bias of a projection, which has no adapter, as that adds to its weight."""
    found = _part(module, name, nn.Linear, " with floating weights", " and undo quantization")
    return Linear(found.weight, found.bias)


def plain_rows(module: nn.Module, name: str) -> Tensor:
    """The rows ``[R, ...]`` of an embedding, which has no adapter, as that adds to its weight."""
    return _part(module, name, nn.Embedding).weight


def _part(module: nn.Module, name: str, kind: type, more: str = "", hint: str = "") -> Any:
    found: Any = getattr(module, name)
    if not isinstance(found, kind) or not found.weight.is_floating_point():
        raise ValueError(
            f"module.{name} must be a torch.nn.{kind.__name__}{more}, got {type(found).__module__}."
            f"{type(found).__name__}: merge adapters{hint} first"
        )
    return found


def needs_model(module: nn.Module, holder: nn.Module | None, place: str) -> Any:
    """The holder of a module's tables; ValueError if none was found."""
    if holder is None:
        raise ValueError(
            f"model must be given for this {type(module).__name__}, whose tables are in {place}, got None: "
            "convert(module, model=model)"
        )
    return holder


def layer_of(
    module: nn.Module,
    tables: Mapping[str, Tensor | tuple[Tensor, ...]],
    labeler: Labeler,
    *,
    inputs: Sequence[Linear] | None = None,
    output: str | None = None,
    dropout: float | None = None,
    head_dim: int | None = None,
    scale: float | None = None,
    query_biases: tuple[Tensor, Tensor] | None = None,
) -> RelationAttention:
    """A layer with copies of the weights of a module.

    ``tables`` are those of :class:`~relgraph.interop.weights.AttentionWeights`, in the order of the labeler. The other
    arguments replace what the module has by no usual name. Without a projection of outputs the layer gets the identity.
    """
    inputs = [linear_of(module, name) for name in inputs_of(module)] if inputs is None else inputs
    like, head_dim = inputs[0].weight, head_size_of(module) if head_dim is None else head_dim
    output = output_of(module) if output is None else output
    if output is None:
        total, width = like.shape
        if total != width:
            raise ValueError(
                f"module must give outputs as wide as its inputs, as it has no output projection, got "
                f"{total // head_dim} heads of {head_dim} for width {width}: heads were pruned?"
            )
        to_output = Linear(torch.eye(width, dtype=like.dtype, device=like.device))
    else:
        to_output = linear_of(module, output)
    maps = dict(zip(BIASED, (*inputs, to_output), strict=True))
    weights = AttentionWeights(maps, head_dim, tables, query_biases=query_biases)
    made = weights.layer(labeler, dropout_of(module) if dropout is None else dropout, scale=scale)
    return filled(made, weights.state())
