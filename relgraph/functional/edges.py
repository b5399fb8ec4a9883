"""Attention over the edges of a graph, with a label and a vector on each edge: what graph layers call."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.call import Given, Options, Table, check_call
from relgraph.call.operands import check_options, takes_options
from relgraph.functional.attention import to_caller
from relgraph.functional.region import active
from relgraph.functional.sink import share_of_keys, with_sink
from relgraph.impl import IMPLEMENTATIONS, prepared
from relgraph.impl.eager.edges import attend_edges
from relgraph.impl.rule import choose
from relgraph.labels import EdgeLabels


@takes_options("attn_mask", "is_causal", "q_offset")
def edge_attention(  # noqa: D417
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: EdgeLabels,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    *,
    need_weights: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Let every node attend over its incoming edges, which carry labels, vectors or both.

    Node i is the target and query. Each incoming edge e = (j → i) has the key j as its source, a label l_e and a
    vector x_e::

        s_e = (q_i·(k_j + a^K[l_e] + W_k x_e) + k_j·a^Q[l_e]) · scale + b[l_e]
        α_e = softmax of s over the edges into i
        z_i = Σ_e α_e (v_j + a^V[l_e] + W_v x_e)

    Parallel edges attend separately, and a node without incoming edges gets zeros. Memory is E · (H + F) numbers plus
    those of the nodes, because no tensor holds a vector per edge and head.

    Source: Shaw, Uszkoreit, Vaswani 2018, eqs. 3-5; edge vectors as in Shi et al. 2021 (PyG's
    :class:`~torch_geometric.nn.conv.TransformerConv`).

    Args:
        query: ``[N_q, H, D]``, floating: the targets.
        key: ``[N_k, H_kv, D]``, dtype and device of ``query``: the sources.
        value: ``[N_k, H_kv, D_v]``, dtype and device of ``query``.
        labels: the edges, :class:`~relgraph.EdgeLabels` with ``default=None`` and no batch axis; label -1 adds nothing.
        key_table: this and all further arguments as in :func:`~relgraph.relation_attention`.
        row_scores: ``[N_q, H, R]``.
        edge_attr: x, ``[E, F]``, floating: a vector for each edge in the order of ``labels.edge_index``.
        edge_key: W_k, ``[D, F]`` or ``[H, D, F]``; without it the vectors do not change the score.
        edge_value: W_v, ``[D_v, F]`` or ``[H, D_v, F]``; without it they do not change the value.
        impl: ``"edges"``, ``"native"`` (kernels compiled for this CPU; no weights), or ``"triton"`` (on a GPU; no edge
            vectors, no weights). None takes ``"native"`` if it supports the call, or ``"triton"`` if RELGRAPH_TRITON=1
            asks for it, else ``"edges"``.
        need_weights: also return the weight of every edge.

    Returns:
        z ``[N_q, H, D_v]``; with ``need_weights`` ``(z, α)``, the weights α ``[E, H]`` before dropout in the order of
        ``labels.edge_index``.

    Raises:
        NotImplementedError: a call that ``impl="native"`` or ``"triton"`` does not support; ``torch.func`` transforms
            and forward-mode derivatives.

    Example:
        >>> labels = rg.EdgeLabels(torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([0, 1, 0]), 2, q_len=3)
        >>> x = torch.randn(3, 2, 4)                                            # 3 nodes, 2 heads
        >>> z, weights = rg.edge_attention(x, x, x, labels, torch.randn(2, 4), need_weights=True)
        >>> z.shape, weights.tolist()    # one incoming edge each, which takes all
        (torch.Size([3, 2, 4]), [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    """
    check_options("edge_attention", options, "attn_mask", "is_causal", "q_offset")
    if not isinstance(labels, EdgeLabels):
        recipe = "Tensor: make rg.EdgeLabels(edge_index, ids, num_labels, q_len=...) of it"
        got = recipe if isinstance(labels, Tensor) else in_place_of_labels(labels)
        raise TypeError(f"labels must be EdgeLabels, got {got}")
    if labels.default is not None or labels.batch is not None:
        raise ValueError(f"labels must have default=None and no batch axis, got {labels!r}")
    given = {"query": query, "key": key, "value": value, "labels": labels, **options}
    given |= {"key_table": key_table, "value_table": value_table, "query_table": query_table, "bias_table": bias_table}
    return attend_nodes(given, need_weights=need_weights)


def attend_nodes(given: Given, *, need_weights: Any = False) -> Tensor | tuple[Tensor, Tensor]:
    """The result of :func:`~relgraph.edge_attention` for arguments by name; a missing one has its default."""
    if active() is not None:
        raise NotImplementedError(
            "edge_attention attends to the nodes that this process holds, not to those of the others: within "
            "context_parallel use relation_attention with EdgeLabels of the whole graph"
        )
    form, sink = prepared.form_of(given, nodes=True) if need_weights is False else None, given.get("sink")
    answer = None if form is None else prepared.answer(form, given)
    if answer is not None:
        return with_sink(answer, sink).output
    call, impl = check_call(given, nodes=True), given.get("impl")
    if impl is not None:
        check.choice("impl", impl, ("edges", "native", "triton"))
    if need_weights is not False and check.boolean("need_weights", need_weights):
        if impl not in (None, "edges"):
            raise NotImplementedError(f"impl={impl!r} does not support need_weights here; use impl='edges'")
        impl = "edges"
    name = choose(call, impl)
    answer = None if form is None else prepared.first_answer(form, given, call, name)
    if answer is not None:
        return with_sink(answer, sink).output
    if name != "edges":
        return to_caller(with_sink(IMPLEMENTATIONS[name](call), sink), call.query, packed=True)
    answer, weights = attend_edges(call)
    output = to_caller(with_sink(answer, sink), call.query, packed=True)
    if not need_weights:
        return output
    csr = call.plan.listed
    if sink is not None:
        weights = weights * share_of_keys(answer.lse, sink)[0].index_select(1, csr.row)  # [H, P]
    return output, weights.new_empty(weights.shape[::-1]).index_copy(0, csr.order, weights.T).to(output.dtype)
