"""A layer of relgraph from the weights of a module: its linear projections, and tables in a labeler's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.converting import filled
from relgraph.labelers import Labeler
from relgraph.nn import RelationAttention, RelationTables
from relgraph.nn.projections import BIASED

Linear = tuple[Tensor, Tensor | None]
"""A weight ``[out, in]`` and a bias ``[out]``, if there is one."""

Tables = Mapping[str, Tensor | tuple[Tensor, ...]]
"""Rows by kind of table, as :func:`~relgraph.relation_attention` takes them; for a sum of labels one per part."""


def linear_of(module: nn.Module, name: str) -> Linear:
    """The weight and the bias of a projection of a module.

    Raises:
        ValueError: a projection other than a linear layer, such as one with an adapter, which adds to its weight.
    """
    found: Any = getattr(module, name)
    if not isinstance(found, nn.Linear) or not found.weight.is_floating_point():
        raise ValueError(
            f"module.{name} must be a torch.nn.Linear with floating weights, got "
            f"{type(found).__module__}.{type(found).__name__}: merge adapters and undo quantization first"
        )
    return found.weight, found.bias


def plain_rows(module: nn.Module, name: str) -> Tensor:
    """The rows ``[R, ...]`` of an embedding of a module.

    Raises:
        ValueError: an embedding of another class, such as one with an adapter, which adds to its weight.
    """
    found: Any = getattr(module, name)
    if not isinstance(found, nn.Embedding):
        raise ValueError(
            f"module.{name} must be a torch.nn.Embedding, got {type(found).__module__}.{type(found).__name__}: "
            "merge adapters first"
        )
    return found.weight


def needs_model(module: nn.Module, holder: nn.Module | None, place: str) -> Any:
    """The holder of a module's tables.

    Args:
        module: the attention module, for the message.
        holder: the holder that was found around it, or None.
        place: where its tables are, in words.

    Raises:
        ValueError: no holder.
    """
    if holder is None:
        raise ValueError(
            f"model must be given for this {type(module).__name__}, whose tables are in {place}, got None: "
            "convert(module, model=model)"
        )
    return holder


def layer_of(
    inputs: Sequence[Linear],
    output: Linear | None,
    tables: Tables,
    labeler: Labeler,
    *,
    heads: int,
    dropout: float,
    scale: float | None = None,
    query_biases: tuple[Tensor, Tensor] | None = None,
) -> RelationAttention:
    """A layer with copies of these weights.

    Args:
        inputs: the projections of queries, keys and values.
        output: the projection of outputs; None for the identity.
        tables: the rows in the order of the labeler's labels; rows with an axis of heads make a table per head.
        labeler: the labeler of the tables.
        heads: H.
        dropout: dropout of attention weights.
        scale: factor on products, 1/√D by default.
        query_biases: u and v of Transformer-XL, ``[H, D]`` each, if there are any.

    Raises:
        ValueError: no output projection, and heads that together do not have the width of the states.
    """
    like = inputs[0][0]
    total, width = like.shape
    if output is None:
        if total != width:
            raise ValueError(
                f"module must give outputs as wide as its inputs, as it has no output projection, got {heads} heads of "
                f"{total // heads} for width {width}: heads were pruned?"
            )
        output = torch.eye(width, dtype=like.dtype, device=like.device), None
    projections: dict[str, Linear] = dict(zip(BIASED, (*inputs, output), strict=True))
    weights = {"in_proj_weight": torch.cat([weight for weight, _ in inputs]), "out_proj.weight": output[0]}
    biased = [name for name, (_, bias) in projections.items() if bias is not None]
    weights |= _biases(projections, biased)
    for kind, rows in tables.items():
        if isinstance(rows, tuple):
            weights |= {f"tables.{kind}.{part}.rows": one for part, one in enumerate(rows)}
        else:
            weights[f"tables.{kind}.rows"] = rows
    if query_biases is not None:
        weights["content_bias"], weights["position_bias"] = query_biases
    has_biases = query_biases is not None
    place = {"device": like.device, "dtype": like.dtype}
    made = RelationTables(
        labeler.num_labels, total // heads, heads, kinds=tuple(tables), names=labeler.names, shared=False,
        per_head=[kind for kind, rows in tables.items() if _has_heads(kind, rows)] or False, **place,
    )  # fmt: skip
    layer = RelationAttention(
        width, heads, dropout, biased, head_dim=total // heads, scale=scale, tables=made, content_bias=has_biases,
        position_bias=has_biases, **place,
    )  # fmt: skip
    return filled(layer, weights)


def _biases(projections: Mapping[str, Linear], biased: Sequence[str]) -> dict[str, Tensor]:
    """The biases by the names of the layer's parameters: those of queries, keys and values are one if all have one."""
    found = {name: bias for name, (_, bias) in projections.items() if bias is not None}
    weights = {"out_proj.bias": found.pop("output")} if "output" in biased else {}
    if len(found) == 3:
        return weights | {"in_proj_bias": torch.cat(list(found.values()))}
    return weights | {f"{name[0]}_proj_bias": bias for name, bias in found.items()}


def _has_heads(kind: str, rows: Tensor | tuple[Tensor, ...]) -> bool:
    """Whether rows, ``[R]`` in a bias table and else ``[R, D]``, have an axis of heads before them."""
    one = rows[0] if isinstance(rows, tuple) else rows
    return one.dim() == (2 if kind == "bias" else 3)
