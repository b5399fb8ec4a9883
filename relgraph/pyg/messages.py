"""The terms of relation attention edge by edge, in plain PyG, which explainers, hooks and torch.func can follow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]
from torch_geometric.nn.conv import MessagePassing

from relgraph.impl.terms import with_zero_row
from relgraph.nn.tables import RelationTables
from relgraph.nn.value_maps import ValueMaps
from relgraph.pyg.edge_layer import EdgeLayer
from relgraph.score import compatibility

_HOOKS = tuple(
    f"_{name}_forward{pre}_hooks"
    for name in ("propagate", "message", "aggregate", "message_and_aggregate")
    for pre in ("", "_pre")
)


def followed(layer: MessagePassing) -> bool:
    """Whether an explainer or a hook wants the layer's messages."""
    if layer.explain:
        return True
    for name in _HOOKS:  # noqa: SIM110 - a generator costs a call of Python per name
        if getattr(layer, name):
            return True
    return False


def in_func_transform() -> bool:
    """Whether a torch.func transform is active, which cannot differentiate the custom ops of ``edge_attention``."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def scores_and_values(
    layer: EdgeLayer, query_i: Tensor, key_j: Tensor, value_j: Tensor, edge_type: Any, edge_key: Any, edge_value: Any
) -> tuple[Tensor, Tensor]:
    """The score and the value of every edge, ``[E, H]`` and ``[E, H, C]``, before the softmax.

    Queries, keys, values and what the features of edges add to keys and values are ``[E, H, C]``, types ``[E]``.
    """
    rows, how = edge_rows(edge_type, layer.tables), compatibility(layer.score)
    keys, values = key_j, value_j
    if how.by_label:
        keys = _mapped(how.weight, key_j, edge_type)
    if isinstance(layer.value_map, ValueMaps):
        maps = layer.value_map()
        free = maps if isinstance(maps, Tensor) else torch.einsum("rk,hkij->hrij", *maps)
        values = _mapped(free, value_j, edge_type)
    keys = keys + rows.get("key_table", 0.0) + edge_key
    values = values + rows.get("value_table", 0.0) + edge_value
    if how.additive:
        scores = (how.act(query_i + keys) * how.weight).sum(-1)
    else:
        terms = query_i * keys + key_j * rows.get("query_table", 0.0)
        scores = terms.sum(-1) / math.sqrt(query_i.shape[-1])
    return how.finish(scores + rows.get("bias_table", 0.0)), values


def edge_rows(edge_type: Tensor | None, tables: RelationTables | None) -> dict[str, Any]:
    """The row of every edge in every table, ``[E, H or 1, C]``, in a bias table ``[E, H or 1]``."""
    if tables is None or edge_type is None:
        return {}
    rows = {}
    for name, table in tables().items():
        assert isinstance(table, Tensor)
        scalar = name == "bias_table"
        table = table[..., None] if scalar else table
        slots = torch.where(edge_type < 0, table.shape[-2], edge_type)
        per_edge = with_zero_row(table if table.dim() == 3 else table[None])[:, slots].transpose(0, 1)
        rows[name] = per_edge[..., 0] if scalar else per_edge
    return rows


def _mapped(maps: Tensor, x: Tensor, edge_type: Tensor | None) -> Tensor:
    """W[r_e] x_e of every edge, ``[E, H, C]``, with maps ``[R, C, C]`` or ``[H, R, C, C]``; x_e without a relation."""
    assert edge_type is not None
    found = x * (edge_type < 0)[:, None, None]
    for relation, one in enumerate(maps.unbind(-3)):
        found = found + (one @ x[..., None]).squeeze(-1) * (edge_type == relation)[:, None, None]
    return found
