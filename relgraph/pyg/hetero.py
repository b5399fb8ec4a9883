"""Attention over a heterogeneous graph: one softmax over all kinds of edges, each kind with its own vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad
from torch_geometric.data import HeteroData
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.utils import softmax

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.labels import EdgeLabels
from relgraph.nn.tables import RelationTables
from relgraph.pyg.adjacency import Edges, check_nodes, read_edges, with_values
from relgraph.pyg.edge_layer import EdgeLayer, check_width
from relgraph.pyg.messages import followed, in_func_transform, scores_and_values
from relgraph.score import Score

EdgeKind = tuple[str, str, str]


class _Projections(ModuleDict):
    """A linear map per kind of node, or of edge."""

    def __init__(self, widths: Mapping[Any, int], out_channels: int, bias: bool) -> None:
        super().__init__({kind: Linear(width, out_channels, bias=bias) for kind, width in widths.items()})

    def forward(self, nodes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {kind: self[kind](x) for kind, x in nodes.items()}

    def reset_parameters(self) -> None:
        for lin in self.values():
            assert isinstance(lin, Linear)
            lin.reset_parameters()


class _Messages(MessagePassing):
    """The messages of one kind of edge, after the softmax over all kinds; PyG's explainers mask and read them."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)

    def forward(self, index: Tensor, values: Tensor, alpha: Tensor, nodes: int) -> Tensor:
        """The sum of the weighted values of the edges into each node, ``[N, H, C]``."""
        return self.propagate(index, values=values, alpha=alpha, size=(nodes, nodes))

    def message(self, values: Tensor, alpha: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The weighted value of every edge, ``[E, H, C]``."""
        return values * alpha[..., None]


class RelationHeteroConv(EdgeLayer):
    """Let nodes attend over their incoming edges of all kinds at once; a label is (source kind, relation, target kind).

    The formula is that of :class:`~relgraph.pyg.RelationConv`: the target is the query, the source the key. Each kind
    of node has its own query, key and value projections; each label has a key and a value vector. A node weighs all its
    neighbours in one softmax, which separate layers per kind of edge cannot do. With ``score=Bilinear``,
    ``value_map=True`` and ``tables=()`` this is the attention of :class:`~torch_geometric.nn.conv.HGTConv`, before its
    output projections. Edges may have features, which each kind of edge maps into keys and values by itself, as in
    :class:`~relgraph.pyg.RelationConv`; an edge costs the sum of the widths of all kinds.

    The layer itself is not a :class:`~torch_geometric.nn.conv.MessagePassing`: PyG's explainers need one per kind of
    edge, and the layer holds these in ``messages``. They compute the output, more slowly, if an explainer masks or
    reads them, if they have hooks, and under ``torch.func`` transforms.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5, with the labels of a heterogeneous graph; maps as in Hu et al.
    2020, "Heterogeneous Graph Transformer" (W^ATT and W^MSG).

    Args:
        in_channels: width of the nodes, or a dict with a width per kind of node; -1 is inferred in the first call.
        out_channels: C, the width of each head.
        metadata: ``HeteroData.metadata()``: kinds of nodes, and kinds of edges as (source, relation, target).
        heads: H, the number of heads; this and all further arguments as in :class:`~relgraph.pyg.RelationConv`.
        edge_dim: the width of the features of edges, or a dict with a width for each kind of edge that has features;
            None if no kind has.

    Raises:
        ValueError: sizes below 1, no width for a kind of node, metadata without edges, or with edges between unknown
            nodes; a score for other sizes, or query tables with an ``Additive``.

    Example:
        >>> metadata = (["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper")])
        >>> conv = rg.pyg.RelationHeteroConv(8, 4, metadata, heads=2)
        >>> x = {"author": torch.randn(2, 8), "paper": torch.randn(3, 8)}
        >>> edges = {("author", "writes", "paper"): torch.tensor([[0, 1], [0, 2]])}
        >>> {kind: list(out.shape) for kind, out in conv(x, edges).items()}
        {'author': [2, 8], 'paper': [3, 8]}
    """

    def __init__(
        self,
        in_channels: int | dict[str, int],
        out_channels: int,
        metadata: tuple[Sequence[str], Sequence[EdgeKind]],
        heads: int = 1,
        concat: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        root_weight: bool = True,
        *,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        score: Score | None = None,
        value_map: bool | int = False,
        edge_dim: int | Mapping[EdgeKind, int] | None = None,
    ) -> None:
        super().__init__()
        self.node_types, self.edge_types = _check_metadata(metadata)
        self.edge_dims = _check_edge_dims(edge_dim, self.edge_types)
        self._set_sizes(out_channels, heads, concat, dropout)
        self.in_channels = in_channels
        widths, width = _check_widths(in_channels, self.node_types), heads * out_channels
        check.boolean("bias", bias)
        self._check_projections(in_channels=max(widths.values()), edge_dim=max(self.edge_dims.values(), default=1))
        self.lin_key, self.lin_query, self.lin_value = (_Projections(widths, width, bias) for _ in range(3))
        self.lin_edge, self.lin_edge_value = (_Projections(self.edge_dims, width, False) for _ in range(2))
        out = width if concat else out_channels
        self.lin_skip = _Projections(widths, out, bias) if check.boolean("root_weight", root_weight) else None
        names = ["__".join(kind) for kind in self.edge_types]
        self._set_attention(len(names), tables, score, value_map, names)
        self.messages = ModuleDict({kind: _Messages() for kind in self.edge_types})  # pyright: ignore[reportArgumentType]

    def forward(
        self,
        x_dict: Mapping[str, Tensor] | HeteroData,
        edge_index_dict: Mapping[EdgeKind, Any] | None = None,
        return_attention_weights: bool | None = None,
        *,
        edge_attr_dict: Mapping[EdgeKind, Tensor] | None = None,
    ) -> dict[str, Tensor] | tuple[dict[str, Tensor], dict[EdgeKind, Any]]:
        """Let the nodes attend over their incoming edges.

        Args:
            x_dict: ``[N, in_channels]`` by kind of node, without absent kinds; or only a
                :class:`~torch_geometric.data.HeteroData`, which holds both dicts.
            edge_index_dict: ``[2, E]``, (source, target) by column (or a sparse adjacency, targets as rows), by kind of
                edge, without absent kinds.
            return_attention_weights: None returns only the nodes; both True and False also return the weights, as in
                PyG's layers.
            edge_attr_dict: ``[E, F]`` by kind of edge, floating, for each given kind with an ``edge_dim``; a HeteroData
                holds it as ``edge_attr``.

        Returns:
            A dict of ``[N, H · C]`` for every kind of node given, or ``[N, C]`` without ``concat``; nodes without
            incoming edges get only their root term. With weights ``(nodes, weights)``: ``weights`` is a dict by kind of
            edge of ``(edge_index, alpha)``, ``alpha`` ``[E, H]`` before dropout (for a ``SparseTensor`` the adjacency
            with alpha as its values). The weights of a node's edges of all kinds sum to one.

        Raises:
            ValueError: kinds that are not in the metadata, edges without their nodes or features, features of a kind
                without ``edge_dim``, shapes or devices that do not fit, ends out of range.

        Example:
            >>> from torch_geometric.data import HeteroData
            >>> data = HeteroData()
            >>> data["author"].x, data["paper"].x = torch.randn(2, 8), torch.randn(3, 8)
            >>> data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [0, 2]])
            >>> conv = rg.pyg.RelationHeteroConv(8, 4, data.metadata(), heads=2)
            >>> conv(data)["paper"].shape
            torch.Size([3, 8])
        """
        wanted = return_attention_weights is not None
        if wanted:
            check.boolean("return_attention_weights", return_attention_weights)
        given = dicts_of(x_dict, edge_index_dict, edge_attr_dict, self.edge_dims)
        nodes, edges = self._read(*given)
        labels = self._labels(nodes, edges)
        query, key, value = (
            torch.cat([out[kind] for kind in nodes]).view(-1, self.heads, self.out_channels)  # [T, H, C]
            for out in (lin(nodes) for lin in (self.lin_query, self.lin_key, self.lin_value))
        )
        if in_func_transform() or any(followed(messages) for messages in self._messages_of(edges)):
            out, alpha = self._pass_messages(query, key, value, labels, edges)
        else:
            out, alpha = self._fused(query, key, value, labels, wanted, self._vectors(edges))
        out = out.flatten(1) if self.concat else out.mean(1)  # [T, H·C] or [T, C]
        root = {} if self.lin_skip is None else self.lin_skip(nodes)
        parts = zip(nodes, out.split([x.shape[0] for x in nodes.values()]), strict=True)
        found = {kind: part + root[kind] if root else part for kind, part in parts}
        if not wanted:
            return found
        assert alpha is not None
        weights = zip(edges, alpha.to(out.dtype).split(_counts(edges)), strict=True)
        return found, {kind: with_values(given[1][kind], edges[kind], part) for kind, part in weights}

    def _read(
        self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any
    ) -> tuple[dict[str, Tensor], dict[EdgeKind, Edges]]:
        """The nodes and edges of a call by kind, checked, in the order of the metadata."""
        _check_kinds("x_dict", x_dict, self.node_types)
        _check_kinds("edge_index_dict", edge_index_dict, self.edge_types)
        attrs = {} if edge_attr_dict is None else edge_attr_dict
        _check_kinds("edge_attr_dict", attrs, self.edge_types)
        nodes = {}
        for kind in self.node_types:
            if kind in x_dict:
                lin: Any = self.lin_key[kind]
                nodes[kind] = check_nodes(f"x_dict[{kind!r}]", x_dict[kind], lin.in_channels, lin.weight)
        check.same_device(**{f"x_dict[{kind!r}]": x for kind, x in nodes.items()})
        edges = {}
        for kind in self.edge_types:
            if kind not in edge_index_dict:
                continue
            source, _, target = kind
            for end in (source, target):
                if end not in nodes:
                    raise ValueError(f"x_dict must hold the nodes of every edge given, {kind}, got no {end!r}")
            sizes = nodes[source].shape[0], nodes[target].shape[0]
            edges[kind] = _edges_of(kind, edge_index_dict[kind], attrs.get(kind), sizes, self.edge_dims.get(kind))
            check.same_device(**{"x_dict": nodes[source], f"edge_index_dict[{kind}]": edges[kind].index})
            check.same_dtype(**{"x_dict": nodes[source], f"edge_attr_dict[{kind}]": edges[kind].attr})
        for kind in attrs:
            if kind not in edges:
                raise ValueError(f"edge_index_dict must hold the edges of all features given, got none of {kind}")
        return nodes, edges

    def _vectors(self, edges: dict[EdgeKind, Edges]) -> dict[str, Tensor]:
        """Features of all edges and their maps for the fused call: each kind has columns of its own."""
        widths = {kind: self.edge_dims[kind] for kind in edges if kind in self.edge_dims}
        if not widths:
            return {}
        total, before, rows = sum(widths.values()), 0, []
        like = next(some.attr for some in edges.values() if some.attr is not None)
        for some in edges.values():
            if some.attr is None:
                rows.append(like.new_zeros(some.index.shape[1], total))
                continue
            width = some.attr.shape[1]
            rows.append(pad(some.attr, (before, total - before - width)))
            before += width
        to_key, to_value = (
            torch.cat([lin[kind].weight for kind in widths], 1).view(self.heads, self.out_channels, total)  # pyright: ignore[reportArgumentType]
            for lin in (self.lin_edge, self.lin_edge_value)
        )
        return {"edge_attr": torch.cat(rows), "edge_key": to_key, "edge_value": to_value}

    def _labels(self, nodes: dict[str, Tensor], edges: dict[EdgeKind, Edges]) -> EdgeLabels:
        """All edges over the concatenated nodes; the label of each is the number of its kind."""
        device = next(iter(nodes.values())).device
        first, total = {}, 0
        for kind, x in nodes.items():
            first[kind], total = total, total + x.shape[0]
        index = [torch.zeros(2, 0, dtype=torch.int64, device=device)]
        ids = [torch.zeros(0, dtype=torch.int64, device=device)]
        for kind, some in edges.items():
            source, _, target = kind
            index.append(some.index.long() + torch.tensor([[first[source]], [first[target]]], device=device))
            ids.append(torch.full_like(index[-1][0], self.edge_types.index(kind), dtype=torch.int64))
        return EdgeLabels._trusted(torch.cat(index, 1), torch.cat(ids), len(self.edge_types), total, total)._private()

    def _pass_messages(
        self, query: Tensor, key: Tensor, value: Tensor, labels: EdgeLabels, edges: dict[EdgeKind, Edges]
    ) -> tuple[Tensor, Tensor]:
        """The same in plain PyG: one softmax, then the messages of each kind of edge."""
        source, target = labels.edge_index
        ends = query[target], key[source], value[source]
        of_edges = (self._of_features(lin, edges, query) for lin in (self.lin_edge, self.lin_edge_value))
        scores, values = scores_and_values(self, *ends, labels.ids, *of_edges)
        alpha = softmax(scores, target, num_nodes=len(query))
        dropped, counts = dropout(alpha, self.dropout, self.training), _counts(edges)
        out = torch.zeros_like(query)
        parts = zip(labels.edge_index.split(counts, 1), values.split(counts), dropped.split(counts), strict=True)
        for messages, part in zip(self._messages_of(edges), parts, strict=True):
            out = out + messages(*part, len(query))
        return out, alpha

    def _of_features(self, maps: _Projections, edges: dict[EdgeKind, Edges], query: Tensor) -> Tensor | float:
        """What the features of each edge add to its key or value, ``[E, H, C]``; zeros for edges without features."""
        if not self.edge_dims:
            return 0.0
        nothing, rows = query.new_zeros(1, self.heads * self.out_channels), []
        for kind, some in edges.items():
            lin: Any = maps[kind] if kind in self.edge_dims else None
            rows.append(nothing.expand(some.index.shape[1], -1) if lin is None else lin(some.attr))
        return torch.cat(rows or [nothing[:0]]).view(-1, self.heads, self.out_channels)

    def _messages_of(self, edges: dict[EdgeKind, Edges]) -> list[_Messages]:
        return [self.messages[kind] for kind in edges]  # pyright: ignore[reportArgumentType, reportReturnType]

    def __repr__(self) -> str:
        kinds = f"{len(self.node_types)} kinds of nodes, {len(self.edge_types)} kinds of edges"
        dims = f", edge_dim={self.edge_dims}" if self.edge_dims else ""
        options = f"heads={self.heads}{self._shown_options()}{dims}"
        return f"RelationHeteroConv({self.in_channels}, {self.out_channels}, {options}; {kinds})"


def _check_metadata(metadata: Any) -> tuple[tuple[str, ...], tuple[EdgeKind, ...]]:
    if not isinstance(metadata, (tuple, list)) or len(metadata) != 2:
        raise TypeError(
            f"metadata must be (node kinds, edge kinds), as HeteroData.metadata() gives, got {shown(metadata)}"
        )
    nodes = check.items("metadata[0]", metadata[0], "kinds of nodes")
    edges = tuple(
        check.items("metadata[1]", kind, "triples of strings")
        for kind in check.items("metadata[1]", metadata[1], "kinds of edges")
    )
    for name in (*nodes, *(part for kind in edges for part in kind)):
        if not isinstance(name, str):
            raise TypeError(f"metadata must hold strings, got {type(name).__name__}")
    if not nodes or not edges or len(set(nodes)) != len(nodes) or len(set(edges)) != len(edges):
        raise ValueError(f"metadata must name at least one kind of node and of edge, each once, got {shown(metadata)}")
    for kind in edges:
        if len(kind) != 3 or kind[0] not in nodes or kind[2] not in nodes:
            raise ValueError(f"metadata: every kind of edge must be (source, relation, target) of {nodes}, got {kind}")
    return nodes, edges  # pyright: ignore[reportReturnType]


def _check_widths(in_channels: Any, kinds: tuple[str, ...]) -> dict[str, int]:
    """The width of every kind of node."""
    widths: Any = in_channels if isinstance(in_channels, Mapping) else dict.fromkeys(kinds, in_channels)
    for kind in kinds:
        if kind not in widths:
            raise ValueError(f"in_channels must hold a width for every kind of node, got none for {kind!r}")
    return {kind: check_width(widths[kind]) for kind in kinds}


def _check_edge_dims(edge_dim: Any, kinds: tuple[EdgeKind, ...]) -> dict[EdgeKind, int]:
    """The width of the features of each kind of edge that has some."""
    dims: Any = (
        dict.fromkeys(kinds, edge_dim) if edge_dim is not None and not isinstance(edge_dim, Mapping) else edge_dim
    )
    _check_kinds("edge_dim", dims or {}, kinds)
    return {kind: check.integer("edge_dim", dims[kind], minimum=1) for kind in kinds if kind in (dims or {})}


def dicts_of(x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any, edge_dims: Any) -> tuple[Any, Any, Any]:
    """Nodes, edges and features by kind, which may all come from one HeteroData; of features those that are read."""
    if not isinstance(x_dict, HeteroData):
        return x_dict, edge_index_dict, edge_attr_dict
    for name, given in (("edge_index_dict", edge_index_dict), ("edge_attr_dict", edge_attr_dict)):
        if given is not None:
            raise TypeError(f"{name} must be left out with a HeteroData, which has its own")
    nodes = {kind: store["x"] for kind, store in x_dict.node_items() if "x" in store}
    stores = {kind: store for kind, store in x_dict.edge_items() if "edge_index" in store}
    features = {kind: x["edge_attr"] for kind, x in stores.items() if kind in edge_dims and "edge_attr" in x}
    return nodes, {kind: store["edge_index"] for kind, store in stores.items()}, features


def _counts(edges: Mapping[EdgeKind, Edges]) -> list[int]:
    """The number of edges of each kind."""
    return [some.index.shape[1] for some in edges.values()]


def _edges_of(kind: EdgeKind, given: Any, attr: Any, sizes: tuple[int, int], edge_dim: int | None) -> Edges:
    """The edges of one kind; error messages name it."""
    try:
        return read_edges(given, None, attr, sizes, None, edge_dim)
    except (TypeError, ValueError) as error:
        name = "edge_attr_dict" if str(error).startswith("edge_attr") else "edge_index_dict"
        raise type(error)(f"{name}[{kind}]: {error}") from None


def _check_kinds(name: str, given: Any, known: Sequence[Any]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a dict by kind, got {type(given).__name__}")
    for kind in given:
        if kind not in known:
            raise ValueError(f"{name} must hold kinds of the metadata, {list(known)}, got {kind!r}")
    if name == "x_dict" and not given:
        raise ValueError("x_dict must hold at least one kind of node, got none")
