"""A graph layer that attends with the relation of every edge: tables in place of TransformerConv's one-hot types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.data import Data
from torch_geometric.nn import RGATConv, RGCNConv
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import Adj, OptTensor, PairTensor
from torch_geometric.utils import is_sparse, softmax

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.hints import in_place_of_tensor
from relgraph.labels import EdgeLabels
from relgraph.nn.edge_states import Listed, RelationalEdges, check_edge_update
from relgraph.nn.tables import RelationTables
from relgraph.pyg.adjacency import Edges, check_nodes, read_edges, with_values
from relgraph.pyg.convert_relational import of_rgat_conv, of_rgcn_conv
from relgraph.pyg.data import parts_of
from relgraph.pyg.edge_layer import check_propagation, check_some, check_tied_projections, check_widths
from relgraph.pyg.fitting import check_means, check_scores, check_states, which_full
from relgraph.pyg.linear_score import LinearScore
from relgraph.pyg.messages import followed, in_func_transform, scores_and_values
from relgraph.pyg.projected_layer import ProjectedLayer
from relgraph.pyg.related import from_pairs
from relgraph.pyg.self_loops import SelfLoops, check_self_loops
from relgraph.score import Score


class RelationConv(ProjectedLayer, MessagePassing):
    """Attention over incoming edges in which scores and values carry a vector for each edge's relation.

    Node i, the target, is the query. The sources j of its incoming edges e = (j → i), with relation r_e and features
    f_e, are the keys. In each head, of size C::

        s_e = (W_q x_i)·(W_k x_j + a^K[r_e] + U_k f_e) / √C
        α_e = softmax of s over the edges into i
        z_i = Σ_e α_e (W_v x_j + a^V[r_e] + U_v f_e)

    Then the layer adds the root term W_s x_i, or gates it with ``beta``. Parallel edges attend separately. A node
    without incoming edges gets only its root term. ``score`` replaces the dot product by another compatibility
    function, and ``value_map`` applies a map M[r_e] to the value W_v x_j.

    Full maps, from the layer's whole input to all heads, take the place of a projection: ``key_map="full"`` makes W_k
    a map W_k[r_e] for each relation, ``value_map="full"`` W_v and ``query_map="full"`` W_q. ``normalize="relation"``
    takes means in place of the softmax, over the edges N_r(i) of each relation r into i, as in R-GCN::

        z_i = Σ_r Σ_{e in N_r(i)} (W_v[r] x_j + a^V[r]) / |N_r(i)|

    A full map is applied once to each different pair of a node and a relation, in one product per relation. These pairs
    are found once for the same edges, and ``torch.compile`` breaks its graph there.

    The layer holds no vectors per edge: beyond the edges' scores, time and memory grow with the nodes. In some cases it
    takes PyG's slower ``message()`` path, with the same result: under explainers, with hooks on propagation or
    messages, under ``torch.func`` transforms, with ``flow="target_to_source"`` or another ``aggr``, and in a subclass
    that overrides ``message``, ``aggregate`` or ``update``.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5; gate, edge features and conventions as in Shi et al. 2021
    (:class:`~torch_geometric.nn.conv.TransformerConv`, from which :func:`~relgraph.pyg.from_transformer_conv`
    converts); additive scores, self-loops and shared projections as in Brody, Alon, Yahav 2022
    (:class:`~torch_geometric.nn.conv.GATv2Conv`, from which :func:`~relgraph.pyg.from_gatv2_conv` converts); maps as in
    Schlichtkrull et al. 2018 (R-GCN) and Busbridge et al. 2019 (RGAT), from whose layers :meth:`from_rgcn_conv` and
    :meth:`from_rgat_conv` convert.

    Args:
        in_channels: width of the nodes, or a pair of widths, of sources and targets; -1 is inferred in the first call.
        out_channels: C, the width of each head.
        heads: H, the number of heads.
        concat: whether heads are concatenated; if False, the output is their mean.
        beta: whether a learned gate weighs the root term against the rest; needs ``root_weight``.
        dropout: probability in ``[0, 1)`` with which an attention weight is dropped in training.
        edge_dim: F, the width of ``edge_attr``, or None.
        bias: whether projections have a bias.
        root_weight: whether the node's own features are added.
        num_relations: R, or None for edges without relations; may be left out with a :class:`~relgraph.RelationTables`.
        tables: the kinds of tables, of ``"key"``, ``"value"``, ``"query"`` (``[H, R, C]`` each) and ``"bias"``
            (``[H, R]``), in which each head has its own rows, as in PyG's TransformerConv; or a
            :class:`~relgraph.RelationTables`, which has further options: rows that heads share (the default of the
            layers over all pairs), tied tables, names, a frozen label. May be empty if the relations have maps, by
            ``value_map`` or ``score=Bilinear``.
        impl: see :func:`~relgraph.edge_attention`; not used on the ``message()`` path.
        score: the compatibility function, one of :mod:`relgraph.score`, a :class:`~relgraph.pyg.LinearScore` or a
            function of finished scores; None for the dot product. An ``Additive`` or ``Bilinear`` (``[H, R, C, C]``) is
            part of the layer and learned with it.
        value_map: whether each relation has a map of the values: False; within heads True for free maps
            ``[H, R, C, C]``, or an int K for maps Σ_k c[r, k] V[k] of K bases, which begin as the identity; or
            ``"full"`` for maps ``[R, in_channels, H · C]`` in place of W_v.
        tie_projections: which projections are shared: ``"value"`` and ``"query"`` take W_k of the keys, ``"edge"``
            makes U_k also U_v.
        edge_terms: those of ``"key"`` (U_k) and ``"value"`` (U_v) to which the projected ``edge_attr`` is added.
        out_bias: whether a learned vector is added to the output; only without ``root_weight``, whose projection has a
            bias.
        add_self_loops: whether one self-loop per node replaces all self-loops, as in PyG's
            :func:`~torch_geometric.utils.add_self_loops`: True, False, or a :class:`~relgraph.pyg.SelfLoops` with
            their features and relation. Each call then sorts the edges, and ``torch.compile`` breaks its graph there.
        key_map: False, or ``"full"`` for maps in place of W_k; with ``"value"`` and ``"query"`` in ``tie_projections``
            values and queries take the same maps, and then say ``"full"`` too.
        query_map: False, or ``"full"`` for maps in place of W_q, for dot products and ``LinearScore``. Tables are then
            of kinds ``"value"`` and ``"bias"``.
        num_bases: K, if the full maps of all relations are combined from K bases each for keys, values and queries.
        num_blocks: the number of blocks, if full maps are block-diagonal.
        normalize: ``"softmax"`` over the edges into a node, or ``"relation"`` for the mean over those of each relation.
        edge_update: ``"relational"`` to return also the next vector of every edge, by
            :class:`~relgraph.nn.RelationalEdges`, or this module with options of its own. Its formulas take the place
            of s, α and z above.
        kwargs: further arguments of :class:`~torch_geometric.nn.conv.MessagePassing`; ``decomposed_layers`` must stay
            1.

    Raises:
        ValueError: sizes below 1, a dropout outside ``[0, 1)``, an unknown ``impl``, tables, a score or self-loops for
            other sizes; maps without ``num_relations``; query tables with an ``Additive``; ``out_bias`` with
            ``root_weight``; full maps without ``in_channels``, or tied to a projection without them.
        NotImplementedError: ``decomposed_layers`` other than 1, which would slice the heads' vectors; tables, scores or
            edge features that full maps of queries, a ``LinearScore`` or ``normalize="relation"`` cannot take;
            relations, scores, maps or self-loops with ``edge_update``.

    Example:
        >>> conv = rg.pyg.RelationConv(16, 8, heads=4, num_relations=3)
        >>> edge_index, edge_type = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.tensor([0, 2, 1])
        >>> conv(torch.randn(3, 16), edge_index, edge_type).shape
        torch.Size([3, 32])
        >>> score = rg.score.Additive.learned(4, 8)
        >>> conv = rg.pyg.RelationConv(16, 8, heads=4, num_relations=3, score=score, value_map=2)
        >>> conv(torch.randn(3, 16), edge_index, edge_type).shape
        torch.Size([3, 32])
    """

    out_bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        *,
        num_relations: int | None = None,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        impl: str | None = None,
        score: Score | LinearScore | None = None,
        value_map: bool | int | str = False,
        tie_projections: Sequence[str] = (),
        edge_terms: Sequence[str] = ("key", "value"),
        out_bias: bool = False,
        add_self_loops: bool | SelfLoops = False,
        key_map: bool | str = False,
        query_map: bool | str = False,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        normalize: str = "softmax",
        edge_update: str | RelationalEdges | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("aggr", "add")
        check_propagation(kwargs)
        try:
            super().__init__(node_dim=0, **kwargs)
        except ValueError as error:  # everything else is checked above
            raise ValueError(f"aggr must be known to PyG, got {shown(kwargs['aggr'])}: {error}") from None
        self._set_sizes(out_channels, heads, concat, dropout)
        self.in_channels = in_channels
        self._widths = sources, targets = check_widths(in_channels)
        self.edge_dim = None if edge_dim is None else check.integer("edge_dim", edge_dim, minimum=1)
        self.root_weight = check.boolean("root_weight", root_weight)
        if check.boolean("out_bias", out_bias) and root_weight:
            raise ValueError("out_bias must be False with root_weight, whose projection has a bias, got True")
        self.beta = check.boolean("beta", beta) and root_weight
        self.impl = None if impl is None else check.choice("impl", impl, ("edges", "native", "triton"))
        self.tie_projections = check_tied_projections(tie_projections, (sources, targets))
        self.edge_terms = check_some("edge_terms", edge_terms, ("key", "value"), least=1)
        self._check_projections(in_channels=max(sources, targets), edge_dim=edge_dim or 1)
        self.normalize = check.choice("normalize", normalize, ("softmax", "relation"))
        self.full_maps = which_full({"key": key_map, "value": value_map, "query": query_map}, self.tie_projections)
        width = self.heads * self.out_channels if concat else self.out_channels
        self.edge_states = check_edge_update(edge_update, self.edge_dim, self.heads, self.out_channels, width)
        self._make_projections(sources, targets, check.boolean("bias", bias), out_bias)
        self.linear_score = score if isinstance(score, LinearScore) else None
        self._set_attention(
            num_relations, tables, score.function if isinstance(score, LinearScore) else score,
            False if "value" in self.full_maps else value_map,
            maps=bool(self.full_maps) or normalize == "relation",
        )  # fmt: skip
        self._make_full_maps(num_bases, num_blocks)
        self.self_loops = check_self_loops(add_self_loops, self.num_relations, edge_dim)
        check_scores(self)
        if self.normalize == "relation":
            check_means(self)
        if self.edge_states is not None:
            others = {"num_relations": self.num_relations, "score": score, "value_map": value_map, "impl": impl}
            others |= {"key_map": key_map, "query_map": query_map}
            check_states(self, others | {"add_self_loops": add_self_loops})
        self._alpha: Any = None

    @classmethod
    def from_rgat_conv(cls, conv: RGATConv, **kwargs: Any) -> Self:
        """The layer with the output of PyG's RGATConv, and copies of its weights.

        One full map W_r projects queries, keys and values. The new layer trains as ``conv`` does.

        Source: Busbridge et al. 2019, :class:`~torch_geometric.nn.conv.RGATConv`.

        Args:
            conv: the layer, with its default ``attention_mechanism``, ``attention_mode`` and ``mod``; with bases,
                blocks or neither.
            kwargs: further options of this layer, such as ``impl``.

        Returns:
            The new layer, with the device, dtype and training mode of ``conv``.

        Raises:
            NotImplementedError: a softmax within each relation, multiplicative attention, a ``mod``, or another
                ``aggr``, ``flow`` or ``decomposed_layers``; a subclass that computes in another way.

        Example:
            >>> from torch_geometric.nn import RGATConv
            >>> theirs = RGATConv(4, 8, num_relations=3, heads=2)
            >>> ours = rg.pyg.RelationConv.from_rgat_conv(theirs)
            >>> x, edge_index, edge_type = torch.randn(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.tensor([2, 0])
            >>> torch.allclose(ours(x, edge_index, edge_type), theirs(x, edge_index, edge_type), atol=1e-5)
            True
        """
        return of_rgat_conv(cls, conv, kwargs)

    @classmethod
    def from_rgcn_conv(cls, conv: RGCNConv, **kwargs: Any) -> Self:
        """The layer with the output of PyG's RGCNConv or FastRGCNConv, and copies of its weights.

        Source: Schlichtkrull et al. 2018, :class:`~torch_geometric.nn.conv.RGCNConv`.

        Args:
            conv: the layer, with ``aggr="mean"``, the coefficient ``1 / |N_r(i)|``; with bases, blocks or neither. The
                new layer needs features of the nodes: for nodes without features pass an identity matrix.
            kwargs: further options of this layer.

        Returns:
            The new layer, with the device, dtype and training mode of ``conv``.

        Raises:
            NotImplementedError: another ``aggr`` or ``decomposed_layers``; a subclass that computes in another way.

        Example:
            >>> from torch_geometric.nn import RGCNConv
            >>> theirs = RGCNConv(4, 8, num_relations=3, num_bases=2)
            >>> ours = rg.pyg.RelationConv.from_rgcn_conv(theirs)
            >>> x, edge_index, edge_type = torch.randn(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.tensor([2, 0])
            >>> torch.allclose(ours(x, edge_index, edge_type), theirs(x, edge_index, edge_type), atol=1e-5)
            True
        """
        return of_rgcn_conv(cls, conv, kwargs)

    def _make_projections(self, sources: int, targets: int, bias: bool, out_bias: bool) -> None:
        width, edges = self.heads * self.out_channels, self.edge_dim or 1
        left_out = {*self.full_maps, *self.tie_projections} | (
            {"key", "query"} if self.normalize == "relation" else set()
        )
        self.lin_key = None if "key" in left_out else Linear(sources, width, bias=bias)
        self.lin_value = None if "value" in left_out else Linear(sources, width, bias=bias)
        self.lin_query = None if "query" in left_out else Linear(targets, width, bias=bias)
        enters = self.edge_dim is not None and self.edge_states is None
        to_key, to_value = (enters and term in self.edge_terms for term in ("key", "value"))
        one_for_both = to_key and "edge" in self.tie_projections
        self.lin_edge = Linear(edges, width, bias=False) if to_key else None
        self.lin_edge_value = Linear(edges, width, bias=False) if to_value and not one_for_both else None
        out = width if self.concat else self.out_channels
        self.lin_skip = Linear(targets, out, bias=bias) if self.root_weight else None
        self.lin_beta = Linear(3 * out, 1, bias=False) if self.beta else None
        self.register_parameter("out_bias", nn.Parameter(torch.zeros(out)) if out_bias else None)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        shared, own = (f"{prefix}{name}.weight" for name in ("lin_edge", "lin_edge_value"))
        if strict and self.lin_edge_value is not None and own not in state_dict and shared in state_dict:
            error_msgs.append(
                f"{own} is missing, as in the state of a TransformerConv, which projects edge_attr once for keys and "
                "values: make the layer with tie_projections=('edge',)"
            )

    def reset_parameters(self) -> None:
        """Initialize all parameters again, but not shared tables, which other layers may have."""
        super().reset_parameters()
        if self.out_bias is not None:
            nn.init.zeros_(self.out_bias)

    def forward(
        self,
        x: Tensor | PairTensor | Data,
        edge_index: Adj | EdgeLabels | None = None,
        edge_type: OptTensor = None,
        edge_attr: OptTensor = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Any, ...]:
        """Let the nodes attend over their incoming edges.

        Args:
            x: ``[N, in_channels]``, or a pair of sources and targets, ``[N_src, .]`` and ``[N_dst, .]``;
                or only a :class:`~torch_geometric.data.Data` or :class:`~torch_geometric.data.Batch` with ``x``,
                ``edge_index``, and ``edge_type`` and ``edge_attr`` if the layer reads them.
            edge_index: ``[2, E]``, (source, target) by column; an :class:`~torch_geometric.EdgeIndex`; a sparse
                adjacency with targets as rows, whose values are relations (integers) or ``edge_attr`` (floating); or
                :class:`~relgraph.EdgeLabels` with ``default=None``, which hold the relations. Labels and plain tensors
                are checked and sorted once for all layers and steps, and again after their contents changed (on a GPU
                only after a change that torch counts, not through ``.data`` or DLPack); all other forms, also an
                EdgeIndex, in each call.
            edge_type: ``[E]``, integers in ``[-1, R)``, the relation of every edge, -1 for none, which full maps and
                ``normalize="relation"`` refuse; required by a layer with ``num_relations``, unless ``edge_index`` holds
                it.
            edge_attr: ``[E, F]``, floating; required by a layer with ``edge_dim``, unless ``edge_index`` holds it.
            return_attention_weights: None returns only the nodes; both True and False also return the weights, as in
                PyG's layers.

        Returns:
            The nodes ``[N_dst, H · C]``, or ``[N_dst, C]`` without ``concat``; a layer with ``edge_update`` gives
            ``(nodes, edge_attr)``, with the next vectors ``[E, F]``. With weights, ``(edge_index, alpha)`` comes last,
            with ``alpha`` ``[E, H]`` before dropout (for a ``SparseTensor`` an adjacency with alpha as its values).
            Vectors and weights have the order of the input's edges; with ``add_self_loops`` these include the loops.

        Raises:
            ValueError: shapes or devices that do not fit; attributes that a Data lacks; relations or features that are
                missing, out of range or not used by the layer; edges to nodes that do not exist (checked on a CPU
                only); another form than ``[2, E]`` with ``flow="target_to_source"``; sources and targets apart with
                ``edge_update``, which reads the new nodes at both ends.
            NotImplementedError: a call that ``impl="native"`` or ``"triton"`` does not support; the ``message()`` path
                with full maps of queries, a ``LinearScore`` or ``normalize="relation"``.

        Example:
            >>> conv = rg.pyg.RelationConv(16, 8, edge_dim=2)
            >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 2)
            >>> z, (_, alpha) = conv(torch.randn(3, 16), edge_index, edge_attr=edge_attr, return_attention_weights=True)
            >>> bool(alpha.sum() > 0.999)                                           # both edges lead to node 2
            True
        """
        wanted = return_attention_weights is not None
        if wanted:
            check.boolean("return_attention_weights", return_attention_weights)
        x_src, x_dst, edge_index, edges = self._read(x, edge_index, edge_type, edge_attr)
        if self.edge_states is not None:
            return self._with_states(x_src, x_dst, edge_index, edges, wanted)
        if self.normalize == "relation":
            if self._is_followed():
                raise NotImplementedError(
                    "normalize='relation' has no message() path, which explainers, hooks, torch.func transforms and "
                    "subclasses with messages of their own need"
                )
            out, alpha = self._averaged(x_src, edges)
        else:
            out, alpha = self._attended(x_src, x_dst, edges, wanted)
        out = self._with_root(out.flatten(1) if self.concat else out.mean(1), x_dst)
        if not wanted:
            return out
        assert alpha is not None
        return out, with_values(edge_index, edges, alpha.to(out.dtype))

    def message(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        query_i: Tensor,
        key_j: Tensor,
        value_j: Tensor,
        edge_type: OptTensor,
        edge_attr: OptTensor,
        index: Tensor,
        ptr: OptTensor,
        size_i: int | None,
    ) -> Tensor:
        """Compute the message of each edge in plain PyG, which explainers can follow.

        Args:
            query_i: ``[E, H, C]``, the projected target of every edge.
            key_j: ``[E, H, C]``, the projected source of every edge.
            value_j: ``[E, H, C]``, the projected source of every edge.
            edge_type: ``[E]``, relations, or None.
            edge_attr: ``[E, F]``, features, or None.
            index: ``[E]``, the target of every edge.
            ptr: ``[N + 1]``, offsets of edges sorted by target, or None.
            size_i: the number of targets.

        Returns:
            ``[E, H, C]``, the weighted value of every edge.

        Raises:
            ValueError: one that gives another shape or dtype, or a result without a gradient.
        """
        if self.edge_states is not None:
            assert edge_attr is not None
            query_i, key_j, value_j = self.edge_states._with_edges(query_i, key_j, value_j, edge_attr)
        to_key, to_value = self._edge_projections()
        edge_key, edge_value = (
            0.0 if edge_attr is None or lin is None else lin(edge_attr).view(-1, self.heads, self.out_channels)
            for lin in (to_key, to_value)
        )
        scores, values = scores_and_values(self, query_i, key_j, value_j, edge_type, edge_key, edge_value)
        alpha = softmax(scores, index, ptr, size_i)
        self._alpha = alpha
        return (values * dropout(alpha, self.dropout, self.training)[..., None]).to(value_j.dtype)

    def _read(self, x: Any, edge_index: Any, edge_type: Any, edge_attr: Any) -> tuple[Tensor, Tensor, Any, Edges]:
        """Sources and targets, the edges as given, and the edges checked, with the self-loops that the layer adds."""
        if type(x) is not Tensor and isinstance(x, Data):
            given = {"edge_index": edge_index, "edge_type": edge_type, "edge_attr": edge_attr}
            wanted = {"edge_type": self.num_relations, "edge_attr": self.edge_dim}
            x, edge_index, edge_type, edge_attr = parts_of(x, given, wanted)
        x_src, x_dst = _check_nodes(x, *self._readers())
        if "query" in self.tie_projections and x_src.shape[1] != x_dst.shape[1]:  # of a layer that infers its widths
            raise ValueError(
                "x must be sources and targets of one width, as tie_projections holds 'query', "
                f"got {x_src.shape[1]} and {x_dst.shape[1]}"
            )
        sizes = (x_src.shape[0], x_dst.shape[0])
        if self.flow == "target_to_source":
            sizes = (x_dst.shape[0], x_src.shape[0])
            if not isinstance(edge_index, Tensor) or is_sparse(edge_index):
                raise ValueError(
                    f"edge_index must be [2, E] with flow='target_to_source', got {type(edge_index).__name__}"
                )
        edges = read_edges(edge_index, edge_type, edge_attr, sizes, self.num_relations, self.edge_dim)
        if x_src.device != edges.index.device:
            check.same_device(x=x_src, edge_index=edges.index)
        if edges.attr is not None:
            check.same_dtype(x=x_src, edge_attr=edges.attr)
        loops = self.self_loops
        return x_src, x_dst, edge_index, edges if loops is None else loops._replace(edges)

    def _attended(self, x_src: Tensor, x_dst: Tensor, edges: Edges, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """The output ``[N_dst, H, C]``, and the weights ``[E, H]`` if wanted."""
        fuses = self._can_fuse()
        labels = (edges.known or edges.labels()) if self.full_maps or fuses else None
        if self.full_maps:
            assert labels is not None
            query, key, value = self._project_by_relation(x_src, x_dst, labels)
            labels = from_pairs(labels, self._side)
            edges = replace(edges, index=labels.edge_index, sizes=(labels.k_len, labels.q_len), known=labels)
        else:
            query, key, value = self._project(x_src, x_dst)
        if fuses:
            assert labels is not None
            given = self._options(query, key, x_dst, labels, edges.attr)
            return self._fused(query, key, value, labels, wanted, given)
        if query is None or self.linear_score is not None:
            raise NotImplementedError(
                "query_map='full' and score=LinearScore have no message() path, which explainers, hooks, another aggr "
                "or flow, torch.func transforms and subclasses with messages of their own need"
            )
        return self._by_messages(query, key, value, edges, edges.attr)

    def _by_messages(
        self, query: Tensor, key: Tensor, value: Tensor, edges: Edges, edge_attr: OptTensor
    ) -> tuple[Tensor, Tensor]:
        """The output ``[N_dst, H, C]`` and the weights ``[E, H]`` by way of :meth:`message`."""
        out = self.propagate(
            edges.index.long(), query=query, key=key, value=value, edge_type=edges.types, edge_attr=edge_attr,
            size=edges.sizes,
        )  # fmt: skip
        alpha, self._alpha = self._alpha, None
        return out, alpha

    def _with_states(
        self, x_src: Tensor, x_dst: Tensor, edge_index: Any, edges: Edges, wanted: bool
    ) -> tuple[Any, ...]:
        """The nodes, the next states of the edges, and the weights if wanted."""
        states = self.edge_states
        assert states is not None and edges.attr is not None
        if x_src is not x_dst:
            raise ValueError("x must be one tensor with edge_update, which reads new sources, got a pair")
        listed = Listed.of(edges.known or edges.labels())
        edge, (query, key, value) = states._sorted(edges.attr, listed), self._project(x_src, x_dst)
        if self._can_fuse():
            rate = self.dropout if self.training else 0.0
            nodes, alpha = states._attend(query, key, value, edge, listed, rate)
            alpha = listed.unsort(alpha)
        else:  # in the order of the caller's edges, as are the masks of explainers
            nodes, alpha = self._by_messages(query, key, value, edges, listed.unsort(edge))
        out = self._with_root(nodes.flatten(1) if self.concat else nodes.mean(1), x_dst)
        new = listed.unsort(states._update(edge, out, listed))
        if not wanted:
            return out, new
        return out, new, with_values(edge_index, edges, alpha.to(out.dtype))

    def _project(self, x_src: Tensor, x_dst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, ``[N, H, C]``; those that share a projection are computed together."""
        shape = (-1, self.heads, self.out_channels)
        to_key, to_value, to_query = self.lin_key, self.lin_value, self.lin_query
        key = to_key(x_src).view(shape)
        value = key if to_value is None else to_value(x_src).view(shape)
        if to_query is not None:
            return to_query(x_dst).view(shape), key, value
        return key if x_dst is x_src else to_key(x_dst).view(shape), key, value

    def _can_fuse(self) -> bool:
        """Whether nothing needs the message() path."""
        plain = self.flow == "source_to_target" and self.aggr in ("add", "sum") and self.decomposed_layers == 1
        return plain and not self._is_followed()

    def _is_followed(self) -> bool:
        """Whether explainers, hooks, transforms or a subclass need messages."""
        changed = type(self) is not RelationConv and any(
            getattr(type(self), name) is not getattr(RelationConv, name) for name in ("message", "aggregate", "update")
        )
        return changed or followed(self) or in_func_transform()

    def _with_root(self, out: Tensor, x: Tensor) -> Tensor:
        skip, bias = self.lin_skip, self.out_bias
        if skip is None:
            return out if bias is None else out + bias  # a layer with a root term has no bias of its own
        root = skip(x)
        if self.lin_beta is None:
            return out + root
        gate = self.lin_beta(torch.cat([out, root, out - root], -1)).sigmoid()
        return gate * root + (1 - gate) * out

    def __repr__(self) -> str:
        relations = "" if self.num_relations is None else f", num_relations={self.num_relations}"
        parts = f"heads={self.heads}{relations}{self._shown_options()}"
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, {parts})"


def _check_nodes(x: Any, to_keys: Linear, to_queries: Linear) -> tuple[Tensor, Tensor]:
    """The nodes as sources and targets, checked for the two projections."""
    if type(x) is Tensor and to_keys.in_channels == to_queries.in_channels:
        x = check_nodes("x", x, to_keys.in_channels, to_keys.weight)
        return x, x
    pair = x if isinstance(x, (tuple, list)) else (x, x)
    if len(pair) != 2:
        got = f"{len(pair)} entries in a {in_place_of_tensor(pair)}"
        raise ValueError(f"x must be a tensor or a pair, of sources and targets, got {got}")
    names = ("x[0]", "x[1]") if pair is x else ("x", "x")
    sources, targets = (
        check_nodes(name, nodes, lin.in_channels, lin.weight)
        for name, nodes, lin in zip(names, pair, (to_keys, to_queries), strict=True)
    )
    if sources is not targets:
        check.same_device(**{"x[0]": sources, "x[1]": targets})
    return sources, targets
