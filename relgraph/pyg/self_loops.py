"""One self-loop for each node, which replaces the self-loops of a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from relgraph.arguments import check
from relgraph.pyg.adjacency import Edges

_FILLS = ("mean", "add", "min", "max", "mul")


class SelfLoops(nn.Module):
    """The self-loops that :class:`~relgraph.pyg.RelationConv` adds, one for each node, as PyG's layers add them.

    Source: PyG's :func:`~torch_geometric.utils.add_self_loops`.

    Args:
        fill_value: ``edge_attr`` of these loops: a number, a tensor ``[F]``, or ``"mean"``, ``"add"``, ``"min"``,
            ``"max"`` or ``"mul"`` of the features of the edges into the node.
        relation: the relation of these loops, -1 for none.

    Raises:
        ValueError: an unknown ``fill_value`` or one that is not finite, or a relation below -1.

    Example:
        >>> loops = rg.pyg.SelfLoops(relation=2)
        >>> conv = rg.pyg.RelationConv(16, 8, num_relations=3, add_self_loops=loops)
        >>> conv(torch.randn(3, 16), torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1])).shape
        torch.Size([3, 8])
    """

    fill_value: float | Tensor | str

    def __init__(self, fill_value: float | Tensor | str = "mean", relation: int = -1) -> None:
        super().__init__()
        self.relation = check.integer("relation", relation, minimum=-1)
        if isinstance(fill_value, str):
            self.fill_value = check.choice("fill_value", fill_value, _FILLS)
        elif not isinstance(fill_value, Tensor):
            self.fill_value = check.finite("fill_value", fill_value)
        elif check.floating("fill_value", fill_value).dim() != 1:
            raise ValueError(f"fill_value must have shape [F], got {list(fill_value.shape)}")
        else:
            self.register_buffer("fill_value", fill_value, persistent=False)

    def _replace(self, edges: Edges) -> Edges:
        """The edges without their self-loops, and one new self-loop for each node that is a source and a target."""
        count, keep = min(edges.sizes), edges.index[0] != edges.index[1]
        index, ids, attr = edges.index[:, keep], edges.types, edges.attr
        loops = torch.arange(count, device=index.device, dtype=index.dtype)
        if ids is not None:
            ids = torch.cat([ids[keep], ids.new_full((count,), self.relation)])
        if attr is not None:
            attr = check.floating("edge_attr", attr)[keep]
            attr = torch.cat([attr, self._features(attr, index[1].long(), edges.sizes[1])[:count]])
        index = torch.cat([index, loops.repeat(2, 1)], 1)
        return replace(edges, index=index, ids=ids, attr=attr, known=None, looped=True)

    def _features(self, attr: Tensor, target: Tensor, count: int) -> Tensor:
        """The features of a loop of every target, ``[count, F]``."""
        if isinstance(self.fill_value, str):
            return scatter(attr, target, 0, count, self.fill_value)
        if isinstance(self.fill_value, Tensor):
            return self.fill_value.to(attr).expand(count, -1)
        return attr.new_full((count, attr.shape[1]), self.fill_value)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"fill_value={self.fill_value!r}, relation={self.relation}"


def check_self_loops(given: Any, num_relations: int | None, edge_dim: int | None) -> SelfLoops | None:
    """The self-loops that ``add_self_loops`` asks for, or None; raise unless they fit the layer."""
    if not isinstance(given, SelfLoops):
        return SelfLoops() if check.boolean("add_self_loops", given) else None
    check.integer("relation of add_self_loops", given.relation, maximum=(num_relations or 0) - 1)
    fill = given.fill_value
    if isinstance(fill, Tensor) and list(fill.shape) != [edge_dim]:
        wanted = "a number or a string without edge_dim" if edge_dim is None else f"[F] = [{edge_dim}]"
        raise ValueError(f"fill_value of add_self_loops must be {wanted}, got a tensor {list(fill.shape)}")
    return given
