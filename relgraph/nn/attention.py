"""Multi-head attention over a labeled graph: nn.MultiheadAttention with tables for the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call import LabelsLike, Table
from relgraph.functional import ImplChoice
from relgraph.functional.attention import attend
from relgraph.functional.choice import choice_of
from relgraph.functional.region import active
from relgraph.impl import IMPLEMENTATIONS
from relgraph.labels.memory import Memory
from relgraph.nn import steps
from relgraph.nn.cache import KVCache, restores_cache_on_error
from relgraph.nn.edge_maps import EdgeMaps, beside_turned, check_edge_attr, make_edge_maps
from relgraph.nn.edge_states import (
    Listed,
    Pending,
    RelationalEdges,
    check_call,
    check_edge_update,
    check_fits,
    check_listed,
)
from relgraph.nn.gates import LabelGates, make_gates
from relgraph.nn.inputs import Inputs, Names, check_inputs
from relgraph.nn.made_labels import check_labeler, labels_at, labels_between
from relgraph.nn.masks import join_masks
from relgraph.nn.plain import check_plain, check_plain_attention, copy_plain, zero_tables
from relgraph.nn.projections import BIASED, Projections, adapt_state, check_bias
from relgraph.nn.rotary import RotaryPositions, check_rotary, label_scores, rotated_key, rotated_query
from relgraph.nn.scores import check_query_bias, check_row_scores, check_score
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import NumLabels, RelationTables, check_given, check_kinds, check_without_labels
from relgraph.nn.value_maps import ValueMaps, make_value_maps
from relgraph.score import Score

_NEVER_WEIGHTS = ("chunked", "native", "triton")


class RelationAttention(Projections):
    """Multi-head attention in which scores and values carry a vector for each pair's label.

    In each head, with D = E / H by default, for query i and key j with label l_ij::

        e_ij = (W_q x_i)·(W_k x_j + a^K[l_ij]) / √D
        z_i  = Σ_j softmax_j(e_ij) (W_v x_j + a^V[l_ij])

    The output projection reads the concatenated z_i of all heads. Tables of the kinds ``"query"`` and ``"bias"`` add
    terms to the score as in :func:`~relgraph.relation_attention`; ``score`` and ``value_map`` also work as there. The
    projections have the names, shapes and initial values of :class:`~torch.nn.MultiheadAttention`, so its state loads
    (with ``strict=False``, because it has no tables). Inputs are batch first. As in that layer, True in a mask blocks.

    Unlike that layer, this one returns only z, not a pair, unless you ask for weights or masses: ``z, weights =
    layer(x)`` raises for most batches, but splits a batch of two.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5; conventions of :class:`~torch.nn.MultiheadAttention`.

    Args:
        embed_dim: E, the width of queries and outputs.
        num_heads: H; divides E unless there is a ``head_dim``.
        dropout: probability in ``[0, 1)`` with which an attention weight is dropped in training.
        bias: whether the projections have a bias: True, False, or the names of those that have one, of ``"query"``,
            ``"key"``, ``"value"`` and ``"output"``. Biases of queries, keys and values are ``in_proj_bias`` if all
            three have one, otherwise ``q_proj_bias``, ``k_proj_bias``, ``v_proj_bias``.
        labeler: makes the labels when a call gives none: ``labeler(n)`` for n queries, ``labeler(n, m)`` for n queries
            and m other keys, ``labeler(n, past + n, q_offset=past)`` with a cache. If it reads something other than
            lengths, such as a graph, pass that as ``labels=``. The tables take its number of labels and their names.
        num_labels: R, if there is no labeler; for a sum of labels a tuple, one number per part.
        kdim: width of the keys, E by default.
        vdim: width of the values, E by default.
        num_kv_heads: number of key and value heads, which must divide H; H by default.
        head_dim: D, the size of each head, E / H by default.
        scale: factor on the score terms that hold a vector; by default that of :func:`~relgraph.relation_attention`,
            1/√D, and 1 for additive scores.
        tables: the kinds of tables, of ``"key"``, ``"value"``, ``"query"`` (``[R, D]`` each) and ``"bias"`` (``[R]``);
            or a :class:`~relgraph.RelationTables`, which has further options: rows per head, tied tables, names,
            frozen labels, banks. All layers that receive the same object share it (with FSDP2, shard it before these
            layers). ``()`` makes attention without labels, which must be said: else the layer needs a ``labeler``,
            ``num_labels``, tables that are passed in, ``rotary`` or ``edge_dim``.
        score: a score that replaces or changes the scaled dot product, as in :func:`~relgraph.relation_attention`. A
            module, such as :class:`~relgraph.score.Additive`, becomes a part of each layer that receives it.
        content_bias: whether to learn u, ``[H, D]``, which begins at zero and is added to queries in their product with
            keys, (q_i + u)·k_j: see :func:`~relgraph.relation_attention`.
        position_bias: the same for v in the product with the key table, (q_i + v)·a^K[l_ij].
        sink: whether to learn a score per head, ``[H]``, which begins at zero, joins the softmax of each query and
            carries no value: see :func:`~relgraph.relation_attention`.
        value_map: whether each label has a linear map of the values, z_i = Σ_j α_ij (W[l_ij] W_v x_j + a^V[l_ij]): True
            for a free map ``[D, D]`` per head and label; an int K for maps that combine K bases per head with K
            coefficients per label. Maps begin as the identity. Not for a sum of labels.
        key_gate: whether each label has a vector g per head, ``[H, R, D]``, that multiplies the keys, q_i·(g[l_ij] ⊙
            k_j + a^K[l_ij]), and begins at one. For dot products; not for a sum of labels.
        value_gate: the same for values, Σ_j α_ij (g[l_ij] ⊙ v_j + a^V[l_ij]); excludes ``value_map``.
        rotary: :class:`~relgraph.RotaryPositions`, which turn queries and keys by their positions; None for none. Row 0
            of the keys is at position 0, and row 0 of the queries at ``q_offset``. Packed graphs count from their own
            first row.
        edge_dim: F, the width of ``edge_attr``, or None. Listed pairs then also have U_k x_ij in their keys and U_v
            x_ij in their values, with two learned maps ``[H · D, F]``. With ``rotary``, the features meet the query
            before its turn.
        edge_update: ``"relational"`` to return also the next vector of every edge, as in
            :class:`~relgraph.pyg.RelationConv`. Labels then list all pairs that attend, and only those; they have no
            ids.
        impl: the implementation of :func:`~relgraph.relation_attention`, or None for its rule.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        ValueError: sizes, names or numbers that do not fit, such as heads that do not divide, a dropout outside
            ``[0, 1)``, ``num_labels`` with a labeler, tables or a score of another size; nothing that says what the
            labels are, or that there are none; a parameter of more than 2³¹ elements; biases of queries with a score
            other than the dot product, or a ``position_bias`` without a key table.
        NotImplementedError: maps of values, or :class:`~relgraph.score.Bilinear`, for a sum of labels; biases of
            queries with ``edge_dim``.

    Example:
        >>> layer = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(2))  # 5 labels
        >>> x = torch.randn(2, 7, 16)
        >>> layer(x).shape
        torch.Size([2, 7, 16])
        >>> z, mass = layer(x, need_label_mass=True)
        >>> mass.shape                                                          # attention by label
        torch.Size([2, 4, 7, 5])
        >>> options = {"head_dim": 64, "scale": 1.0, "bias": False}             # a T5 of 6 heads of 64 in width 512
        >>> tables = rg.RelationTables(32, 64, 6, kinds=("bias",), per_head=True)
        >>> layer = rg.RelationAttention(512, 6, tables=tables, **options)
        >>> bonds = rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 3, q_len=7, default=2)
        >>> layer = rg.RelationAttention(16, 4, num_labels=3, edge_dim=5)       # and a vector for each bond
        >>> layer(x, labels=bonds, edge_attr=torch.randn(2, 5)).shape
        torch.Size([2, 7, 16])
    """

    batch_first = True

    tables: Any  # RelationTables, or None without labels: Any spares users an assertion at each use
    content_bias: nn.Parameter | None
    position_bias: nn.Parameter | None
    sink: nn.Parameter | None
    value_map: ValueMaps | None
    gates: LabelGates | None
    rotary: RotaryPositions | None
    edge_maps: EdgeMaps | None
    edge_states: RelationalEdges | None
    _states_later = False  # whether a layer around it makes the next states, which may read its new nodes

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool | Sequence[str] = True,
        *,
        labeler: Callable[..., Any] | None = None,
        num_labels: NumLabels = None,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        score: Score | None = None,
        content_bias: bool = False,
        position_bias: bool = False,
        sink: bool = False,
        value_map: bool | int = False,
        key_gate: bool = False,
        value_gate: bool = False,
        rotary: RotaryPositions | None = None,
        edge_dim: int | None = None,
        edge_update: str | RelationalEdges | None = None,
        impl: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        self.register_load_state_dict_pre_hook(adapt_state)
        num_labels, names = check_labeler(labeler, num_labels, tables)
        self.labeler = labeler
        self._names = Names()
        self._steps = Memory()
        self._set_sizes(embed_dim, num_heads, num_kv_heads, head_dim, kdim, vdim)
        self.dropout = check.probability("dropout", dropout)
        self.scale = None if scale is None else check.finite("scale", scale)
        self.impl = None if impl is None else check.choice("impl", impl, tuple(IMPLEMENTATIONS))
        factory = check.parameter_place(device, dtype)
        self.biased = check_bias("bias", bias)
        self._make_projections(factory)
        if isinstance(tables, RelationTables):
            self.tables = check_given(tables, num_labels, num_heads, self.head_dim)
        elif num_labels is None:
            said = any(x is not None for x in (labeler, rotary, edge_dim, edge_update))
            check_without_labels(tables, said, "edge_dim")
            self.tables = None
        else:
            options = {"kinds": check_kinds("tables", tables), "names": names, "shared": False, **factory}
            self.tables = RelationTables(num_labels, self.head_dim, **options)
        self.score = check_score(score, self.tables, self.num_heads, self.head_dim)
        for name, wanted in (("content_bias", content_bias), ("position_bias", position_bias)):
            learned = check_query_bias(name, wanted, self.score, self.tables)
            zeros = nn.Parameter(torch.zeros(num_heads, self.head_dim, **factory)) if learned else None
            self.register_parameter(name, zeros)
        learned = check.boolean("sink", sink)
        self.sink = nn.Parameter(torch.zeros(num_heads, **factory)) if learned else None
        labels = None if self.tables is None else self.tables.num_labels
        self.value_map = make_value_maps(value_map, labels, self.head_dim, self.num_heads, factory)
        self.rotary = check_rotary(rotary, self.head_dim, self.score, self.tables)
        self.gates = make_gates(key_gate, value_gate, labels, self.head_dim, self.num_heads, self, factory)
        self.edge_states = check_edge_update(edge_update, edge_dim, num_heads, self.head_dim, embed_dim, factory)
        self.edge_maps = make_edge_maps(edge_dim if self.edge_states is None else None, self, factory)
        if self.edge_states is not None:
            others = {"scale": scale, "score": score, "content_bias": content_bias, "position_bias": position_bias}
            others |= {"sink": sink, "value_map": value_map, "key_gate": key_gate, "value_gate": value_gate}
            check_fits(self, others | {"rotary": rotary, "impl": impl})

    @classmethod
    def from_plain(
        cls, attention: nn.MultiheadAttention, *, new_tables: Literal["zero", "random"] = "zero", **options: Any
    ) -> Self:
        """Make an attention with copies of the weights and settings of torch's, and new tables.

        Args:
            attention: a :class:`~torch.nn.MultiheadAttention` with ``batch_first=True``.
            new_tables: how new tables begin: ``"zero"`` leaves the outputs of ``attention`` unchanged until training
                moves the rows; ``"random"`` as in the constructor. Tables that you pass keep their rows.
            options: further keyword-only arguments of the constructor, such as ``labeler``.

        Returns:
            The new attention, with the device, dtype and training mode of ``attention``.

        Raises:
            ValueError: an attention that is not batch first, unknown ``new_tables``, or an error of the constructor.
            NotImplementedError: an attention with ``add_bias_kv`` or ``add_zero_attn``.
        """
        check_plain("attention", attention, nn.MultiheadAttention, new_tables)
        check_plain_attention("attention", attention)
        weight = attention.out_proj.weight
        made = cls(
            attention.embed_dim, attention.num_heads, bias=attention.in_proj_bias is not None, kdim=attention.kdim,
            vdim=attention.vdim, device=weight.device, dtype=weight.dtype, **options,
        )  # fmt: skip
        copy_plain("attention", made, attention)
        if new_tables == "zero":
            zero_tables(made, options.get("tables"))
        return made

    def reset_parameters(self) -> None:
        """Initialize all parameters again, but not shared tables, or a score without ``reset_parameters``."""
        self.out_proj.reset_parameters()
        self._reset_projections()
        for x in (self.content_bias, self.position_bias, self.sink):
            if x is not None:
                nn.init.zeros_(x)
        own = None if self.tables is None or self.tables.shared else self.tables
        for part in (own, self.score, self.value_map, self.gates, self.edge_maps, self.edge_states):
            if isinstance(part, nn.Module) and hasattr(part, "reset_parameters"):
                part.reset_parameters()  # pyright: ignore[reportCallIssue]

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load as torch does; if the state is that of torch's layer, an error says how it gets tables."""
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            has_tables = any(name.startswith("tables.") for name in state_dict)
            if not strict or self.tables is None or has_tables or "out_proj.weight" not in state_dict:
                raise
            way = "use RelationAttention.from_plain(old, labeler=...), or strict=False"
            raise RuntimeError(f"{error}\n\t{way}") from None

    @restores_cache_on_error
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        labels: LabelsLike | Any = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        q_offset: int | Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        need_label_mass: bool = False,
        cache: KVCache | None = None,
        bank_features: Any = None,
        row_scores: Table = None,
        edge_attr: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor | tuple[Any, ...]:
        """Attend from ``query`` to ``key``, or to ``query`` itself if there is no ``key``.

        As in :class:`~torch.nn.MultiheadAttention`, True in a mask blocks, and floats are added to the scores. A query
        that may attend to no key gets the bias of the output projection as its output.

        Args:
            query: ``[B, N_q, E]``, without a batch ``[N_q, E]``, or packed ``[T, E]`` when the labels are packed.
            key: ``[B, N_k, kdim]``, without a batch or packed ``[N_k, kdim]``; ``query`` by default.
            value: ``[B, N_k, vdim]``, without a batch or packed ``[N_k, vdim]``; ``key`` by default.
            labels: the label of every pair, as :class:`~relgraph.Labels`. A layer with a labeler also takes the
                labeler's input, such as a :class:`~relgraph.Graph` or a tensor; without ``labels`` it labels the
                lengths. A layer without a labeler also takes integers ``[N_q, N_k]`` or ``[B, N_q, N_k]``. A layer
                without tables takes labels that only say which pairs attend: with ``num_labels=0``, as
                :class:`~relgraph.Window` makes them, or with ids that are all -1 (read in eager mode on a CPU only).
            key_padding_mask: True for padding, ``[B, N_k]`` (``[N_k]`` without a batch); of a Hugging Face
                ``attention_mask``, where 1 attends, pass ``attention_mask == 0``. Floats are added to the scores; those
                above 0 are refused (in eager mode on a CPU). With a cache, give the mask of the new keys only; the
                cache remembers it.
            attn_mask: ``[N_q, N_k]``, ``[B·H, N_q, N_k]`` or ``[B, H, N_q, N_k]``, bool (True blocks) or floating.
            is_causal: query i sees only keys j ≤ i + q_offset; combines with the masks. A cache that grows needs it,
                unless the labels keep rows from later ones, as those of :class:`~relgraph.Window` ``(n, 0)`` do.
            q_offset: the key position of query row 0: an int, a scalar tensor or ``[B]``; see
                :func:`~relgraph.relation_attention`. Leave it out with a cache that grows, which sets it.
            need_weights: also return the attention weights: N_q · N_k elements per head, so quadratic memory.
            average_attn_weights: return the mean of the weights over heads, without the axis H. The default is
                False, unlike that of torch's layer.
            need_label_mass: also return how much attention each label receives; needs tables.
            cache: a :class:`~relgraph.KVCache` with the keys and values of earlier calls. A growing cache sets
                ``q_offset``; labels then cover the new queries and all keys, ``[n, len(cache) + n]``, and labels of the
                whole sequence or graph, ``[N, N]``, are cut to these. A static cache holds the projected memory. A call
                that raises leaves the cache unchanged.
            bank_features: the input of the tables' banks; for a sum a tuple, one entry per part.
            row_scores: ``[B, H, N_q, R]`` (without a batch or packed ``[H, N_q, R]``), floating: the number that each
                label adds to the scores of each query, unscaled; for a sum a tuple, one per part. The layer must have
                tables, but none of the kind ``"key"``.
            edge_attr: ``[E, F]``, floating, for a layer with ``edge_dim``: a vector for each edge of the labels, in the
                order of their ``edge_index``. The labels must then be :class:`~relgraph.EdgeLabels`.
            positions: ``[N_q]`` or ``[B, N_q]``, integers: the position of each row of a self-attention, by which the
                labeler makes the labels (if it labels distances, and there are no ``labels``) and by which ``rotary``
                turns; by default they count from 0. :class:`~relgraph.nn.RandomPositions` draws them.

        Returns:
            z ``[B, N_q, E]``, with or without a batch as ``query``; ``(z, weights)`` with ``need_weights``, ``(z,
            mass)`` with ``need_label_mass``, ``(z, weights, mass)`` with both. Weights ``[B, H, N_q, N_k]`` and mass
            ``[B, H, N_q, R]`` (for a sum a tuple) are those before dropout; without B if ``query`` has none; packed
            weights are ``[H, T, T_k]`` and mass ``[H, T, R]``. A layer with ``edge_update`` gives ``(z, edge_attr)``,
            with the next vectors ``[E, F]``, or ``(z, edge_attr, weights)``, with weights ``[E, H]``.

        Raises:
            ValueError: inputs, masks or labels whose shapes, dtypes or devices do not fit; no labels for a layer with
                tables; ids, ``need_label_mass`` or ``row_scores`` for a layer without; ``row_scores`` with a key table;
                ``value`` without ``key``; a cache that grows and rows that may see later ones; distance labels whose
                offset is not the cache's length; a full cache; ``edge_attr`` that is missing, or for a layer without
                ``edge_dim``, or for labels that are not of edges.
            NotImplementedError: a cache with packed labels; a cache that grows with ``edge_attr``; ``positions`` with a
                cache, an own ``key``, a ``q_offset`` or within ``context_parallel``; ``need_weights`` with an ``impl``
                that never has all weights in memory; or anything else that the implementation does not support.

        Example:
            >>> layer, pad = rg.RelationAttention(16, 4, num_labels=3), torch.tensor([[False] * 3 + [True] * 2])
            >>> labels = rg.ClippedDistance(1)(5)
            >>> z, weights = layer(torch.randn(1, 5, 16), labels=labels, key_padding_mask=pad, need_weights=True)
            >>> weights[0, 0, 0, 3:].tolist()                                       # padding gets no attention
            [0.0, 0.0]
        """
        if self.edge_states is not None:
            names = self._names
            refused = {names.key: key, names.value: value, names.attn_mask: attn_mask}
            refused |= {names.key_padding_mask: key_padding_mask}
            refused |= {"is_causal": is_causal, "q_offset": q_offset, "need_label_mass": need_label_mass}
            refused |= {"cache": cache, "average_attn_weights": average_attn_weights, "positions": positions}
            check_call(refused)
            return self._with_states(query, labels, edge_attr, need_weights, bank_features, row_scores)
        inputs, (z, aux) = self._ask(
            attend, cache, is_causal, labels, query=query, key=key, value=value, key_padding_mask=key_padding_mask,
            attn_mask=attn_mask, q_offset=q_offset, need_weights=need_weights, need_label_mass=need_label_mass,
            bank_features=bank_features, row_scores=row_scores, edge_attr=edge_attr, positions=positions,
            average_attn_weights=average_attn_weights,
        )  # fmt: skip
        weights = aux.weights.mean(-3) if average_attn_weights and aux.weights is not None else aux.weights
        return self._outputs(z, weights, aux.label_mass, inputs)

    def which_impl(  # noqa: D417
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        labels: LabelsLike | Any = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        q_offset: int | Tensor | None = None,
        need_weights: bool = False,
        need_label_mass: bool = False,
        bank_features: Any = None,
        row_scores: Table = None,
        edge_attr: Tensor | None = None,
    ) -> ImplChoice:
        """Find which implementation a call with these arguments takes, and why; see :func:`~relgraph.which_impl`.

        Args:
            query: ``[B, N_q, E]``; this and all further arguments as in
                :meth:`~relgraph.RelationAttention.forward`.

        Returns:
            :class:`~relgraph.functional.ImplChoice`.

        Example:
            >>> layer = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(2))
            >>> layer.which_impl(torch.randn(2, 7, 16), need_weights=True).reason
            'attention weights are asked for'
        """
        if self.edge_states is not None:
            raise NotImplementedError("which_impl has no answer for a layer with edge_update, which takes no impl")
        return self._ask(
            choice_of, None, is_causal, labels, query=query, key=key, value=value, key_padding_mask=key_padding_mask,
            attn_mask=attn_mask, q_offset=q_offset, need_weights=need_weights, need_label_mass=need_label_mass,
            bank_features=bank_features, row_scores=row_scores, edge_attr=edge_attr,
        )[1]  # fmt: skip

    def _with_states(
        self, query: Tensor, labels: Any, edge_attr: Any, need_weights: bool, bank_features: Any, row_scores: Any
    ) -> tuple[Any, ...]:
        """The output, the next states of the edges, and the weights if needed."""
        inputs, _ = self._checked(
            labels, query, None, None, None, None, None, need_weights, False, None, bank_features, row_scores, edge_attr
        )
        labels = check_listed(inputs.labels, 1 if inputs.packed or inputs.unbatched else query.shape[0])
        listed, states = Listed.of(labels), self.edge_states
        assert states is not None
        q, k, v = (x if inputs.packed else x.transpose(1, 2).flatten(0, 1) for x in self._project(inputs, None)[:3])
        edge = states._sorted(edge_attr, listed)
        rate = self.dropout if self.training else 0.0
        nodes, alpha = states._attend(q, k, v, edge, listed, rate)
        out = self.out_proj(nodes.flatten(1)).view(query.shape)
        pending = Pending(states, edge, listed)
        rest = (listed.unsort(alpha).to(out.dtype),) if need_weights else ()
        return out, pending if self._states_later else pending.finish(out), *rest

    def _ask(
        self, function: Callable[..., Any], cache: Any, is_causal: Any, labels: Any, **given: Any
    ) -> tuple[Inputs, Any]:
        """The checked inputs, and the result of a function of :mod:`relgraph.functional` for their projections."""
        region = active()
        given["cache"] = cache
        if region is None:
            form, rows = steps.form_of(self, is_causal, labels, given), None
            inputs = None if form is None else steps.next_inputs(self, form, given)
            if inputs is None:
                inputs, rows = self._checked(labels, is_causal=is_causal, **given)
                if form is not None:
                    steps.remember(self, form, inputs)
        else:
            inputs, rows = region.check_together(lambda: self._checked(labels, **given), labels, given)
            if inputs.pairs is not None and inputs.padding is not None:
                inputs = inputs._replace(padding=region.all_keys(inputs.padding))
        own: RelationTables | None = self.tables
        tables: dict[str, Any] = {} if own is None else own(given["bank_features"])
        query, key, value, mask = self._project(inputs, cache)  # [B, H, N, D] or packed [T, H, D]
        content_bias, position_bias, plain = self.content_bias, self.position_bias, query
        if self.rotary is not None:
            table = tables.pop("key_table", None)
            rows = label_scores(query, table, position_bias, self.scale, inputs.packed) if rows is None else rows
            if content_bias is not None:
                query = query + (content_bias if inputs.packed else content_bias[:, None]).to(query.dtype)
            query, content_bias, position_bias = rotated_query(self.rotary, query, inputs), None, None
        call = {
            "query": query, "key": key, "value": value, "labels": inputs.labels, **tables, "attn_mask": mask,
            "is_causal": is_causal, "q_offset": inputs.q_offset, "dropout_p": self.dropout if self.training else 0.0,
            "scale": self.scale, "enable_gqa": self.num_kv_heads != self.num_heads, "score": self.score,
            "row_scores": rows, "content_bias": content_bias, "position_bias": position_bias,
            "sink": self.sink, "value_map": None if self.value_map is None else self.value_map(), "impl": self.impl,
            "need_weights": given["need_weights"], "need_label_mass": given["need_label_mass"],
        }  # fmt: skip
        if self.gates is not None:
            call |= self.gates()
        if self.edge_maps is not None:
            call |= self.edge_maps(given["edge_attr"])
            if self.rotary is not None:
                call |= beside_turned(plain, query, key, call["edge_key"], packed=inputs.packed)
                call["scale"] = self.head_dim**-0.5 if self.scale is None else self.scale
        return inputs, function(call)

    def _checked(
        self, labels: Any, query: Any, key: Any, value: Any, key_padding_mask: Any, attn_mask: Any, q_offset: Any,
        need_weights: Any, need_label_mass: Any, cache: Any, bank_features: Any, row_scores: Any,
        edge_attr: Any, average_attn_weights: Any = False, positions: Any = None, is_causal: Any = False,
    ) -> tuple[Inputs, Any]:  # fmt: skip
        """The checked inputs and scores by row."""
        if positions is not None:
            labels = labels_at(self, labels, positions, query, key=key, value=value, q_offset=q_offset, cache=cache)
        elif self.labeler is not None:
            labels = labels_between(self.labeler, labels, query, key, cache, q_offset, self._names)
        inputs = check_inputs(self, query, key, value, labels, key_padding_mask, attn_mask, q_offset, cache, is_causal)
        if positions is not None:
            inputs = inputs._replace(positions=positions)
        if self.tables is None and bank_features is not None:
            raise ValueError("bank_features must be None for a layer without tables")
        if need_label_mass is not False and check.boolean("need_label_mass", need_label_mass) and self.tables is None:
            raise ValueError(
                "need_label_mass must be False for a layer without tables, whose labels carry no ids; "
                "rg.relation_attention_with_aux sums plain attention by any labels"
            )
        rows = None
        if row_scores is not None:
            rows = check_row_scores(row_scores, self.tables, self.num_heads, labels, inputs, self._names)
        maps = self.edge_states if self.edge_maps is None else self.edge_maps
        if edge_attr is not None or maps is not None:
            check_edge_attr(edge_attr, maps, labels, query, cache, self._names)
        # before the cache takes the keys
        if average_attn_weights is not False:
            check.boolean("average_attn_weights", average_attn_weights)
        if need_weights is not False and check.boolean("need_weights", need_weights) and self.impl in _NEVER_WEIGHTS:
            raise NotImplementedError(
                f"impl={self.impl!r} never holds all attention weights; need_weights takes 'dense'"
            )
        return inputs, rows

    def _project(self, inputs: Inputs, cache: KVCache | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, all keys and all values split by heads, and one mask, for ``functional``."""
        q, k, v = self._project_new(inputs)
        if self.rotary is not None and k is not None:
            k = rotated_key(self.rotary, k, inputs, cache)
        padding = inputs.padding
        if cache is not None and k is not None and v is not None:
            k, v, padding = cache._append(k, v, padding)
        elif cache is not None:
            k, v, padding = cache.key, cache.value, cache.padding if padding is None else padding
        assert k is not None and v is not None
        mask = join_masks(inputs.pairs, padding)
        return q, k, v, mask[0] if inputs.packed and mask is not None else mask

    def _outputs(self, z: Tensor, weights: Any, mass: Any, inputs: Inputs) -> Tensor | tuple[Any, ...]:
        """Join the heads, project, and return what ``forward`` does, without a batch axis if the input had none."""
        if not inputs.packed:
            z = z[0].transpose(0, 1) if inputs.unbatched else z.transpose(1, 2)
            if inputs.unbatched:
                weights, mass = tree_map_only(Tensor, lambda x: x[0], (weights, mass))
        elif mass is not None:
            mass = tree_map_only(Tensor, lambda x: x.transpose(0, 1), mass)
        out = self.out_proj(z.flatten(-2))
        if weights is None:
            return out if mass is None else (out, mass)
        return (out, weights) if mass is None else (out, weights, mass)

    def extra_repr(self) -> str:
        """Sizes, and options that differ from their defaults."""
        parts = [str(self.embed_dim), f"num_heads={self.num_heads}", f"head_dim={self.head_dim}"]
        defaults = {"num_kv_heads": self.num_heads, "kdim": self.embed_dim, "vdim": self.embed_dim, "dropout": 0.0}
        defaults |= {"scale": None, "impl": None}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        if self.biased != BIASED:
            parts.append(f"bias={self.biased or False}")
        parts += ["tables=()"] * (self.tables is None)
        learned = ("content_bias", "position_bias", "sink")
        parts += [f"{name}=True" for name in learned if getattr(self, name) is not None]
        if self.score is not None and not isinstance(self.score, nn.Module):
            parts.append(f"score={getattr(self.score, '__name__', repr(self.score))}")
        if self.labeler is not None:
            parts.append(f"labeler={shown(self.labeler)}")
        return ", ".join(parts)
