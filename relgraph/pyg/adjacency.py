"""The nodes and edges that a graph layer receives, in any of PyG's forms: checked, as plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor  # pyright: ignore[reportAttributeAccessIssue]
from torch_geometric.utils import is_sparse, to_edge_index

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_edges
from relgraph.labels import EdgeLabels, Labels
from relgraph.labels.memory import makes_plain, memory_of


@dataclass(frozen=True)
class Edges:
    """Checked edges."""

    index: Tensor  # [2, E], (source, target) by column
    ids: Tensor | None  # [E], relations, in any integer dtype
    attr: Tensor | None  # [E, F]
    sizes: tuple[int, int]  # the number of sources and of targets
    num_relations: int | None
    known: EdgeLabels | None = None  # labels that came in place of edges, or that an earlier call made of them
    looped: bool = False  # whether self-loops were replaced

    @property
    def types(self) -> Tensor | None:
        """``[E]``, relations, as indices."""
        return None if self.ids is None else self.ids.long()

    def labels(self) -> EdgeLabels:
        """The edges as labels; all unlabeled if there are no relations."""
        if self.known is not None:
            return self.known
        return _labels(self.index, self.ids, self.sizes, self.num_relations)


def check_nodes(name: str, nodes: Any, width: int, weight: Tensor | None = None) -> Tensor:
    """Return ``nodes``; raise unless they are ``[N, width]`` and ``weight`` can project them. Width -1 is any width."""
    if type(nodes) is not Tensor or nodes.layout is not torch.strided or nodes.is_nested:
        check.tensor(name, nodes)
    if nodes.dim() != 2 or (width != -1 and nodes.shape[1] != width):
        wanted = "in_channels" if width == -1 else width
        raise ValueError(f"{name} must have shape [N, {wanted}], got {list(nodes.shape)}")
    if weight is None or (weight.is_meta and not nodes.is_meta):  # offloaded until it is used
        return nodes
    if nodes.dtype != weight.dtype and (
        not nodes.is_floating_point() or check.autocast_dtype(nodes.device.type) is None
    ):
        raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {nodes.dtype}")
    if nodes.device != weight.device:
        check.same_device(**{"the layer": weight, name: nodes})
    return nodes


def read_edges(
    edge_index: Any, edge_type: Any, edge_attr: Any, sizes: tuple[int, int], num_relations: int | None,
    edge_dim: int | None,
) -> Edges:  # fmt: skip
    """Check the edges that a layer was called with."""
    known = None
    if type(edge_index) is Tensor and edge_index.layout is torch.strided:
        known = _remembered(edge_index, edge_type, sizes, num_relations)
    elif isinstance(edge_index, Labels):
        known = _check_labels(edge_index, edge_type, sizes, num_relations)
    elif isinstance(edge_index, SparseTensor) or (isinstance(edge_index, Tensor) and is_sparse(edge_index)):
        _check_size("a sparse adjacency", (edge_index.size(1), edge_index.size(0)), sizes)
        takes = num_relations is not None, edge_dim is not None
        edge_index, edge_type, edge_attr = _from_sparse(edge_index, edge_type, edge_attr, *takes)
    if known is None:
        index, ids = _check_edges(edge_index, edge_type, sizes, num_relations)
    else:
        index, ids = known.edge_index, None if num_relations is None else known.ids
    attr = None
    if edge_attr is not None or edge_dim is not None:
        attr = _check_attr(edge_attr, index, edge_dim)
    if attr is not None and attr.device != index.device:
        check.same_device(edge_index=index, edge_attr=attr)
    return Edges(index, ids, attr, sizes, num_relations, known)


def _remembered(
    edge_index: Tensor, edge_type: Any, sizes: tuple[int, int], num_relations: int | None
) -> EdgeLabels | None:
    """The labels of these edges, checked and made once for all layers and steps; None if they cannot be remembered."""
    if not (edge_type is None or type(edge_type) is Tensor) or not makes_plain():
        return None
    owners = [edge_index] if edge_type is None else [edge_index, edge_type]

    def make() -> EdgeLabels:
        index, ids = _check_edges(edge_index, edge_type, sizes, num_relations)
        # tensors of their own over the same memory: what is remembered must not lead back to its owners
        ids = None if ids is None else ids.detach()
        return _labels(index.detach(), ids, sizes, num_relations)

    return memory_of(owners, ("edges", sizes, num_relations)).once("labels", make)


def _labels(index: Tensor, ids: Tensor | None, sizes: tuple[int, int], num_relations: int | None) -> EdgeLabels:
    """Checked edges as labels, which do not outlive them."""
    if ids is None:
        ids = torch.full_like(index[0], -1, dtype=torch.int64)
    return EdgeLabels._trusted(index, ids, num_relations or 0, sizes[1], sizes[0])._private()


def _check_edges(
    edge_index: Any, edge_type: Any, sizes: tuple[int, int], num_relations: int | None
) -> tuple[Tensor, Tensor | None]:
    index = _check_index(edge_index, sizes)
    ids = _check_types(edge_type, index, num_relations)
    check.same_device(edge_index=index, edge_type=ids)
    return index, ids


def with_values(edge_index: Any, edges: Edges, alpha: Tensor) -> Any:
    """The attention weights together with the edges, in the form of ``edge_index``, as PyG's layers return them."""
    if isinstance(edge_index, SparseTensor) and edges.looped:
        sources, targets = edges.sizes
        return SparseTensor(row=edges.index[1], col=edges.index[0], value=alpha, sparse_sizes=(targets, sources))
    if isinstance(edge_index, SparseTensor):
        return edge_index.set_value(alpha, layout="coo")
    return (edges.index if edges.looped or isinstance(edge_index, EdgeLabels) else edge_index), alpha


def _check_labels(labels: Labels, edge_type: Any, sizes: tuple[int, int], num_relations: int | None) -> EdgeLabels:
    if not isinstance(labels, EdgeLabels):
        got = type(labels).__name__
        raise TypeError(f"edge_index must be edges, got {got}: RelationGlobalAttention takes other labels")
    if edge_type is not None:
        raise ValueError("edge_type must be left out with EdgeLabels, which hold the relations")
    if labels.default is not None or labels.batch is not None:
        raise ValueError(f"edge_index, given as labels, must have default=None and no batch axis, got {labels!r}")
    if labels.num_labels != (wanted := num_relations or 0):
        raise ValueError(f"edge_index, given as labels, must have {wanted} relations, got {labels.num_labels}")
    _check_size("labels", (labels.k_len, labels.q_len), sizes)
    return labels


def _from_sparse(
    adjacency: Any, edge_type: Any, edge_attr: Any, takes_types: bool, takes_features: bool
) -> tuple[Tensor, Any, Any]:
    """Edges of a sparse adjacency with targets as rows; its values serve as relations or features if none are given."""
    (target, source), values = to_edge_index(adjacency)
    if values is not None and values.is_floating_point():
        if edge_attr is None and takes_features:
            edge_attr = values if values.dim() == 2 else values[:, None]
    elif edge_type is None and takes_types:
        edge_type = values
    return torch.stack([source, target]), edge_type, edge_attr


def _check_size(what: str, known: tuple[int | None, int | None], sizes: tuple[int, int]) -> None:
    """Raise ValueError unless an adjacency's numbers of sources and targets, if known, are ``sizes``."""
    if any(mine is not None and mine != size for mine, size in zip(known, sizes, strict=True)):
        raise ValueError(
            f"edge_index, given as {what}, must be of {sizes[0]} sources and {sizes[1]} targets, "
            f"got {known[0]} and {known[1]}"
        )


def _check_index(edge_index: Any, sizes: tuple[int, int]) -> Tensor:
    if isinstance(edge_index, EdgeIndex):
        _check_size("an EdgeIndex", edge_index.sparse_size(), sizes)
        edge_index = edge_index.as_tensor()
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a Tensor, got {in_place_of_edges(edge_index)}")
    index = check.integer_tensor("edge_index", edge_index, dim=2)
    if index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, E], got {list(index.shape)}")
    if index.is_cpu and not check.all_below(index, min(sizes)):
        for what, ends, size in zip(("source", "target"), index, sizes, strict=True):
            check.id_range(f"edge_index: every {what}", ends, size, minimum=0)
    return index


def _check_types(edge_type: Any, index: Tensor, num_relations: int | None) -> Tensor | None:
    if edge_type is None:
        if num_relations is not None:
            raise ValueError(f"edge_type must be given to a layer with num_relations={num_relations}, got None")
        return None
    if check.tensor("edge_type", edge_type).is_floating_point():
        raise TypeError(
            f"edge_type must hold integers, the relation of every edge, got {edge_type.dtype}: "
            "features of edges are passed as edge_attr=..."
        )
    types = check.integer_tensor("edge_type", edge_type, dim=1)
    if types.shape[0] != index.shape[1]:
        raise ValueError(f"edge_type must have shape [E] = [{index.shape[1]}], got {list(types.shape)}")
    if num_relations is None:
        raise ValueError(
            f"edge_type must be left out of a layer without num_relations, got shape {list(types.shape)}: to use it, "
            "make the layer with num_relations= the number of types"
        )
    if types.is_cpu:
        check.id_range("edge_type", types, num_relations)
    return types.long()


def _check_attr(edge_attr: Any, index: Tensor, edge_dim: int | None) -> Tensor | None:
    if edge_attr is None:
        if edge_dim is not None:
            raise ValueError(f"edge_attr must be given to a layer with edge_dim={edge_dim}, got None")
        return None
    if edge_dim is None:
        raise ValueError("edge_attr must be left out without edge_dim: the layer has no projection for it")
    if not check.tensor("edge_attr", edge_attr).is_floating_point():
        raise TypeError(f"edge_attr must be floating, got {edge_attr.dtype}: relations are passed as edge_type")
    if list(edge_attr.shape) != [index.shape[1], edge_dim]:
        raise ValueError(
            f"edge_attr must have shape [E, edge_dim] = [{index.shape[1]}, {edge_dim}], got {list(edge_attr.shape)}"
        )
    return edge_attr
