"""How ``record_attention`` records graph layers: weights per edge, and their sum per relation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import to_edge_index

from relgraph.functional import AttentionAux
from relgraph.nn.record import RECORDERS, Arguments, Recorder, Wanted
from relgraph.pyg.conv import RelationConv
from relgraph.pyg.hetero import RelationHeteroConv, dicts_of

_FLAG = "return_attention_weights"
_NAMES = ("x", "edge_index", "edge_type", "edge_attr", _FLAG)
_HETERO_NAMES = ("x_dict", "edge_index_dict", _FLAG)


def _request(layer: nn.Module, given: Arguments, _: Wanted) -> Arguments:
    args, kwargs = given
    if _returns_weights(layer, given):
        return given
    if len(args) == len(_names_of(layer)):
        return (*args[:-1], True), kwargs
    return args, kwargs | {_FLAG: True}


def _split(layer: RelationConv, given: Arguments, _: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    attended = out[-1]
    alpha = _alpha_of(attended)
    mass = _mass(layer, _named(layer, given), alpha.detach())
    without = out[0] if layer.edge_states is None else out[:-1]
    return out if _returns_weights(layer, given) else without, AttentionAux(alpha, mass)


def _split_hetero(layer: RelationHeteroConv, given: Arguments, _: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    """Weights and mass of all kinds end to end, in the order of the metadata."""
    found, attended = out
    named = _named(layer, given)
    nodes, edges = layer._read(
        *dicts_of(named["x_dict"], named["edge_index_dict"], named.get("edge_attr_dict"), layer.edge_dims)
    )
    labels = layer._labels(nodes, edges)
    parts = [_alpha_of(attended[kind]) for kind in edges]
    alpha = torch.cat([next(iter(found.values())).new_zeros(0, layer.heads), *parts])
    mass = _summed(alpha.detach(), labels.edge_index[1], labels.ids, labels.q_len, labels.num_labels)
    return out if _returns_weights(layer, given) else found, AttentionAux(alpha, mass)


def _names_of(layer: nn.Module) -> tuple[str, ...]:
    return _HETERO_NAMES if isinstance(layer, RelationHeteroConv) else _NAMES


def _named(layer: nn.Module, given: Arguments) -> dict[str, Any]:
    args, kwargs = given
    names = _names_of(layer)
    return dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs


def _returns_weights(layer: nn.Module, given: Arguments) -> bool:
    return isinstance(_named(layer, given)[_FLAG], bool)


def _alpha_of(attended: Any) -> Tensor:
    alpha = attended[1] if isinstance(attended, tuple) else to_edge_index(attended)[1]
    assert alpha is not None
    return alpha


def _mass(layer: RelationConv, given: dict[str, Any], alpha: Tensor) -> Tensor | None:
    """The attention that each node gives to each relation, ``[H, N, R]``; None without relations."""
    if layer.num_relations is None:
        return None
    nodes = layer._read(*(given[name] for name in _NAMES[:-1]))
    backwards, edges = layer.flow == "target_to_source", nodes[3]
    assert edges.types is not None
    return _summed(alpha, edges.index[0 if backwards else 1], edges.types, nodes[1].shape[0], layer.num_relations)


def _summed(alpha: Tensor, nodes: Tensor, types: Tensor, num_nodes: int, num_relations: int) -> Tensor:
    """The weights ``[E, H]`` summed by node and relation, ``[H, N, R]``; edges without a relation are left out."""
    related, heads = types >= 0, alpha.shape[1]
    slots = nodes * num_relations + types
    mass = alpha.new_zeros((num_nodes * num_relations, heads), dtype=torch.promote_types(alpha.dtype, torch.float32))
    mass = mass.index_add(0, slots[related], alpha[related].to(mass.dtype)).to(alpha.dtype)
    return mass.view(num_nodes, num_relations, heads).permute(2, 0, 1)


RECORDERS[RelationConv] = Recorder(_request, _split)
RECORDERS[RelationHeteroConv] = Recorder(_request, _split_hetero)
