"""Edge states in a RelationConv: its fused way, its messages, and which of its options fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch_geometric.utils import softmax

from relgraph.nn.edge_states import Attended, EdgeStates, Listed, Sums, Terms
from relgraph.nn.edge_states.states import sum_by_row
from relgraph.pyg.adjacency import Edges


def check_options(layer: Any, given: dict[str, Any]) -> None:
    """Raise unless a layer with edge states has only options that make sense there."""
    wrong = {name: value for name, value in given.items() if value not in (None, False)}
    wrong |= {} if layer.normalize == "softmax" else {"normalize": layer.normalize}
    wrong |= {} if layer.flow == "source_to_target" else {"flow": layer.flow}
    wrong |= {} if layer.edge_terms == ("key", "value") else {"edge_terms": layer.edge_terms}
    wrong |= {"tie_projections": layer.tie_projections} if "edge" in layer.tie_projections else {}
    for name, value in wrong.items():
        hint = ": add an embedding of the relation to edge_attr" if name in ("num_relations", "tables") else ""
        raise NotImplementedError(f"{name} must be left out with edge_update, got {value!r}{hint}")


def attend(
    layer: Any, projected: tuple[Tensor, Tensor, Tensor], edge: Tensor, edges: Edges, listed: Listed, degree: Any
) -> Attended:
    """What the layer's edge states give for queries, keys and values ``[N, H, C]`` and states sorted by target."""
    states: EdgeStates = layer.edge_states
    query, key, value = projected
    if layer._can_fuse():
        rate = layer.dropout if layer.training else 0.0
        return states._attend(query, key, value, edge, listed, dropout_p=rate, degree=degree)
    # in the order of the caller's edges, as are the masks of explainers
    own = listed.unsort(edge)
    sums = layer.propagate(
        edges.index.long(), query=query, key=key, value=value, edge_type=None, edge_attr=own, size=edges.sizes
    )
    found = layer._alpha, layer._terms.gate, layer._terms.states
    layer._alpha = layer._terms = None
    alpha, gate, new = (None if x is None else x.index_select(0, listed.order) for x in found)
    assert alpha is not None
    gates = None if gate is None else sum_by_row(gate, listed.row, listed.queries)
    degree = listed.degrees() if degree is None else degree
    values, vectors = sums.split([value.shape[-1], sums.shape[-1] - value.shape[-1]], -1)
    return Attended(states._nodes(Sums(values, vectors, gates, degree.to(sums.dtype))), alpha, new)


def message(layer: Any, terms: Terms, value_j: Tensor, index: Tensor, ptr: Any, size: Any) -> Tensor:
    """The weighted values and vectors ``[E, H, C + X]`` of all edges; the layer keeps weights and terms."""
    alpha = softmax(terms.scores, index, ptr, size)
    alpha = alpha if terms.gate is None else alpha * terms.gate
    layer._alpha, layer._terms = alpha, terms  # explainers read the first
    if terms.vectors is not None:
        value_j = torch.cat([value_j, terms.vectors.expand(-1, layer.heads, -1)], -1)
    return value_j * dropout(alpha, layer.dropout, layer.training)[..., None]
