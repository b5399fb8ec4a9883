"""PyTorch Geometric's data objects as graphs for labelers, and back."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_graph
from relgraph.graphs import Graph, check_graph
from relgraph.labels.borders import check_ptr, graph_of


def from_data(data: Data, *, edge_type: str | None = "edge_type", node_type: str | None = "node_type") -> Graph:
    """Make the graph that labelers read: one graph from a ``Data``, a packed batch from a ``Batch``.

    Edges keep their direction: ``edge_index[:, e] = (source, target)``; the source is the key j, the target the query
    i.

    Source: conventions of :class:`~torch_geometric.data.Data`.

    Args:
        data: a :class:`~torch_geometric.data.Data` or a :class:`~torch_geometric.data.Batch`; ``ptr`` or a sorted
            ``batch`` separates several graphs.
        edge_type: the attribute that holds the type of every edge: integers ``[E]`` or ``[E, 1]``, or one-hot rows
            ``[E, types]``, which many datasets keep in ``edge_attr``. A graph has no types if this is None, or if the
            default attribute is missing.
        node_type: the same for nodes, ``[N]``, ``[N, 1]`` or ``[N, types]``; one-hot rows are often in ``x``.

    Returns:
        A :class:`~relgraph.Graph`, packed for a batch.

    Raises:
        TypeError: a HeteroData, which :func:`~relgraph.pyg.from_hetero_data` reads.
        ValueError: edges or the number of nodes are missing, a named attribute is missing or holds no types, ``batch``
            is not sorted or disagrees with ``ptr``, or an edge leaves its graph.

    Example:
        >>> from torch_geometric.data import Data
        >>> bonds = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=bonds, num_nodes=2)
        >>> rg.pyg.from_data(data, edge_type="edge_attr").edge_type
        tensor([0, 1])
    """
    num_nodes = known_num_nodes("data", check_data(data)._store)
    return Graph(
        edge_index_of("data", data._store),
        num_nodes,
        edge_type=types_of(data, edge_type, "edge_type"),
        node_type=types_of(data, node_type, "node_type"),
        ptr=borders(data, num_nodes),
    )


def to_data(graph: Graph) -> Data:
    """Turn a graph into a ``Data``, or a packed batch into a ``Batch`` with edges ordered by graph.

    Edges keep their direction: the source is the key j, the target the query i.

    Source: conventions of :class:`~torch_geometric.data.Data`.

    Args:
        graph: a :class:`~relgraph.Graph`; its types become ``edge_type`` ``[E]`` and ``node_type`` ``[N]``.

    Returns:
        A :class:`~torch_geometric.data.Data`, or for a packed batch a :class:`~torch_geometric.data.Batch`.

    Raises:
        ValueError: a packed batch of no graphs, which a Batch cannot be.

    Example:
        >>> rg.pyg.to_data(rg.Graph(torch.tensor([[0], [1]]), 2))
        Data(edge_index=[2, 1], num_nodes=2)
    """
    if check_graph(graph).ptr is None:
        return _data(graph.edge_index, graph.num_nodes, graph.edge_type, graph.node_type)
    if graph.num_graphs == 0:
        raise ValueError("graph must hold at least one graph to become a Batch, got none")
    graph_of_edge = graph.graph_of()[graph.edge_index[1]]
    order = graph_of_edge.argsort(stable=True)
    starts = graph.borders()[:-1]
    edges = torch.bincount(graph_of_edge, minlength=graph.num_graphs).tolist()
    nodes = graph.borders().diff().tolist()
    index = (graph.edge_index - starts[graph_of_edge])[:, order].split(edges, 1)
    edge_type = [None] * len(edges) if graph.edge_type is None else graph.edge_type[order].split(edges)
    node_type = [None] * len(nodes) if graph.node_type is None else graph.node_type.split(nodes)
    return Batch.from_data_list([_data(*of) for of in zip(index, nodes, edge_type, node_type, strict=True)])  # pyright: ignore[reportReturnType]


def check_data(data: Any) -> Data:
    """Return ``data``; raise TypeError unless it is a Data or a Batch of them."""
    if isinstance(data, HeteroData):
        raise TypeError("data must be a Data or a Batch of them, got HeteroData: use from_hetero_data")
    if not isinstance(data, Data):
        raise TypeError(f"data must be a Data or a Batch of them, got {in_place_of_graph(data)}")
    return data


def parts_of(data: Data, given: dict[str, Any], wanted: dict[str, Any]) -> tuple[Any, ...]:
    """``x``, and the attributes named like the arguments ``given``, which must be None.

    An attribute whose option in ``wanted`` is None is not read, and is None here.
    """
    if any(value is not None for value in given.values()):
        names = " and ".join(", ".join(given).rsplit(", ", 1))
        raise TypeError(f"{names} must be left out with a {type(data).__name__}, which has its own")
    read = [name for name in ("x", *given) if wanted.get(name, True) is not None]
    for name in read:
        if name not in data:
            raise ValueError(f"data.{name} must be given, as the layer reads it, got a Data with {sorted(data.keys())}")
    return tuple(data[name] if name in read else None for name in ("x", *given))


def check_attribute(argument: str, name: Any) -> None:
    """Raise TypeError unless ``name`` is a string or None."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{argument} must be the name of an attribute, or None, got {type(name).__name__}")


def known_num_nodes(name: str, store: BaseStorage) -> int:
    """The number of nodes; raise ValueError where PyG would guess it from the edges."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            number = store.num_nodes  # pyright: ignore[reportAttributeAccessIssue]
        except UserWarning:
            number = None
    if number is None:
        raise ValueError(
            f"{name} must have num_nodes, or an attribute such as x that implies it, got {sorted(store.keys())}"
        )
    if isinstance(number, Tensor):
        check.data(f"{name}.num_nodes", check.integer_tensor(f"{name}.num_nodes", number, dim=0))
        number = int(number)
    if isinstance(number, Integral) and not isinstance(number, bool):  # NumPy's too
        number = int(number)
    return check.integer(f"{name}.num_nodes", number, minimum=0)


def edge_index_of(name: str, store: BaseStorage) -> Tensor:
    """``edge_index``, as a plain tensor."""
    if "edge_index" not in store:
        raise ValueError(f"{name} must have edge_index, got {sorted(store.keys())}")
    return plain(store["edge_index"])


def plain(value: Any) -> Any:
    """PyG's tensor subclasses as plain tensors; other values unchanged."""
    return value.as_tensor() if isinstance(value, (EdgeIndex, Index)) else value


def types_of(data: Data, name: str | None, usual: str) -> Tensor | None:
    """The type ids in an attribute: integers, or one-hot rows."""
    check_attribute(usual, name)
    if name is None or (name == usual and name not in data):
        return None
    if name not in data:
        raise ValueError(f"{usual} must name an attribute of data, one of {sorted(data.keys())}, got {name!r}")
    value = plain(check.tensor(f"data.{name}", data[name]))
    if value.dim() == 2 and value.shape[1] == 1 and value.dtype in check.INTEGER_DTYPES:
        return value[:, 0]
    return value if value.dim() != 2 else _from_one_hot(f"data.{name}", value)


def _from_one_hot(name: str, rows: Tensor) -> Tensor:
    if rows.shape[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=rows.device)
    if check.can_look_at_data(rows):
        one_hot = ((rows != 0).sum(1) == 1) & ((rows == 1).sum(1) == 1)
        if not bool(one_hot.all()):
            row = int((~one_hot).nonzero()[0])
            raise ValueError(f"{name} must have one-hot rows to be types, got row {row} = {rows[row].tolist()}")
    return rows.to(torch.int64).argmax(1)


def borders(data: Data, num_nodes: int) -> Tensor | None:
    """``ptr``, or the borders that ``batch`` implies; raise if they differ, as ``Batch.subgraph`` keeps the old ptr."""
    if "batch" not in data:
        return data.ptr if "ptr" in data else None
    batch = check.integer_tensor("data.batch", plain(data["batch"]), dim=1).to(torch.int64)
    if batch.shape[0] != num_nodes:
        raise ValueError(f"data.batch must have shape [{num_nodes}], got {list(batch.shape)}")
    if "ptr" not in data:
        check.data("data.batch", batch)
        check_sorted("data.batch", batch)
        return borders_of(batch)
    ptr = check_ptr("data.ptr", data["ptr"], num_nodes)
    if check.can_look_at_data(batch, ptr) and not torch.equal(graph_of(ptr, num_nodes), batch):
        raise ValueError("data.ptr and data.batch must agree, got other borders: delete ptr after removing nodes")
    return ptr


def check_sorted(name: str, batch: Tensor) -> None:
    """Raise ValueError unless the graph of every node counts from 0 and never falls."""
    if not batch.numel():
        return
    if int(batch[0]) < 0:
        raise ValueError(f"{name} must count from 0, got {int(batch[0])}")
    falls = (batch[1:] < batch[:-1]).nonzero()
    if falls.numel():
        at = int(falls[0])
        raise ValueError(
            f"{name} must be sorted, the nodes of a graph together, got {int(batch[at])} at node {at} "
            f"before {int(batch[at + 1])}"
        )
    if int(batch[-1]) >= check.MOST_GRAPHS:
        raise ValueError(f"{name} must be of at most {check.MOST_GRAPHS:,} graphs, got graph {int(batch[-1])}")


def borders_of(graph_of_node: Tensor, num_graphs: int = 0) -> Tensor:
    """The borders of at least ``num_graphs`` graphs from the graph of every node."""
    counts = torch.bincount(graph_of_node, minlength=num_graphs)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _data(index: Tensor, num_nodes: int, edge_type: Tensor | None, node_type: Tensor | None) -> Data:
    types = {"edge_type": edge_type, "node_type": node_type}
    return Data(edge_index=index, num_nodes=num_nodes, **{k: v for k, v in types.items() if v is not None})
