"""A transform that labels each graph once and stores the labels with its data, and the way to read them back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.labelers import Labeler
from relgraph.labelers.base import unusual
from relgraph.labelers.written import label_pairs
from relgraph.labels import NOT_ATTENDING, UNLABELED, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels
from relgraph.labels.memory import Memory
from relgraph.labels.ragged import block_address, block_starts
from relgraph.pyg.data import borders, borders_of, check_attribute, check_data, check_sorted, from_data, known_num_nodes

_RESERVED = ("adj", "batch", "edge", "face", "index")  # PyG collates and slices by these parts of a name


@final
@functional_transform("add_relation_labels")
class AddRelationLabels(BaseTransform):
    """Label each graph once, and store the labels with the data so that PyG collates and saves them.

    Use it as ``transform`` or ``pre_transform``. :func:`~relgraph.pyg.relation_labels` reads the labels back from a
    graph or a batch. Two attributes hold them:

    - ``rel``, a dict, so that no sampler mistakes it for node or edge features. Labels of edges are in ``pair``
      ``[P, 2]`` (source, target; that is key, query) and ``label`` ``[P]``, labels of all pairs in ``label`` ``[n²]``,
      row by row. Distances store no tensors. A sum holds one such dict per part.
    - ``rel_node`` ``[n]``, the number of each node, so that labels still fit when ``subgraph`` or a sampler removes or
      moves nodes. The labels stay those of the original graph: paths may lead through removed nodes. To label the
      sampled graph itself, label after sampling: ``NeighborLoader(..., transform=...)``.

    Source: conventions of PyG's :class:`~torch_geometric.transforms.BaseTransform`.

    Args:
        labeler: a :class:`~relgraph.Labeler`, called with ``from_data(data)``.
        attr_name: the name of the dict, ``rel`` above.
        edge_type: the attribute with the type of every edge, see :func:`~relgraph.pyg.from_data`.
        node_type: the attribute with the type of every node.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: an ``attr_name`` that is not an identifier, or that PyG would treat in another way
            (``"edge_labels"``).

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
        attr_name: str = "rel",
        *,
        edge_type: str | None = "edge_type",
        node_type: str | None = "node_type",
    ) -> None:
        self.labeler = _check_labeler("labeler", labeler)
        self.attr_name = _check_name(attr_name)
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
            TypeError: not a Data, or a labeler that does not return Labels.
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
        if not _labeled(data, self.attr_name):
            for name in (self.attr_name, f"{self.attr_name}_node"):
                if name in data:
                    raise ValueError(f"data.{name} must be free for labels, got other data: give another attr_name")
        labels = self.labeler(graph)
        _check_storable(self.labeler, labels, graph.num_nodes)
        data[self.attr_name] = {"by": _expression(self.labeler), "nodes": graph.num_nodes, **_to_store(labels)}
        data[f"{self.attr_name}_node"] = torch.arange(graph.num_nodes, device=graph.device)
        return data

    def __repr__(self) -> str:
        options = unusual(self, attr_name="rel", edge_type="edge_type", node_type="node_type")
        return f"AddRelationLabels({self.labeler!r}{options})"


def relation_labels(data: Data | Batch, by: AddRelationLabels | Labeler, attr_name: str | None = None) -> Labels:
    """Read the labels that :class:`~relgraph.pyg.AddRelationLabels` stored in a graph or a batch (then packed).

    Row i is the query, column j the key, in the order of the nodes.

    Args:
        data: a :class:`~torch_geometric.data.Data` or a :class:`~torch_geometric.data.Batch`.
        by: the transform that stored the labels, or its labeler.
        attr_name: the attribute that holds the labels; the transform's by default, ``"rel"`` if ``by`` is a labeler.

    Returns:
        The stored labels of the remaining nodes, in their order; edges graph by graph. Labels by distance become dense
        if nodes were removed or moved.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: no stored labels, labels of another labeler, or nodes that were not labeled, or occur twice.

    Example:
        >>> from torch_geometric.data import Batch, Data
        >>> transform = rg.pyg.AddRelationLabels(rg.EdgeType(1, attend="all") | rg.ClippedDistance(1))
        >>> data = transform(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
        >>> rg.pyg.relation_labels(data, transform).to_dense()[0]
        tensor([[[2, 3],
                 [0, 2]]])
    """
    if isinstance(by, AddRelationLabels):
        labeler, usual = by.labeler, by.attr_name
    else:
        labeler, usual = _check_labeler("by", by), "rel"
    name = usual if attr_name is None else _check_name(attr_name)
    data = check_data(data)
    if not _labeled(data, name):
        raise ValueError(
            f"data must hold labels under {name!r}, put there by AddRelationLabels, got {sorted(data.keys())}"
        )
    num_nodes = known_num_nodes("data", data._store)
    numbers = check.integer_tensor(f"data.{name}_node", data[f"{name}_node"], dim=1)
    if numbers.shape[0] != num_nodes:
        raise ValueError(f"data.{name}_node must have shape [N] = [{num_nodes}], got {list(numbers.shape)}")
    stored = _Stored(f"data.{name}", data[name])
    no_edges = torch.empty(2, 0, dtype=torch.int64, device=numbers.device)
    sizes = stored.counts("nodes", numbers.device)
    nodes = Graph(no_edges, num_nodes, ptr=_borders(data, num_nodes, sizes))
    left = _RemainingNodes.of(name, nodes, numbers, sizes)
    labelers = stored.labelers()
    if labelers != {_expression(labeler)}:
        wanted = " and ".join(sorted(labelers))
        raise ValueError(f"by must be the labeler that made data.{name}, {wanted}, got {_expression(labeler)}")
    return _restore(stored, _template(labeler), left)


@dataclass(frozen=True)
class _Stored:
    """A stored dict, and its name in messages; entries may have been lost or changed since."""

    name: str
    entries: Mapping[str, Any]

    def _entry(self, key: str) -> Any:
        if key not in self.entries:
            raise ValueError(f"{self.name} must hold {key!r}, got {sorted(map(str, self.entries))}: label again")
        return self.entries[key]

    def part(self, key: str) -> _Stored:
        """The dict stored under ``key``."""
        entries = self._entry(key)
        if not isinstance(entries, Mapping):
            raise TypeError(f"{self.name}[{key!r}] must be a dict, got {type(entries).__name__}")
        return _Stored(f"{self.name}[{key!r}]", entries)

    def tensor(self, key: str, dim: int, device: torch.device) -> Tensor:
        """An integer tensor on the device of the nodes' numbers."""
        name = f"{self.name}[{key!r}]"
        found = check.integer_tensor(name, self._entry(key), dim=dim)
        if found.device != device:
            raise ValueError(f"{name} must be on the device of the nodes, {device}, got {found.device}")
        return found

    def counts(self, key: str, device: torch.device) -> Tensor:
        """``[G]``, one number per graph: stored as an int for one, a tensor or a list for several."""
        name, given = f"{self.name}[{key!r}]", self._entry(key)
        if isinstance(given, Tensor):
            return self.tensor(key, given.dim(), device).to(torch.int64).view(-1)
        listed = check.items(name, given, "counts") if isinstance(given, (list, tuple)) else (given,)
        return torch.tensor([check.integer(name, count, minimum=0) for count in listed], device=device)

    def labelers(self) -> set[str]:
        """The expressions of the labelers that made the labels."""
        by = self._entry("by")
        if not isinstance(by, (str, list, tuple)) or not all(isinstance(one, str) for one in by):
            raise TypeError(f"{self.name}['by'] must be the expression of a labeler, got {shown(by)}")
        return {by} if isinstance(by, str) else set(by)


@dataclass(frozen=True)
class _RemainingNodes:
    """The labeled nodes that were not removed."""

    nodes: Graph  # of these nodes, without edges
    numbers: Tensor  # [N], the number that each had in its original graph
    sizes: Tensor  # [G], the number of nodes of each original graph
    # the sorted numbers of the nodes in the original batch, and the position of each now; None if no node moved
    place: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, name: str, nodes: Graph, numbers: Tensor, sizes: Tensor) -> _RemainingNodes:
        """Raise ValueError unless every node was labeled and occurs once."""
        if not check.can_look_at_data(numbers, sizes):
            return cls(nodes, numbers, sizes, None)
        if sizes.shape[0] != nodes.num_graphs:
            raise ValueError(f"data.{name}['nodes'] must be one per graph, {nodes.num_graphs}, got {sizes.shape[0]}")
        graph = nodes.graph_of()
        known = bool(((numbers >= 0) & (numbers < sizes[graph])).all())
        before = (sizes.cumsum(0) - sizes)[graph] + numbers
        if not known or before.unique().shape[0] != before.shape[0]:
            raise ValueError(
                f"data.{name} must hold labels of all these nodes, got nodes that were not labeled, or occur twice: "
                "label again"
            )
        here = torch.arange(nodes.num_nodes, device=nodes.device)
        if nodes.num_nodes == int(sizes.sum()) and torch.equal(before, here):
            return cls(nodes, numbers, sizes, None)
        numbered, where = before.sort()
        return cls(nodes, numbers, sizes, (numbered, where))

    def edges(self, stored: _Stored, num_labels: int) -> tuple[Tensor, Tensor]:
        """Pairs ``[2, P]`` of remaining nodes, and their labels."""
        device = self.numbers.device
        pairs, ids = stored.tensor("pair", 2, device), stored.tensor("label", 1, device)
        count = stored.counts("count", device)
        if pairs.shape[1] != 2 or pairs.shape[0] != ids.shape[0]:
            raise ValueError(
                f"{stored.name} must hold 'pair' [P, 2] and 'label' [P], got {list(pairs.shape)} and {list(ids.shape)}"
            )
        if count.shape != self.sizes.shape:
            raise ValueError(f"{stored.name}['count'] must be one per graph, {len(self.sizes)}, got {len(count)}")
        check.id_range(f"{stored.name}['label']", ids, num_labels)
        looks = check.can_look_at_data(pairs, count)
        if looks and int(count.sum()) != pairs.shape[0]:
            raise ValueError(f"{stored.name}['count'] must add up to {pairs.shape[0]} pairs, got {int(count.sum())}")
        graph = torch.repeat_interleave(count, output_size=pairs.shape[0])
        if looks and not bool(((pairs >= 0) & (pairs < self.sizes[graph][:, None])).all()):
            raise ValueError(f"{stored.name}['pair'] must be nodes of their own graph, got others")
        ends = pairs.T + (self.sizes.cumsum(0) - self.sizes)[graph]
        if self.place is None:
            return ends, ids
        numbered, where = self.place
        if not numbered.numel():
            return ends[:, :0], ids[:0]
        at = torch.searchsorted(numbered, ends.contiguous()).clamp(max=numbered.shape[0] - 1)
        kept = (numbered[at] == ends).all(0)
        return where[at][:, kept], ids[kept]

    def pairs(self, stored: _Stored, num_labels: int) -> Tensor:
        """The entries for all pairs of remaining nodes, taken from ``[sum of n²]``."""
        codes = stored.tensor("label", 1, self.numbers.device)
        if check.can_look_at_data(self.sizes) and codes.shape[0] != (wanted := int((self.sizes**2).sum())):
            raise ValueError(f"{stored.name}['label'] must have shape [{wanted}], got {list(codes.shape)}")
        check.id_range(f"{stored.name}['label']", codes, num_labels, minimum=NOT_ATTENDING)
        codes = codes.to(torch.int16) if codes.dtype == torch.uint8 else codes  # so that it compares with -1
        if self.place is None:
            return codes
        query, key = self.nodes.pairs()
        graph, ends = self.nodes.graph_of()[query], self.sizes.cumsum(0)
        ptr = torch.cat([ends.new_zeros(1), ends])
        query, key = (ptr[graph] + self.numbers[nodes] for nodes in (query, key))
        return codes[block_address(ptr, ptr, block_starts(ptr, ptr), query, key, graph)]


def _borders(data: Data, num_nodes: int, sizes: Tensor) -> Tensor | None:
    """The borders of the graphs, from ``batch`` rather than ``ptr``, which ``Batch.subgraph`` does not update."""
    batch = data.get("batch", None)
    if batch is None or not check.can_look_at_data(batch):
        return borders(data, num_nodes)
    check_sorted("data.batch", batch)
    return borders_of(batch, sizes.shape[0])


def _labeled(data: Data, name: str) -> bool:
    """Whether labels are stored under this name."""
    stored = data[name] if name in data and f"{name}_node" in data else None
    return isinstance(stored, Mapping) and "by" in stored and "nodes" in stored


def _to_store(labels: Labels) -> dict[str, Any]:
    """The tensors of one graph's labels, without parts that the labeler makes the same for all graphs."""
    if isinstance(labels, SumLabels):
        return {str(number): _to_store(part) for number, part in enumerate(labels.parts)}
    if isinstance(labels, DistanceLabels):
        return {}
    if isinstance(labels, DenseLabels):
        return {"label": labels.ids.flatten()}
    assert isinstance(labels, EdgeLabels)
    rest = {"rest": _to_store(labels.default)} if isinstance(labels.default, Labels) else {}
    # no "index" in the name: PyG would add node counts to it, which may have changed since
    pairs = labels.edge_index.T.contiguous()
    return {"pair": pairs, "label": labels.ids, "count": pairs.shape[0], **rest}


def _restore(stored: _Stored, template: Labels, left: _RemainingNodes) -> Labels:
    """Labels from their tensors, with everything else as in ``template``."""
    nodes = left.nodes
    if isinstance(template, SumLabels):
        parts = enumerate(template.parts)
        return SumLabels(*(_restore(stored.part(str(number)), part, left) for number, part in parts))
    if isinstance(template, EdgeLabels):
        default, (edge_index, ids) = template.default, left.edges(stored, template.num_labels)
        if isinstance(default, Labels):
            default = _restore(stored.part("rest"), default, left)
        return EdgeLabels(
            edge_index, ids, template.num_labels, q_len=nodes.num_nodes, default=default,
            duplicates=template.duplicates, ptr=nodes.ptr,
        )  # fmt: skip
    if isinstance(template, DistanceLabels):
        lookup, first = template.lookup, template.left
        if left.place is None:
            num_labels = template.num_labels
            return DistanceLabels(nodes.num_nodes, lookup=lookup, left=first, num_labels=num_labels, ptr=nodes.ptr)
        query, key = nodes.pairs()
        distance = (left.numbers[key] - left.numbers[query]).clamp(-first, len(lookup) - 1 - first)
        codes = torch.tensor(lookup, device=nodes.device)[distance + first]
    else:
        assert isinstance(template, DenseLabels)
        codes = left.pairs(stored, template.num_labels)
    return label_pairs(nodes, codes.clamp(min=UNLABELED), template.num_labels, codes > NOT_ATTENDING)


_templates = Memory()


def _template(labeler: Labeler) -> Labels:
    """The labels of one node without edges: kind, default and lookup are the same for every graph."""

    def make() -> Labels:
        none = torch.zeros(0, dtype=torch.int64)
        return labeler(Graph(none.view(2, 0), 1, edge_type=none, node_type=torch.zeros(1, dtype=torch.int64)))

    return _templates.once(labeler, make)


def _constants(labels: Labels) -> tuple[Any, ...] | None:
    """All that describes labels apart from their tensors and lengths; None for kinds that cannot be stored."""
    if isinstance(labels, SumLabels):
        parts = tuple(_constants(part) for part in labels.parts)
        return None if None in parts else parts
    if isinstance(labels, EdgeLabels):
        default = _constants(labels.default) if isinstance(labels.default, Labels) else (labels.default,)
        return None if default is None else ("edges", labels.num_labels, default, labels.duplicates)
    if isinstance(labels, DistanceLabels) and labels.q_offset is None:
        return "distances", labels.num_labels, labels.lookup, labels.left
    return ("dense", labels.num_labels) if isinstance(labels, DenseLabels) else None


def _check_storable(labeler: Labeler, labels: Labels, num_nodes: int) -> None:
    if not isinstance(labels, Labels):
        raise TypeError(f"labeler must return Labels, got {type(labels).__name__}")
    if (labels.batch_size, labels.q_len, labels.k_len) != (1, num_nodes, num_nodes):
        raise ValueError(f"labeler must label the {num_nodes} nodes against themselves, got {labels!r}")
    constants = _constants(labels)
    if constants is None or constants != _constants(_template(labeler)):
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


def _check_name(attr_name: Any) -> str:
    if not isinstance(attr_name, str):
        raise TypeError(f"attr_name must be a str, got {type(attr_name).__name__}")
    if any(part in attr_name for part in _RESERVED) or not attr_name.isidentifier():
        raise ValueError(f"attr_name must be an identifier without any of {list(_RESERVED)} in it, got {attr_name!r}")
    return attr_name
