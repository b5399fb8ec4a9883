"""How ``record_attention`` records a RelationConv: weights per edge, and their sum per relation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import to_edge_index

from relgraph.functional import AttentionAux
from relgraph.nn.record import RECORDERS, Arguments, Recorder, Wanted
from relgraph.pyg.conv import RelationConv

_NAMES = ("x", "edge_index", "edge_type", "edge_attr", "return_attention_weights")


def _request(_: RelationConv, given: Arguments, __: Wanted) -> Arguments:
    args, kwargs = given
    if _returns_weights(given):
        return given
    if len(args) == len(_NAMES):
        return (*args[:-1], True), kwargs
    return args, kwargs | {_NAMES[-1]: True}


def _split(layer: RelationConv, given: Arguments, _: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    nodes, attended = out
    alpha = attended[1] if isinstance(attended, tuple) else to_edge_index(attended)[1]
    assert alpha is not None
    return out if _returns_weights(given) else nodes, AttentionAux(alpha, _mass(layer, _named(given), alpha.detach()))


def _named(given: Arguments) -> dict[str, Any]:
    args, kwargs = given
    return dict.fromkeys(_NAMES) | dict(zip(_NAMES, args, strict=False)) | kwargs


def _returns_weights(given: Arguments) -> bool:
    return isinstance(_named(given)["return_attention_weights"], bool)


def _mass(layer: RelationConv, given: dict[str, Any], alpha: Tensor) -> Tensor | None:
    """The attention that each node gives to each relation, ``[H, N, R]``; None without relations."""
    if layer.num_relations is None:
        return None
    x = given["x"]
    sources, targets = (x, x) if isinstance(x, Tensor) else x
    backwards = layer.flow == "target_to_source"
    sizes = (targets.shape[0], sources.shape[0]) if backwards else (sources.shape[0], targets.shape[0])
    edges = layer._read_edges(given["edge_index"], given["edge_type"], given["edge_attr"], sizes)
    assert edges.types is not None
    related = edges.types >= 0
    slots = edges.index[0 if backwards else 1] * layer.num_relations + edges.types
    shape = (targets.shape[0] * layer.num_relations, layer.heads)
    mass = alpha.new_zeros(shape, dtype=torch.promote_types(alpha.dtype, torch.float32))
    mass = mass.index_add(0, slots[related], alpha[related].to(mass.dtype)).to(alpha.dtype)
    return mass.view(-1, layer.num_relations, layer.heads).permute(2, 0, 1)


RECORDERS[RelationConv] = Recorder(_request, _split)
