"""Attention between all nodes of each graph, with a label for every pair: the global part of a graph Transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.labels import DistanceLabels, EdgeLabels, Labels
from relgraph.labels.borders import graph_of
from relgraph.labels.memory import memory_of
from relgraph.nn import RelationAttention
from relgraph.nn.inputs import Names
from relgraph.nn.made_labels import labels_of, labels_of_lengths
from relgraph.nn.projections import check_head_dim
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import NumLabels, RelationTables
from relgraph.pyg.adjacency import check_nodes
from relgraph.pyg.data import borders, borders_of, check_sorted, edge_index_of, from_data, parts_of
from relgraph.pyg.edge_layer import shown_score
from relgraph.pyg.transforms import relation_labels
from relgraph.score import Score


class RelationGlobalAttention(nn.Module):
    """Let every node attend over all nodes of its own graph; pairs carry labels, and nothing is padded.

    This is :class:`~relgraph.RelationAttention` for PyG batches, with the same formula: node i is the query, and node j
    of the same graph is the key. The nodes ``[N, channels]`` of all graphs are concatenated; the labels or ``batch``
    hold the graphs' borders.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5, over all pairs of a graph as in Ying et al. 2021 (Graphormer).

    Args:
        channels: width of the nodes; this and all further arguments as in :class:`~relgraph.RelationAttention`.
        heads: H, which must divide ``channels``.
        labeler: makes the labels if ``forward`` gets a :class:`~torch_geometric.data.Data`, or the labeler's input in
            place of labels, such as a :class:`~relgraph.Graph`. The tables take its number of labels and their names.
        tables: kinds of tables, whose rows all heads share, a :class:`~relgraph.RelationTables`, or ``()`` for no
            labels. In :class:`~relgraph.pyg.RelationConv` each head has its own rows, as in PyG's TransformerConv.
        edge_dim: F, the width of ``edge_attr``, or None. With it all nodes of a graph attend to each other, and pairs
            joined by an edge also see its features.

    Raises:
        ValueError: heads that do not divide, sizes below 1, table options that do not fit.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, ptr=torch.tensor([0, 3, 5]))  # two graphs
        >>> layer = rg.pyg.RelationGlobalAttention(16, heads=4, labeler=rg.ShortestPath(4))
        >>> layer(torch.randn(5, 16), graph).shape                              # or labels, made once for many layers
        torch.Size([5, 16])
    """

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        labeler: Callable[..., Any] | None = None,
        num_labels: NumLabels = None,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        impl: str | None = None,
        score: Score | None = None,
        value_map: bool | int = False,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        self.channels, self.heads = channels, heads
        dim = check_head_dim("channels", channels, "heads", heads, None)
        check.parameter_size(3, channels=channels, heads=heads, head_dim=dim)
        self.attention = RelationAttention(
            channels, heads, dropout, bias, num_labels=num_labels, tables=tables, impl=impl, score=score,
            value_map=value_map, labeler=labeler, edge_dim=edge_dim,
        )  # fmt: skip
        self.attention._names = Names("x", "x", "x")

    def reset_parameters(self) -> None:
        """Initialize all parameters again."""
        self.attention.reset_parameters()

    def forward(
        self,
        x: Tensor | Data,
        labels: Labels | Any = None,
        batch: Tensor | None = None,
        *,
        bank_features: Any = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Let the nodes of each graph attend to each other.

        Args:
            x: ``[N, channels]``; or a :class:`~torch_geometric.data.Data` or :class:`~torch_geometric.data.Batch` with
                ``x``, whose graphs then need no ``batch``.
            labels: :class:`~relgraph.Labels` of all nodes: packed, or of a single graph; a layer with a labeler also
                takes the labeler's input or a Data. None for a layer without labels. With a labeler, None means what
                :class:`~relgraph.pyg.AddRelationLabels` stored as ``rel`` in a Data, or else the labels of its graph;
                for a tensor and a Data without edges, the labels of their lengths.
            batch: ``[N]``, the graph of each node, integers from 0 that never fall, as in PyG's batches. With packed
                labels you can leave it out, and compiled code ignores it.
            bank_features: the input of the tables' banks.
            edge_attr: ``[E, F]``, floating, for a layer with ``edge_dim``: a vector for each edge of the labels, in the
                order of their ``edge_index``; the labels must be :class:`~relgraph.EdgeLabels`. Leave it out with a
                Data, which has its own. A layer without labels attends over all pairs of each graph of the Data, whose
                edges carry the features.

        Returns:
            ``[N, channels]``.

        Raises:
            ValueError: a Data without ``x``, or without the ``edge_attr`` that the layer reads; labels of other edges
                than those of a Data; nodes that are not in the order of their graphs, labels with other borders
                than ``batch``, labels that are missing or do not fit, or another width.
            NotImplementedError: a call that the implementation does not support.

        Example:
            >>> layer = rg.pyg.RelationGlobalAttention(16, heads=4, tables=())     # plain attention
            >>> layer(torch.randn(5, 16), batch=torch.tensor([0, 0, 0, 1, 1])).shape
            torch.Size([5, 16])
            >>> from torch_geometric.data import Data
            >>> layer = rg.pyg.RelationGlobalAttention(16, heads=4, edge_dim=3)
            >>> data = Data(torch.randn(5, 16), torch.tensor([[0, 1, 3], [1, 2, 4]]), edge_attr=torch.randn(3, 3))
            >>> layer(data).shape
            torch.Size([5, 16])
        """
        labeler: Any = self.attention.labeler
        ptr = data = None
        if type(x) is not Tensor and isinstance(x, Data):
            given = {"batch": batch, "edge_attr": edge_attr}
            data, (x, _, edge_attr) = x, parts_of(x, given, {"batch": None, "edge_attr": self.attention.edge_maps})
        x = check_nodes("x", x, self.channels)
        if data is None:
            if batch is not None:
                _check_batch(batch, x)
                ptr = borders_of(batch) if labels is None or check.can_look_at_data(batch) else None  # [G + 1]
        elif labels is None and labeler is not None and ("rel_node" in data or data.edge_index is not None):
            labels = data
        else:
            ptr = borders(data, x.shape[0])
        if labels is None and labeler is not None:
            labels = labels_of_lengths(labeler, [x.shape[0]], None, x, ptr=ptr)
        elif labeler is not None and not isinstance(labels, Labels):
            if isinstance(labels, Data) and "rel_node" in labels:
                labels = relation_labels(labels, labeler)
            else:
                labels = labels_of(labeler, from_data(labels) if isinstance(labels, Data) else labels)
        if labels is None:
            if edge_attr is not None and data is not None:
                labels = _without_ids(edge_index_of("data", data._store), x.shape[0], ptr)
            else:
                labels = DistanceLabels(x.shape[0], lookup=(-1,), left=0, num_labels=0, ptr=ptr)
            if self.attention.tables is not None:
                raise ValueError("labels must be given to a layer with num_labels and without a labeler, got None")
        elif not isinstance(labels, Labels):
            raise TypeError(f"labels must be Labels or None, got {in_place_of_labels(labels)}")
        elif ptr is not None and check.can_look_at_data(ptr):
            _check_borders(labels, ptr)
        if edge_attr is not None and data is not None:
            _check_edges(labels, edge_index_of("data", data._store))
        return self.attention(x, labels=labels, bank_features=bank_features, edge_attr=edge_attr)

    def __repr__(self) -> str:
        tables, labels = self.attention.tables, ""
        if tables is not None:
            labels = f", num_labels={tables.num_labels}{tables._options()}"
        extra = shown_score(self.attention.score, self.attention.value_map)
        if self.attention.edge_maps is not None:
            extra += f", edge_dim={self.attention.edge_maps.edge_dim}"
        return f"RelationGlobalAttention({self.channels}, heads={self.heads}{labels}{extra})"


def _check_batch(batch: Any, x: Tensor) -> None:
    check.integer_tensor("batch", batch, dim=1)
    if batch.shape[0] != x.shape[0]:
        raise ValueError(f"batch must have shape [N] = [{x.shape[0]}], got {list(batch.shape)}")
    check.same_device(x=x, batch=batch)
    if check.can_look_at_data(batch):
        check_sorted("batch", batch)


def _without_ids(edge_index: Tensor, nodes: int, ptr: Tensor | None) -> EdgeLabels:
    """All pairs of each graph, of which the edges are listed; made once for the same edges."""
    owners = [edge_index] if ptr is None else [edge_index, ptr]

    def make() -> EdgeLabels:
        none = torch.full((edge_index.shape[-1],), -1, device=edge_index.device)
        return EdgeLabels(edge_index, none, 0, q_len=nodes, default=-1, ptr=ptr)._private()

    return memory_of(owners, ("all pairs", nodes)).once("labels", make)


def _check_edges(labels: Labels, edge_index: Tensor) -> None:
    """Raise ValueError unless labels list the edges of a Data, whose features belong to them, in their order."""
    mine = getattr(labels, "edge_index", None)
    if mine is None or mine.device != edge_index.device or not check.can_look_at_data(mine, edge_index):
        return
    if not torch.equal(mine, edge_index.long()):
        raise ValueError(
            f"labels must list the {edge_index.shape[1]} edges of the Data in their order, as edge_attr belongs to "
            f"these, got {labels!r}: pass x, labels and edge_attr apart"
        )


def _check_borders(labels: Labels, ptr: Tensor) -> None:
    if labels.k_ptr is None:
        if ptr.shape[0] > 2:
            raise ValueError(f"labels must be packed for a batch of {ptr.shape[0] - 1} graphs, got {labels!r}")
        return
    check.same_device(batch=ptr, labels=labels.k_ptr)
    mine, theirs = graph_of(labels.k_ptr, labels.k_len), graph_of(ptr, int(ptr[-1]))
    mine, theirs = (graph.unique_consecutive(return_counts=True)[1] for graph in (mine, theirs))
    if not torch.equal(mine, theirs):
        raise ValueError("labels must have the borders of batch, got others")
