"""Edge states of the Relational Transformer: queries, keys and values read them; the next ones read the new nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear, relu

from relgraph.arguments import check
from relgraph.impl.eager.sparse import row_softmax, weighted_sum
from relgraph.nn.edge_states.blocks import Inputs, Part, by_blocks
from relgraph.nn.edge_states.listed import Listed


class RelationalEdges(nn.Module):
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
        head_dim: C, the size of each head.
        width: the width of the new nodes, H · C by default.
        hidden: the width of the rows of W_1 and W_3, 2F by default.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> states = rg.nn.RelationalEdges(4, heads=2, head_dim=8, hidden=32)
        >>> conv = rg.pyg.RelationConv(16, 8, 2, edge_dim=4, edge_update=states)
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 4)
        >>> x, edge_attr = conv(torch.randn(3, 16), edge_index, edge_attr=edge_attr)
        >>> x.shape, edge_attr.shape
        (torch.Size([3, 16]), torch.Size([2, 4]))
    """

    def __init__(
        self, edge_dim: int, heads: int, head_dim: int, *, width: int | None = None, hidden: int | None = None,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.edge_dim = check.integer("edge_dim", edge_dim, minimum=1)
        self.heads = check.integer("heads", heads, minimum=1)
        self.head_dim = check.integer("head_dim", head_dim, minimum=1)
        check.parameter_size(edge_dim=edge_dim, heads=heads, head_dim=head_dim)
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

    def _sorted(self, edge: Tensor, listed: Listed) -> Tensor:
        """States by target, in the type of the parameters, which autocast may not have given them."""
        return listed.sort(edge.to(self.to_query.weight.dtype))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, edge: Tensor, listed: Listed, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        """Attend over edges by target: queries ``[N_q, H, C]``, keys and values ``[N_k, H, C]``, states ``[E, F]``.

        Returns the nodes ``[N_q, H, C]``, and the weights before dropout, ``[E, H]``, by target.
        """

        def formula(part: Part) -> Tensor:
            (states,), (keys,) = part.edges, part.gathered
            queries = part.rows[0].index_select(0, part.at)  # [e, H, C]
            queries, keys = (
                torch.addmm(x.flatten(1), states, part.weights[name].T).view_as(x)
                for x, name in ((queries, "to_query"), (keys, "to_key"))
            )
            return (queries * keys).sum(-1) * self.head_dim**-0.5

        weights = {"to_query": self.to_query.weight, "to_key": self.to_key.weight}
        inputs = Inputs([query], [edge], [(key, listed.col)], weights)
        scores = by_blocks(formula, listed, inputs, self.heads * self.head_dim)  # [E, H]
        alpha = row_softmax(scores.T.contiguous(), listed.pattern())[0]  # [H, E]
        used = dropout(alpha, dropout_p) if dropout_p > 0.0 else alpha
        values = weighted_sum(used, value.to(alpha.dtype).transpose(0, 1).contiguous(), listed.pattern())
        states = weighted_sum(used, edge.to(used.dtype)[None], listed.by_edge())  # [H, N_q, F]
        maps = self.to_value.weight.to(states.dtype).unflatten(0, (self.heads, -1))  # [H, C, F]
        nodes = values.transpose(0, 1) + torch.einsum("hnf,hcf->nhc", states, maps)
        return nodes.to(query.dtype), alpha.T

    def _with_edges(self, query: Tensor, key: Tensor, value: Tensor, edge: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of E edges, ``[E, H, C]``, with what their states ``[E, F]`` add to them."""
        maps = (self.to_query, self.to_key, self.to_value)
        return tuple(x + to(edge).view_as(x) for x, to in zip((query, key, value), maps, strict=True))

    def _update(self, edge: Tensor, x: Tensor, listed: Listed) -> Tensor:
        """The next states ``[E, F]`` from those before and the new nodes ``[N, width]``."""
        f, n = self.edge_dim, self.width
        of_edges, of_source, of_target = self.linear1.weight.split([2 * f, n, n], 1)
        sources, targets = x @ of_source.T, x @ of_target.T  # at the nodes, not at the edges
        parts = {name: getattr(self, name) for name in ("norm1", "norm2", "linear2", "linear3", "linear4")}
        weights = {f"{name}.{kind}": getattr(one, kind) for name, one in parts.items() for kind in ("weight", "bias")}
        weights |= {"edges.weight": of_edges, "edges.bias": self.linear1.bias}

        def formula(part: Part) -> Tensor:
            w, (edge,), (reverse, source) = part.weights, part.edges, part.gathered

            def mapped(x: Tensor, name: str) -> Tensor:
                return linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

            def normed(x: Tensor, name: str) -> Tensor:
                return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

            hidden = mapped(torch.cat([edge, reverse], 1), "edges") + source  # [e, hidden]
            hidden = relu(hidden + part.rows[0].index_select(0, part.at))
            state = normed(edge + mapped(hidden, "linear2"), "norm1")  # [e, F]
            return normed(state + mapped(relu(mapped(state, "linear3")), "linear4"), "norm2")

        padded = torch.cat([edge, edge.new_zeros(1, f)])  # a row for edges without a reverse
        inputs = Inputs([targets], [edge], [(padded, listed.reverse()), (sources, listed.col)], weights)
        return by_blocks(formula, listed, inputs, self.linear2.in_features).to(edge.dtype)

    def reset_parameters(self) -> None:
        """Initialize all parameters again."""
        for part in self.children():
            part.reset_parameters()  # pyright: ignore[reportCallIssue]

    def extra_repr(self) -> str:
        """Sizes."""
        sizes = f"{self.edge_dim}, heads={self.heads}, head_dim={self.head_dim}"
        return f"{sizes}, width={self.width}, hidden={self.linear2.in_features}"


def check_edge_update(
    edge_update: Any, edge_dim: int | None, heads: int, head_dim: int, width: int, place: dict[str, Any] | None = None
) -> RelationalEdges | None:
    """The edge states that ``edge_update`` asks for, or None; ``width`` is that of the new nodes."""
    if edge_update is None:
        return None
    if isinstance(edge_update, str):
        check.choice("edge_update", edge_update, ("relational",))
    elif not isinstance(edge_update, RelationalEdges):
        raise TypeError(f"edge_update must be 'relational' or rg.nn.RelationalEdges, got {type(edge_update).__name__}")
    if edge_dim is None:
        raise ValueError("edge_dim must be given with edge_update, got None")
    sizes = {"edge_dim": edge_dim, "heads": heads, "head_dim": head_dim, "width": width}
    if isinstance(edge_update, str):
        return RelationalEdges(**sizes, **(place or {}))
    for name, size in sizes.items():
        if getattr(edge_update, name) != size:
            raise ValueError(f"edge_update must have {name} = {size}, as the layer, got {getattr(edge_update, name)}")
    return edge_update
