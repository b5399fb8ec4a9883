"""Edge states in a RelationConv: its fused way, its messages, and which of its options fit."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import dropout
from torch_geometric.utils import softmax

from relgraph.arguments import check
from relgraph.nn.edge_states import Attended, EdgeStates, Listed, Terms
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


def check_degree(degree: Any, layer: Any, targets: int) -> Tensor | None:
    """Return ``degree``; raise unless it is a number for every target of a layer whose states read it."""
    if degree is None:
        return None
    if not getattr(layer.edge_states, "reads_degree", False):
        raise ValueError("degree must be left out without edge_update='grit', which alone reads it")
    if list(check.tensor("degree", degree).shape) != [targets]:
        raise ValueError(f"degree must have shape [N_dst] = [{targets}], got {list(degree.shape)}")
    return degree


def attend(
    layer: Any, projected: tuple[Tensor, Tensor, Tensor], edges: Edges, listed: Listed, wanted: bool, degree: Any
) -> Attended:
    """What the layer's edge states give for queries, keys and values ``[N, H, C]``."""
    states: EdgeStates = layer.edge_states
    query, key, value = projected
    assert edges.attr is not None
    if layer._can_fuse():
        rate = layer.dropout if layer.training else 0.0
        return states.attend(
            query, key, value, edges.attr, listed, dropout_p=rate, need_weights=wanted, degree=degree
        )
    sums = layer.propagate(
        edges.index.long(), query=query, key=key, value=value, edge_type=None, edge_attr=edges.attr, size=edges.sizes
    )
    (alpha, terms), layer._alpha = layer._alpha, None
    gates = None if terms.gate is None else sum_by_row(terms.gate, edges.index[1], edges.sizes[1])
    degree = listed.degrees() if degree is None else degree
    return Attended(states.nodes(sums, gates, degree.to(sums.dtype)), alpha, terms.states)


def message(layer: Any, terms: Terms, index: Tensor, ptr: Any, size: Any) -> Tensor:
    """The weighted values ``[E, H, C']`` of all edges; the layer keeps their weights and terms."""
    alpha = softmax(terms.scores, index, ptr, size)
    alpha = alpha if terms.gate is None else alpha * terms.gate
    layer._alpha = alpha, terms
    return terms.values * dropout(alpha, layer.dropout, layer.training)[..., None]
