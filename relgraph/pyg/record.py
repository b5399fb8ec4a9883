"""How a RelationConv reports its attention to ``record_attention``: edge by edge, and summed by relation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import to_edge_index

from relgraph.functional import AttentionAux
from relgraph.nn.record import REPORTERS, Arguments, Reporter, Wanted
from relgraph.pyg.adjacency import read_edges
from relgraph.pyg.conv import RelationConv

_NAMES = ("x", "edge_index", "edge_type", "edge_attr", "return_attention_weights")


def _ask(_: RelationConv, came: Arguments, __: Wanted) -> Arguments:
    args, kwargs = came
    if _gives_weights(came):
        return came
    if len(args) == len(_NAMES):
        return (*args[:-1], True), kwargs
    return args, kwargs | {_NAMES[-1]: True}


def _tell(layer: RelationConv, came: Arguments, _: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    nodes, attended = out
    alpha = attended[1] if isinstance(attended, tuple) else to_edge_index(attended)[1]
    assert alpha is not None
    return out if _gives_weights(came) else nodes, AttentionAux(alpha, _mass(layer, _named(came), alpha.detach()))


def _named(came: Arguments) -> dict[str, Any]:
    args, kwargs = came
    return dict.fromkeys(_NAMES) | dict(zip(_NAMES, args, strict=False)) | kwargs


def _gives_weights(came: Arguments) -> bool:
    return isinstance(_named(came)["return_attention_weights"], bool)


def _mass(layer: RelationConv, came: dict[str, Any], alpha: Tensor) -> Tensor | None:
    """The attention that each node gives to each relation, ``[H, N, R]``; None without relations."""
    if layer.num_relations is None:
        return None
    x = came["x"]
    sources, targets = (x, x) if isinstance(x, Tensor) else x
    backwards = layer.flow == "target_to_source"
    sizes = (targets.shape[0], sources.shape[0]) if backwards else (sources.shape[0], targets.shape[0])
    edges = read_edges(
        came["edge_index"], came["edge_type"], came["edge_attr"], sizes, layer.num_relations, layer.edge_dim
    )
    assert edges.types is not None
    related = edges.types >= 0
    slots = edges.index[0 if backwards else 1] * layer.num_relations + edges.types
    shape = (targets.shape[0] * layer.num_relations, layer.heads)
    mass = alpha.new_zeros(shape, dtype=torch.promote_types(alpha.dtype, torch.float32))
    mass = mass.index_add(0, slots[related], alpha[related].to(mass.dtype)).to(alpha.dtype)
    return mass.view(-1, layer.num_relations, layer.heads).permute(2, 0, 1)


REPORTERS[RelationConv] = Reporter(_ask, _tell)
