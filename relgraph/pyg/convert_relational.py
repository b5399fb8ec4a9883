"""From PyG's RGATConv and RGCNConv to the arguments and weights of a RelationConv."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn
from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv

from relgraph.pyg.linear_score import LinearScore

_Layer = TypeVar("_Layer", bound=nn.Module)


def of_rgat_conv(layer: type[_Layer], conv: Any, options: dict[str, Any]) -> _Layer:
    """A layer of this class with the output of an RGATConv, and copies of its weights."""
    if not isinstance(conv, RGATConv):
        raise TypeError(f"conv must be an RGATConv, got {type(conv).__name__}")
    _check_unchanged(conv, RGATConv)
    wanted = {
        "attention_mechanism": "across-relation", "attention_mode": "additive-self-attention", "mod": None,
        "aggr": "add", "flow": "source_to_target", "decomposed_layers": 1,
    }  # fmt: skip
    _check_settings(conv, wanted)
    made = layer(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, False, conv.dropout, conv.edge_dim,
        root_weight=False, out_bias=conv.bias is not None, num_relations=conv.num_relations, tables=(),
        score=LinearScore(conv.heads, conv.out_channels, conv.negative_slope, edge=conv.edge_dim is not None),
        key_map="full", value_map="full", query_map="full", tie_projections=("value", "query"), edge_terms=("key",),
        num_bases=conv.num_bases, num_blocks=conv.num_blocks, **options,
    )  # fmt: skip
    weights: dict[str, Any] = {"linear_score.query": conv.q, "linear_score.key": conv.k, "out_bias": conv.bias}
    weights |= {"linear_score.edge": conv.e, "lin_edge.weight": None if conv.lin_edge is None else conv.lin_edge.weight}
    if conv.num_bases is None:
        weights["key_map.maps" if conv.num_blocks is None else "key_map.blocks"] = conv.weight
    else:
        weights |= {"key_map.bases": conv.basis, "key_map.coefficients": conv.att}
    return _with_weights(made, conv, weights)


def of_rgcn_conv(layer: type[_Layer], conv: Any, options: dict[str, Any]) -> _Layer:
    """A layer of this class with the output of an RGCNConv, and copies of its weights."""
    if not isinstance(conv, RGCNConv):
        raise TypeError(f"conv must be an RGCNConv, got {type(conv).__name__}")
    _check_unchanged(conv, FastRGCNConv if isinstance(conv, FastRGCNConv) else RGCNConv)
    _check_settings(conv, {"aggr": "mean", "decomposed_layers": 1})
    root = conv.root is not None
    made = layer(
        conv.in_channels, conv.out_channels, bias=conv.bias is not None, root_weight=root,
        out_bias=conv.bias is not None and not root, num_relations=conv.num_relations, tables=(), value_map="full",
        num_bases=conv.num_bases, num_blocks=conv.num_blocks, normalize="relation", flow=conv.flow, **options,
    )  # fmt: skip
    weights: dict[str, Any] = {
        "lin_skip.weight": conv.root.T if root else None,
        "lin_skip.bias" if root else "out_bias": conv.bias,
    }
    if conv.num_bases is None:
        weights["value_map.maps" if conv.num_blocks is None else "value_map.blocks"] = conv.weight
    else:
        weights |= {"value_map.bases": conv.weight, "value_map.coefficients": conv.comp}
    return _with_weights(made, conv, weights)


def _check_unchanged(conv: Any, base: type[nn.Module]) -> None:
    """Raise NotImplementedError for a subclass that computes its output in another way."""
    for name in ("forward", "message", "aggregate", "update"):
        if getattr(type(conv), name) is not getattr(base, name):
            raise NotImplementedError(
                f"conv must have the {name} of {base.__name__}, got one of its own in {type(conv).__name__}"
            )


def _check_settings(conv: Any, wanted: dict[str, Any]) -> None:
    """Raise NotImplementedError for settings that RelationConv does not have."""
    for name, one in wanted.items():
        if getattr(conv, name) != one:
            raise NotImplementedError(f"conv must have {name}={one!r}, got {getattr(conv, name)!r}")


def _with_weights(made: _Layer, conv: nn.Module, weights: dict[str, Any]) -> _Layer:
    """The layer with these weights, which are all that it has, and the device, dtype and mode of ``conv``."""
    like = next(conv.parameters())
    made = made.to(like.device, like.dtype)
    made.load_state_dict({name: one.detach() for name, one in weights.items() if one is not None})
    return made.train(conv.training)
