"""A transform that labels each graph once, beside its other data, and how the labels of a batch are read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from relgraph import _check
from relgraph.graphs import Graph
from relgraph.labelers import Labeler
from relgraph.labelers.written import written
from relgraph.labels import NOT_ATTENDING, UNLABELED, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels
from relgraph.pyg.data import borders, check_data, from_data, known_num_nodes

_TAKEN = ("adj", "batch", "edge", "face", "index")  # PyG collates and slices by these parts of a name


@final
@functional_transform("add_relation_labels")
class AddRelationLabels(BaseTransform):
    """Labels each graph and stores the labels so that they collate: ``DataLoader(dataset)``, ``pre_transform``, disk.

    :func:`relation_labels` reads them back from a graph or a batch. Two attributes hold them: ``rel``, a dict, which no
    sampler takes for a tensor of nodes or edges, with ``index`` ``[2, P]`` and ``label`` ``[P]`` for labels of edges,
    ``label`` ``[n²]`` row by row for labels of all pairs, nothing for distances, and one such dict a part for sums; and
    ``rel_node`` ``[n]``, the number of each node. By it, and by how many there were, it shows when nodes were taken
    away, added or moved since. Labels of pairs cannot follow then: label after sampling, as in
    ``NeighborLoader(..., transform=...)``. Edges may change; labels are those of the graph as it was.

    Args:
        labeler: called with ``from_data(data)``.
        attr_name: the name of the dict, ``rel`` above.
        edge_type: the attribute with the type of every edge, see :func:`from_data`.
        node_type: the attribute with the type of every node.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: an ``attr_name`` that PyG would take for something else.

    Example:
        >>> from torch_geometric.data import Batch, Data
        >>> transform = rg.pyg.AddRelationLabels(rg.EdgeType(1, inverse=True))
        >>> data = transform(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2))
        >>> data.rel["index"].tolist(), data.rel["label"].tolist()
        ([[0, 1], [1, 0]], [0, 1])
        >>> rg.pyg.relation_labels(Batch.from_data_list([data, data]), transform)
        EdgeLabels(q_len=4, k_len=4, num_labels=2, graphs=2, edges=4, default=None)
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
        self.edge_type, self.node_type = edge_type, node_type

    def forward(self, data: Data) -> Data:
        """``data`` with its labels.

        Raises:
            TypeError: no Data.
            ValueError: a batch, or a graph that the labeler or :func:`from_data` refuses.
            NotImplementedError: labels of a kind that cannot be stored, or that changes from graph to graph.
        """
        graph = from_data(data, edge_type=self.edge_type, node_type=self.node_type)
        if graph.ptr is not None:
            raise ValueError("data must be one graph, got a batch: transform its graphs, or call the labeler itself")
        if not _labeled(data, self.attr_name):
            for name in (self.attr_name, f"{self.attr_name}_node"):
                if name in data:
                    raise ValueError(f"data.{name} must be free for labels, got other data: give another attr_name")
        labels = self.labeler(graph)
        _check_form(self.labeler, labels, graph.num_nodes)
        data[self.attr_name] = {"by": _named(self.labeler), "nodes": graph.num_nodes, **_stored(labels)}
        data[f"{self.attr_name}_node"] = torch.arange(graph.num_nodes, device=graph.device)
        return data

    def __repr__(self) -> str:
        options = "".join(
            f", {name}={getattr(self, name)!r}"
            for name, usual in (("attr_name", "rel"), ("edge_type", "edge_type"), ("node_type", "node_type"))
            if getattr(self, name) != usual
        )
        return f"AddRelationLabels({self.labeler!r}{options})"


def relation_labels(data: Data | Batch, by: AddRelationLabels | Labeler, attr_name: str | None = None) -> Labels:
    """The labels that :class:`AddRelationLabels` stored: of a graph, or of a whole batch, packed.

    Args:
        data: a Data or a Batch.
        by: the transform that stored them, or its labeler.
        attr_name: where they are; the transform's, or ``"rel"``.

    Returns:
        What the labeler gives for ``from_data(data)``, with edges graph by graph.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: no labels there, labels of another labeler, or nodes that are no longer those that were labeled.

    Example:
        >>> from torch_geometric.data import Batch, Data
        >>> transform = rg.pyg.AddRelationLabels(rg.EdgeType(1, default="unlabeled") | rg.ClippedDistance(1))
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
    stored, numbers = data[name], data[f"{name}_node"]
    num_nodes = known_num_nodes("data", data._store)
    no_edges = torch.empty(2, 0, dtype=torch.int64, device=numbers.device)
    nodes = Graph(no_edges, num_nodes, ptr=borders(data, num_nodes))
    _check_same_nodes(name, numbers, stored["nodes"], nodes)
    makers = {stored["by"]} if isinstance(stored["by"], str) else set(stored["by"])
    if makers != {_named(labeler)}:
        raise ValueError(f"by must be what labeled data.{name}, {' and '.join(sorted(makers))}, got {_named(labeler)}")
    return _restored(stored, _form(labeler), nodes)


def _labeled(data: Data, name: str) -> bool:
    """Whether there are labels under this name."""
    stored = data[name] if name in data and f"{name}_node" in data else None
    return isinstance(stored, Mapping) and "by" in stored and "nodes" in stored


def _stored(labels: Labels) -> dict[str, Any]:
    """The tensors of one graph's labels; what is the same for all graphs is left to the labeler."""
    if isinstance(labels, SumLabels):
        return {str(number): _stored(part) for number, part in enumerate(labels.parts)}
    if isinstance(labels, DistanceLabels):
        return {}
    if isinstance(labels, DenseLabels):
        return {"label": labels.ids.flatten()}
    assert isinstance(labels, EdgeLabels)
    rest = {"rest": _stored(labels.default)} if isinstance(labels.default, Labels) else {}
    return {"index": labels.edge_index, "label": labels.ids, **rest}


def _restored(stored: Mapping[str, Any], form: Labels, nodes: Graph) -> Labels:
    """Labels from their tensors, with all the rest as in ``form``."""
    if isinstance(form, SumLabels):
        return SumLabels(*(_restored(stored[str(number)], part, nodes) for number, part in enumerate(form.parts)))
    if isinstance(form, DistanceLabels):
        return DistanceLabels(
            nodes.num_nodes, lookup=form.lookup, left=form.left, num_labels=form.num_labels, ptr=nodes.ptr
        )
    if isinstance(form, DenseLabels):
        codes = stored["label"]
        return written(nodes, codes.clamp(min=UNLABELED), form.num_labels, codes > NOT_ATTENDING)
    assert isinstance(form, EdgeLabels)
    default = form.default
    return EdgeLabels(
        stored["index"],
        stored["label"],
        form.num_labels,
        q_len=nodes.num_nodes,
        default=_restored(stored["rest"], default, nodes) if isinstance(default, Labels) else default,
        duplicates=form.duplicates,
        ptr=nodes.ptr,
    )


@lru_cache(maxsize=64)
def _form(labeler: Labeler) -> Labels:
    """The labels of one node without edges: kind, default and lookup are the same for every graph."""
    none = torch.zeros(0, dtype=torch.int64)
    return labeler(Graph(none.view(2, 0), 1, edge_type=none, node_type=torch.zeros(1, dtype=torch.int64)))


def _constants(labels: Labels) -> tuple[Any, ...] | None:
    """What labels are besides their tensors and lengths; None for kinds that cannot be stored."""
    if isinstance(labels, SumLabels):
        parts = tuple(_constants(part) for part in labels.parts)
        return None if None in parts else parts
    if isinstance(labels, EdgeLabels):
        default = _constants(labels.default) if isinstance(labels.default, Labels) else (labels.default,)
        return None if default is None else ("edges", labels.num_labels, default, labels.duplicates)
    if isinstance(labels, DistanceLabels) and labels.q_offset is None:
        return "distances", labels.num_labels, labels.lookup, labels.left
    return ("dense", labels.num_labels) if isinstance(labels, DenseLabels) else None


def _check_form(labeler: Labeler, labels: Labels, num_nodes: int) -> None:
    if not isinstance(labels, Labels):
        raise TypeError(f"labeler must return Labels, got {type(labels).__name__}")
    if (labels.batch_size, labels.q_len, labels.k_len) != (1, num_nodes, num_nodes):
        raise ValueError(f"labeler must label the {num_nodes} nodes against themselves, got {labels!r}")
    constants = _constants(labels)
    if constants is None or constants != _constants(_form(labeler)):
        raise NotImplementedError(
            "labels can be stored that are dense, of edges, of distances or sums of those, of one kind for all graphs; "
            f"got {labels!r} and for a single node {_form(labeler)!r}"
        )


def _check_same_nodes(name: str, numbers: Tensor, counts: int | Tensor, nodes: Graph) -> None:
    """Samplers and subgraphs take entries of ``numbers`` as they take nodes, and leave ``counts`` as they were."""
    if not _check.can_look_at_data(numbers, nodes.ptr):
        return
    borders = nodes.borders()
    begin = borders[:-1].repeat_interleave(borders.diff())
    expected = torch.arange(nodes.num_nodes, device=nodes.device) - begin
    sizes = torch.as_tensor(counts, device=nodes.device).view(-1)
    if not torch.equal(sizes, borders.diff()) or not torch.equal(numbers, expected):
        raise ValueError(
            f"data.{name} must hold labels of these nodes, got labels of other nodes: some were taken away, added or "
            "moved since; label again, or label after sampling"
        )


def _named(labeler: Labeler) -> str:
    """The labeler's expression, without the addresses that differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(labeler))


def _check_labeler(name: str, labeler: Any) -> Labeler:
    if not isinstance(labeler, Labeler):
        raise TypeError(f"{name} must be a Labeler, got {type(labeler).__name__}")
    return labeler


def _check_name(attr_name: Any) -> str:
    if not isinstance(attr_name, str):
        raise TypeError(f"attr_name must be a str, got {type(attr_name).__name__}")
    taken = [part for part in _TAKEN if part in attr_name]
    if taken or not attr_name.isidentifier():
        raise ValueError(f"attr_name must be an identifier without any of {list(_TAKEN)} in it, got {attr_name!r}")
    return attr_name
