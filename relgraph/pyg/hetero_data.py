"""PyTorch Geometric's heterogeneous graphs in one id space, in which types are ids with names."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields
from relgraph.graphs import Graph
from relgraph.pyg.data import borders_of, edge_index_of, known_num_nodes, plain


class HeteroGraph(NamedTuple):
    """A heterogeneous graph in one id space, from :func:`~relgraph.pyg.from_hetero_data`.

    Types are ids with names, so that labelers can read them: ``rg.EdgeType(hetero.edge_types)``.

    Args:
        graph: a :class:`~relgraph.Graph`; its ``edge_type`` ``[E]`` indexes ``edge_types``, its ``node_type`` ``[N]``
            indexes ``node_types``.
        node_types: the names of the node types.
        edge_types: the names of the edge types, ``"source__relation__target"``.
        nodes: the positions in ``graph`` of the nodes of each type, ``[n]``: ``h[nodes["paper"]] = h_paper``.

    Example:
        >>> from torch_geometric.data import HeteroData
        >>> data = HeteroData()
        >>> data["author"].x, data["paper"].x = torch.randn(1, 4), torch.randn(2, 4)
        >>> data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 0], [0, 1]])
        >>> hetero = rg.pyg.from_hetero_data(data)
        >>> rg.EdgeType(hetero.edge_types).names
        ('author__wrote__paper',)
        >>> h = torch.empty(3, 4)
        >>> for kind, at in hetero.nodes.items():
        ...     h[at] = data[kind].x
    """

    graph: Graph
    node_types: tuple[str, ...]
    edge_types: tuple[str, ...]
    nodes: dict[str, Tensor]

    def __repr__(self) -> str:
        return brief_fields(self, *self._fields)


def from_hetero_data(data: HeteroData) -> HeteroGraph:
    """Bring a heterogeneous graph, or a batch of them, into one id space: types become ids with names.

    Nodes are ordered by graph, then by type. An edge's source is the key j, its target the query i.

    Source: conventions of :class:`~torch_geometric.data.HeteroData`.

    Args:
        data: a :class:`~torch_geometric.data.HeteroData`: every node type with a known number of nodes, every edge type
            with its ``edge_index`` ``[2, E]``.

    Returns:
        A :class:`~relgraph.pyg.HeteroGraph`, its graph packed for a batch.

    Raises:
        ValueError: edges or a number of nodes are missing, an edge ends outside its node type or crosses from graph to
            graph, or only some node types have a ``batch``.

    Example:
        >>> from torch_geometric.data import HeteroData
        >>> data = HeteroData()
        >>> data["author"].num_nodes, data["paper"].num_nodes = 1, 2
        >>> data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 0], [0, 1]])
        >>> graph, _, names, nodes = rg.pyg.from_hetero_data(data)
        >>> names, graph.edge_index.tolist(), nodes["paper"].tolist()
        (('author__wrote__paper',), [[0, 0], [1, 2]], [1, 2])
    """
    if not isinstance(data, HeteroData):
        raise TypeError(f"data must be a HeteroData, got {type(data).__name__}")
    kinds = list(data.node_types)
    counts = [known_num_nodes(f"data[{kind!r}]", data[kind]) for kind in kinds]
    edges = [_edges_of(triple, data[triple]) for triple in data.edge_types]
    device = next((index.device for index in edges), torch.device("cpu"))
    graph_of_node, num_graphs = _graph_of_node(data, counts, device)
    order = torch.arange(sum(counts), device=device) if graph_of_node is None else graph_of_node.argsort(stable=True)
    nodes = dict(zip(kinds, order.argsort().split(counts), strict=True))
    for triple, index in zip(data.edge_types, edges, strict=True):
        _check_ends(triple, index, dict(zip(kinds, counts, strict=True)))
    moved = [
        torch.stack([nodes[source][index[0]], nodes[target][index[1]]])
        for (source, _, target), index in zip(data.edge_types, edges, strict=True)
    ]
    graph = Graph(
        torch.cat([torch.empty(2, 0, dtype=torch.int64, device=device), *moved], 1),
        sum(counts),
        edge_type=_repeated([index.shape[1] for index in edges], device),
        node_type=_repeated(counts, device)[order],
        ptr=None if graph_of_node is None else borders_of(graph_of_node, num_graphs),
        edge_types=["__".join(triple) for triple in data.edge_types],
        node_types=kinds,
    )
    return HeteroGraph(graph, tuple(kinds), graph.edge_types or (), nodes)


def _repeated(counts: list[int], device: torch.device) -> Tensor:
    """``counts[0]`` times 0, ``counts[1]`` times 1 and so on."""
    return torch.repeat_interleave(torch.tensor(counts, dtype=torch.int64, device=device))


def _edges_of(triple: tuple[str, str, str], store: Any) -> Tensor:
    """The checked ``edge_index`` of one edge type, ``[2, E]``, int64."""
    name = f"data[{triple!r}].edge_index"
    index = edge_index_of(f"data[{triple!r}]", store)
    if check.integer_tensor(name, index, dim=2).shape[0] != 2:
        raise ValueError(f"{name} must have shape [2, E], got {list(index.shape)}")
    check.data(name, index)
    return index.to(torch.int64)


def _check_ends(triple: tuple[str, str, str], index: Tensor, counts: dict[str, int]) -> None:
    """Raise ValueError unless both ends are nodes of the types that the edge type names."""
    name = f"data[{triple!r}].edge_index"
    for kind, ends in zip((triple[0], triple[2]), index, strict=True):
        if kind not in counts:
            raise ValueError(f"data[{kind!r}] must have num_nodes, as {triple!r} leads to or from it")
        check.id_range(f"the ends of {name} at {kind!r}", ends, counts[kind], minimum=0)


def _graph_of_node(data: HeteroData, counts: list[int], device: torch.device) -> tuple[Tensor | None, int]:
    """The graph of every node, type by type, or None for one graph; and the number of graphs."""
    stores = [data[kind] for kind in data.node_types]
    given = ["batch" in store for store in stores]
    if not any(given):
        return None, 1
    if not all(given):
        raise ValueError(f"data must have a batch for all node types or for none, got {sum(given)} of {len(given)}")
    batch = torch.cat([_integers(kind, "batch", data).to(device, torch.int64) for kind in data.node_types])
    if batch.shape[0] != sum(counts):
        raise ValueError(f"data must have a batch entry per node, {sum(counts)} in all, got {batch.shape[0]}")
    known = [_integers(kind, "ptr", data).shape[0] - 1 for kind in data.node_types if "ptr" in data[kind]]
    if batch.numel() and int(batch.min()) < 0:
        raise ValueError(f"data must have batches that count from 0, got {int(batch.min())}")
    num_graphs = max([*known, int(batch.max()) + 1 if batch.numel() else 0])
    if num_graphs > check.MOST_GRAPHS:
        raise ValueError(f"data must have batches of at most {check.MOST_GRAPHS:,} graphs, got one of {num_graphs:,}")
    return batch, num_graphs


def _integers(kind: str, attribute: str, data: HeteroData) -> Tensor:
    """``batch`` or ``ptr`` of one node type."""
    name = f"data[{kind!r}].{attribute}"
    found = check.integer_tensor(name, plain(data[kind][attribute]), dim=1)
    check.data(name, found)
    return found
