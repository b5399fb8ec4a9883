"""The maps by which one attention reads features of edges: into the keys and the values of listed pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.arguments.sharding import survives_reshard
from relgraph.labels import EdgeLabels
from relgraph.nn.cache import KVCache
from relgraph.nn.inputs import Names


class EdgeMaps(nn.Module):
    """Two learned maps of edge features; a call returns the arguments of attention that carry the features.

    ``key`` and ``value`` are ``[H · D, F]``. They begin as the other projections of the layer do.

    Source: Shi et al. 2021 (:class:`~torch_geometric.nn.conv.TransformerConv`).
    """

    def __init__(self, heads: int, dim: int, edge_dim: int, factory: dict[str, Any]) -> None:
        super().__init__()
        self.dim, self.edge_dim = dim, edge_dim
        self.key, self.value = (nn.Parameter(torch.empty(heads * dim, edge_dim, **factory)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize both maps again."""
        nn.init.xavier_uniform_(self.key)
        nn.init.xavier_uniform_(self.value)

    def forward(self, edge_attr: Tensor) -> dict[str, Tensor]:
        """The features and both maps, ``[H, D, F]``."""
        named = (("edge_key", self.key), ("edge_value", self.value))
        maps = {name: survives_reshard(self, x).unflatten(0, (-1, self.dim)) for name, x in named}
        return {"edge_attr": edge_attr, **maps}

    def extra_repr(self) -> str:
        """The width of the features."""
        return f"edge_dim={self.edge_dim}"


def make_edge_maps(edge_dim: Any, layer: Any, factory: dict[str, Any]) -> EdgeMaps | None:
    """The maps of features of width ``edge_dim``, if it is not None; raise if the layer has no term for them."""
    if edge_dim is None:
        return None
    check.integer("edge_dim", edge_dim, minimum=1)
    check.parameter_size(edge_dim=edge_dim, num_heads=layer.num_heads, head_dim=layer.head_dim)
    for name in ("content_bias", "position_bias"):
        if getattr(layer, name) is not None:
            raise NotImplementedError(f"{name} must be False with edge_dim, whose features are added to keys, got True")
    return EdgeMaps(layer.num_heads, layer.head_dim, edge_dim, factory)


def check_edge_attr(given: Any, maps: Any, labels: Any, query: Tensor, cache: KVCache | None, names: Names) -> None:
    """Raise unless the features fit the maps of a layer and the edges of its labels; errors use ``names``."""
    name = names.edge_attr
    if maps is None:
        raise ValueError(f"{name} must be left out without edge_dim: the layer has no maps for it")
    if given is None:
        raise ValueError(f"{name} must be given to a layer with edge_dim={maps.edge_dim}, got None")
    if not check.tensor(name, given).is_floating_point():
        raise TypeError(f"{name} must be floating, got {given.dtype}: ids of relations are passed as {names.labels}")
    if type(labels) is not EdgeLabels:
        raise ValueError(
            f"{names.labels} must be EdgeLabels, whose edges the {name} belong to, got {type(labels).__name__}"
        )
    if isinstance(cache, KVCache) and not cache.static:
        raise NotImplementedError(f"{name} must not be given with a cache that grows, which cuts labels to new rows")
    wanted = [labels.ids.shape[0], maps.edge_dim]
    if not check.shaped(given, wanted):
        raise ValueError(
            f"{name} must have a row for each edge of the {names.labels}, [E, edge_dim] = {wanted}, "
            f"got {list(given.shape)}"
        )
    check.same_device(**{names.query: query, name: given})
    check.same_dtype(**{names.query: query, name: given})


def beside_turned(plain: Tensor, turned: Tensor, key: Tensor, of_key: Tensor, *, packed: bool) -> dict[str, Tensor]:
    """Queries, keys and a map of features with the right scores, where rotary positions turned queries and keys.

    The features meet the query before its turn, ``plain``. So its products with their map ``of_key`` ``[H, D, F]``
    lengthen the turned query, zeros lengthen the keys, and the features themselves are added there.
    """
    by_feature = (plain.transpose(0, 1) if packed else plain) @ of_key
    by_feature = by_feature.transpose(0, 1) if packed else by_feature
    (size, features), like = of_key.shape[1:], {"dtype": of_key.dtype, "device": of_key.device}
    return {
        "query": torch.cat([turned, by_feature], -1),
        "key": torch.cat([key, key.new_zeros(*key.shape[:-1], features)], -1),
        "edge_key": torch.cat([torch.zeros(size, features, **like), torch.eye(features, **like)]),
    }
