"""A transform that labels each graph once and stores the labels with its data, and the way to read them back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from relgraph.arguments import check
from relgraph.graphs import Graph
from relgraph.labelers import Labeler
from relgraph.labelers.base import unusual
from relgraph.labels import Labels
from relgraph.labels.memory import Memory
from relgraph.pyg.data import check_attribute, check_data, from_data, known_num_nodes
from relgraph.pyg.stored import RemainingNodes, Stored, constants_of, numbers_of, remaining_borders, restore, to_store


@final
@functional_transform("add_relation_labels")
class AddRelationLabels(BaseTransform):
    """Label each graph once, and store the labels with the data so that PyG collates and saves them.

    Use it as ``transform`` or ``pre_transform``, and put it last: transforms that change edges, such as
    ``RandomLinkSplit`` or ``ToUndirected``, leave the stored labels as they are.
    :func:`~relgraph.pyg.relation_labels` reads the labels back from a graph or a batch, and raises if edges or their
    types changed since, unless nodes were removed or moved too. Two attributes hold the labels:

    - ``rel``, a dict, so that no sampler mistakes it for node or edge features. Labels of edges are in ``pair``
      ``[P, 2]`` (source, target; that is key, query) and ``label`` ``[P]``, labels of all pairs in ``label`` ``[n²]``,
      row by row. Distances store no tensors. A sum holds one such dict per part.
    - ``rel_node`` ``[n]``, the number of each node, so that labels still fit when ``subgraph`` or a sampler removes or
      moves nodes. The labels stay those of the original graph: paths may lead through removed nodes. To label the
      sampled graph itself, label after sampling: ``NeighborLoader(..., transform=...)``.

    Source: conventions of PyG's :class:`~torch_geometric.transforms.BaseTransform`.

    Args:
        labeler: a :class:`~relgraph.Labeler`, called with ``from_data(data)``.
        edge_type: the attribute with the type of every edge, see :func:`~relgraph.pyg.from_data`.
        node_type: the attribute with the type of every node.

    Example:
        >>> from torch_geometric.data import Batch, Data
        >>> transform = rg.pyg.AddRelationLabels(rg.EdgeType(1, inverse=True))
        >>> data = transform(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
        >>> data.rel["pair"].tolist(), data.rel["label"].tolist()
        ([[0, 1], [1, 0]], [0, 1])
        >>> labels = rg.pyg.relation_labels(Batch.from_data_list([data, data]), transform)
        >>> labels.q_len, labels.edge_index.tolist()                            # two graphs, packed
        (4, [[0, 1, 2, 3], [1, 0, 3, 2]])
    """

    def __init__(
        self,
        labeler: Labeler,
        *,
        edge_type: str | None = "edge_type",
        node_type: str | None = "node_type",
    ) -> None:
        self.labeler = _check_labeler("labeler", labeler)
        check_attribute("edge_type", edge_type)
        check_attribute("node_type", node_type)
        self.edge_type, self.node_type = edge_type, node_type

    def forward(self, data: Data) -> Data:
        """Add labels to ``data``, which is a shallow copy when PyG calls this method.

        Args:
            data: a :class:`~torch_geometric.data.Data`, one graph.

        Returns:
            The same object, with the two attributes.

        Raises:
            ValueError: a batch, a graph that does not fit the labeler or :func:`~relgraph.pyg.from_data`, or other data
                under the attributes' names.
            NotImplementedError: labels of a kind that cannot be stored, or that changes from graph to graph.

        Example:
            >>> from torch_geometric.data import Data
            >>> path = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
            >>> labeled = rg.pyg.AddRelationLabels(rg.ShortestPath(2))(path)        # as PyG calls it
            >>> labeled.rel["label"].shape, "rel" in path                           # all 9 pairs
            (torch.Size([9]), False)
        """
        graph = from_data(data, edge_type=self.edge_type, node_type=self.node_type)
        if graph.ptr is not None:
            raise ValueError("data must be one graph, got a batch: transform its graphs, or call the labeler itself")
        if not _labeled(data):
            for name in ("rel", "rel_node"):
                if name in data:
                    raise ValueError(f"data.{name} must be free for labels, got other data")
        labels = self.labeler(graph)
        _check_storable(self.labeler, labels, graph.num_nodes)
        data.rel = {
            "by": _expression(self.labeler), "nodes": graph.num_nodes,
            "edges": numbers_of(graph.edge_index, graph.edge_type, graph),
            "types": self.edge_type if graph.edge_type is not None and self.edge_type else "", **to_store(labels),
        }  # fmt: skip
        data.rel_node = torch.arange(graph.num_nodes, device=graph.device)
        return data

    def __repr__(self) -> str:
        options = unusual(self, edge_type="edge_type", node_type="node_type")
        return f"AddRelationLabels({self.labeler!r}{options})"


def relation_labels(data: Data | Batch, by: AddRelationLabels | Labeler) -> Labels:
    """Read the labels that :class:`~relgraph.pyg.AddRelationLabels` stored in a graph or a batch (then packed).

    Row i is the query, column j the key, in the order of the nodes.

    Args:
        data: a :class:`~torch_geometric.data.Data` or a :class:`~torch_geometric.data.Batch`.
        by: the transform that stored the labels, or its labeler.

    Returns:
        The stored labels of the remaining nodes, in their order; edges graph by graph. Labels by distance become dense
        if nodes were removed or moved.

    Raises:
        ValueError: no stored labels, labels of another labeler or of edges that changed since, or nodes that were not
            labeled, or occur twice.

    Example:
        >>> from torch_geometric.data import Batch, Data
        >>> transform = rg.pyg.AddRelationLabels(rg.EdgeType(1, attend="all") | rg.ClippedDistance(1))
        >>> data = transform(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
        >>> rg.pyg.relation_labels(data, transform).to_dense()[0]
        tensor([[[2, 3],
                 [0, 2]]])
    """
    labeler = by.labeler if isinstance(by, AddRelationLabels) else _check_labeler("by", by)
    data = check_data(data)
    if not _labeled(data):
        raise ValueError(
            f"data must hold labels under 'rel', put there by AddRelationLabels, got {sorted(data.keys())}"
        )
    num_nodes = known_num_nodes("data", data._store)
    numbers = check.integer_tensor("data.rel_node", data.rel_node, dim=1)
    if numbers.shape[0] != num_nodes:
        raise ValueError(f"data.rel_node must have shape [N] = [{num_nodes}], got {list(numbers.shape)}")
    stored = Stored("data.rel", data.rel)
    no_edges = torch.empty(2, 0, dtype=torch.int64, device=numbers.device)
    sizes = stored.counts("nodes", numbers.device)
    nodes = Graph(no_edges, num_nodes, ptr=remaining_borders(data, num_nodes, sizes))
    remaining = RemainingNodes.of(nodes, numbers, sizes)
    if remaining.place is None and "edge_index" in data and "n_id" not in data and check.can_look_at_data(numbers):
        stored.check_edges(data, nodes)
    labelers = stored.texts("by", "the expression of a labeler")
    if labelers != {_expression(labeler)}:
        held, reads = " and ".join(sorted(labelers)), _expression(labeler)
        raise ValueError(f"data.rel must hold labels of the labeler that reads them, {reads}, got those of {held}")
    return restore(stored, _template(labeler), remaining)


def _labeled(data: Data) -> bool:
    """Whether labels are stored."""
    stored = data.rel if "rel" in data and "rel_node" in data else None
    return isinstance(stored, Mapping) and "by" in stored and "nodes" in stored


_templates = Memory()


def _template(labeler: Labeler) -> Labels:
    """The labels of one node without edges: kind, default and lookup are the same for every graph."""

    def make() -> Labels:
        none = torch.zeros(0, dtype=torch.int64)
        return labeler(Graph(none.view(2, 0), 1, edge_type=none, node_type=torch.zeros(1, dtype=torch.int64)))

    return _templates.once(labeler, make)


def _check_storable(labeler: Labeler, labels: Labels, num_nodes: int) -> None:
    if not isinstance(labels, Labels):
        raise TypeError(f"labeler must return Labels, got {type(labels).__name__}")
    if (labels.batch_size, labels.q_len, labels.k_len) != (1, num_nodes, num_nodes):
        raise ValueError(f"labeler must label the {num_nodes} nodes against themselves, got {labels!r}")
    constants = constants_of(labels)
    if constants is None or constants != constants_of(_template(labeler)):
        raise NotImplementedError(
            "stored labels must be dense, of edges, of distances or sums of these, of one kind for all graphs; "
            f"got {labels!r} and for a single node {_template(labeler)!r}"
        )


def _expression(labeler: Labeler) -> str:
    """The labeler's ``repr`` without addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(labeler))


def _check_labeler(name: str, labeler: Any) -> Labeler:
    if not isinstance(labeler, Labeler):
        raise TypeError(f"{name} must be a Labeler, got {type(labeler).__name__}")
    return labeler
