"""Edge states of the Relational Transformer: queries, keys and values read them; the next ones read the new nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from relgraph.arguments import check
from relgraph.impl.eager.sparse import weighted_sum
from relgraph.nn.edge_states.blocks import Inputs, Part, Results, by_blocks
from relgraph.nn.edge_states.listed import Listed
from relgraph.nn.edge_states.states import EdgeStates, Sums, Terms, mapped, normed, weights_of


class RelationalEdges(EdgeStates):
    """Edge states of the Relational Transformer.

    For an edge e = (j → i) with state f_e and the reverse edge (i → j) with state r_e, per head::

        α_e = softmax_e((q_i + U_q f_e)·(k_j + U_k f_e) / √C)
        z_i = Σ_e α_e (v_j + U_v f_e)

    The next state reads the new nodes x'::

        u = LN(f_e + W_2 ReLU(W_1 [f_e, r_e, x'_j, x'_i]))
        LN(u + W_4 ReLU(W_3 u))

    In an encoder layer x' are the nodes after its feed-forward network; in a RelationConv those that it returns.
    Without a reverse edge r_e is zero; of parallel ones the first listed counts. The residual sums of the edges are in
    these formulas; those of the nodes belong to the layer around it, with norms last.

    Source: Diao, Loynd 2023, "Relational Attention: Generalizing Transformers for Graph-Structured Tasks", section 3.

    Args:
        edge_dim: F, the width of a state.
        heads: H.
        head_dim: C, the size of a head.
        width: the width of the new nodes, H · C by default.
        hidden: the width of the rows of W_1 and W_3, 2F by default.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a size below 1.

    Example:
        >>> states = rg.nn.RelationalEdges(4, heads=2, head_dim=8, hidden=32)
        >>> conv = rg.pyg.RelationConv(16, 8, 2, edge_dim=4, edge_update=states)
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 4)
        >>> x, edge_attr = conv(torch.randn(3, 16), edge_index, edge_attr=edge_attr)
        >>> x.shape, edge_attr.shape
        (torch.Size([3, 16]), torch.Size([2, 4]))
    """

    after_nodes: ClassVar[bool] = True
    read = ("to_query", "to_key")

    def __init__(
        self, edge_dim: int, heads: int, head_dim: int, *, width: int | None = None, hidden: int | None = None,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(edge_dim, heads, head_dim)
        place: dict[str, Any] = check.parameter_place(device, dtype)
        size = heads * head_dim
        self.width = size if width is None else check.integer("width", width, minimum=1)
        inner = 2 * edge_dim if hidden is None else check.integer("hidden", hidden, minimum=1)
        check.parameter_size(4, edge_dim=edge_dim, hidden=inner)
        check.parameter_size(4, width=self.width, hidden=inner)
        self.to_query, self.to_key, self.to_value = (nn.Linear(edge_dim, size, bias=False, **place) for _ in range(3))
        self.linear1 = nn.Linear(2 * (edge_dim + self.width), inner, **place)
        self.linear2, self.linear3 = nn.Linear(inner, edge_dim, **place), nn.Linear(edge_dim, inner, **place)
        self.linear4 = nn.Linear(inner, edge_dim, **place)
        self.norm1, self.norm2 = (nn.LayerNorm(edge_dim, **place) for _ in range(2))

    def _terms(self, query: Tensor, key: Tensor, edge: Tensor, w: Mapping[str, Tensor]) -> Terms:
        query, key = (
            torch.addmm(x.flatten(1), edge, w[f"{name}.weight"].T).view_as(x)
            for x, name in ((query, "to_query"), (key, "to_key"))
        )
        return Terms((query * key).sum(-1) * self.head_dim**-0.5, None, edge[:, None])

    def _sum_of_states(self, used: Tensor, edge: Tensor, listed: Listed) -> Tensor | None:
        return weighted_sum(used, edge.to(used.dtype)[None], listed.by_edge()).transpose(0, 1)

    def _nodes(self, sums: Sums) -> Tensor:
        assert sums.vectors is not None
        maps = self.to_value.weight.to(sums.vectors.dtype).unflatten(0, (self.heads, -1))
        return sums.values + torch.einsum("nhf,hcf->nhc", sums.vectors, maps)

    def _update(self, edge: Tensor, states: Tensor | None, x: Tensor, listed: Listed) -> Tensor:  # noqa: ARG002
        f, n = self.edge_dim, self.width
        of_edges, of_source, of_target = self.linear1.weight.split([2 * f, n, n], 1)
        sources, targets = x @ of_source.T, x @ of_target.T  # at the nodes, not at the edges
        weights = weights_of(self, ("norm1", "norm2", "linear2", "linear3", "linear4"))
        weights |= {"edges.weight": of_edges, "edges.bias": self.linear1.bias}

        def formula(part: Part) -> Results:
            w, (edge,), (reverse, source) = part.weights, part.edges, part.gathered
            hidden = mapped(torch.cat([edge, reverse], 1), "edges", w) + source
            hidden = relu(hidden + part.rows[0].index_select(0, part.at))
            state = normed(edge + mapped(hidden, "linear2", w), "norm1", w)
            return Results((), [normed(state + mapped(relu(mapped(state, "linear3", w)), "linear4", w), "norm2", w)])

        padded = torch.cat([edge, edge.new_zeros(1, f)])  # a row for edges without a reverse
        gathered = [(padded, listed.reverse()), (sources, listed.col)]
        inputs = Inputs([targets], [edge], gathered, weights)
        return by_blocks(formula, listed, inputs, self.linear2.in_features).edges[0].to(edge.dtype)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{super().extra_repr()}, width={self.width}, hidden={self.linear2.in_features}"
