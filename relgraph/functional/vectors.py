"""The check of edge vectors and of the maps that carry them into score and value."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.impl.call import EdgeVectors
from relgraph.labels import EdgeLabels


def check_vectors(
    attr: Any, to_key: Any, to_value: Any, labels: Any, query: Tensor, value: Tensor
) -> EdgeVectors | None:
    """The checked edge vectors and their maps; None without edge vectors."""
    if attr is None:
        for name, given in (("edge_key", to_key), ("edge_value", to_value)):
            if given is not None:
                raise ValueError(f"{name} must be left out without edge_attr, got {type(given).__name__}")
        return None
    if not isinstance(labels, EdgeLabels) or isinstance(labels.default, EdgeLabels):
        raise ValueError(f"edge_attr needs labels of one kind of edges, EdgeLabels, got {_kind(labels)}")
    edges = labels.ids.shape[0]
    fits = check.tensor("edge_attr", attr).dim() == 2 and attr.shape[0] == edges
    if not fits or attr.dtype not in check.FLOATING_DTYPES:
        raise ValueError(
            f"edge_attr must be floating of shape [E, F] = [{edges}, F], got {attr.dtype} {list(attr.shape)}"
        )
    if to_key is None and to_value is None:
        raise ValueError("edge_attr needs edge_key or edge_value, the maps into score and value; got neither")
    heads = query.shape[1]
    for name, given, width in (("edge_key", to_key, query.shape[-1]), ("edge_value", to_value, value.shape[-1])):
        if given is None:
            continue
        wanted = [width, attr.shape[1]]
        if not check.shaped(check.floating(name, given), wanted, [heads, *wanted]):
            raise ValueError(f"{name} must have shape {wanted} or {[heads, *wanted]}, got {list(given.shape)}")
    check.same_device(query=query, edge_attr=attr, edge_key=to_key, edge_value=to_value)
    return EdgeVectors(attr, to_key, to_value)


def _kind(labels: Any) -> str:
    return "EdgeLabels over EdgeLabels" if isinstance(labels, EdgeLabels) else type(labels).__name__
