"""Edge states of the Edge-augmented Graph Transformer: a bias and a gate in the attention, a feed-forward per edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from relgraph.arguments import check
from relgraph.call import accumulation_dtype
from relgraph.impl.eager.sparse import sampled_dot
from relgraph.nn.edge_states.blocks import Inputs, Part
from relgraph.nn.edge_states.listed import Listed
from relgraph.nn.edge_states.states import CLIP, EdgeStates, Sums, Terms, mapped, normed, sum_by_row


class EGTEdges(EdgeStates):
    """Edge states of the Edge-augmented Graph Transformer (EGT).

    With ē = LN(e), for an edge e = (j → i), per head::

        h_e = clip(q_i·k_j / √C, ±5) + w_e·ē
        α_e = softmax_e(h_e) · σ(w_g·ē)
        z_i = Σ_e α_e v_j                       with scale_degree: z_i · log(1 + Σ_e σ(w_g·ē))

    The next state is e' + W_2 elu(W_1 LN(e')), where e' = e + W_O [h_e of all heads]. The residual sums of the edges
    are in these formulas; those of the nodes belong to the layer around it, with norms first.

    Source: Hussain, Zaki, Subramanian 2022, "Global Self-Attention as a Replacement for Graph Convolution", section 4.

    Args:
        edge_dim: F, the width of a state.
        heads: H.
        head_dim: C, the size of a head.
        hidden: the width of the feed-forward network, 2F by default.
        scale_degree: whether the sum of a node's gates scales its output.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a size below 1.

    Example:
        >>> states = rg.nn.EGTEdges(4, heads=2, head_dim=8, scale_degree=True)
        >>> conv = rg.pyg.RelationConv(16, 8, 2, edge_dim=4, edge_update=states)
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 4)
        >>> x, edge_attr = conv(torch.randn(3, 16), edge_index, edge_attr=edge_attr)
        >>> x.shape, edge_attr.shape
        (torch.Size([3, 16]), torch.Size([2, 4]))
    """

    read = ("norm1", "norm2", "in_proj", "out_proj", "linear1", "linear2")

    def __init__(
        self, edge_dim: int, heads: int, head_dim: int, *, hidden: int | None = None, scale_degree: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(edge_dim, heads, head_dim)
        place: dict[str, Any] = check.parameter_place(device, dtype)
        inner = 2 * edge_dim if hidden is None else check.integer("hidden", hidden, minimum=1)
        check.parameter_size(edge_dim=edge_dim, hidden=inner)
        self.scale_degree = check.boolean("scale_degree", scale_degree)
        self.norm1, self.norm2 = (nn.LayerNorm(edge_dim, **place) for _ in range(2))
        self.in_proj = nn.Linear(edge_dim, 2 * heads, **place)  # biases, then gates
        self.out_proj = nn.Linear(heads, edge_dim, **place)
        self.linear1, self.linear2 = nn.Linear(edge_dim, inner, **place), nn.Linear(inner, edge_dim, **place)

    def _terms(self, query: Tensor, key: Tensor, edge: Tensor, w: Mapping[str, Tensor]) -> Terms:
        return self._of_products((query * key).sum(-1) * self.head_dim**-0.5, edge, w)

    def _of_products(self, products: Tensor, edge: Tensor, w: Mapping[str, Tensor]) -> Terms:
        """The terms of E edges with scaled products ``[E, H]`` of queries and keys."""
        scores, gates = mapped(normed(edge, "norm1", w), "in_proj", w).chunk(2, -1)
        scores = scores + products.clamp(-CLIP, CLIP)
        state = edge + mapped(scores, "out_proj", w)
        state = state + mapped(elu(mapped(normed(state, "norm2", w), "linear1", w)), "linear2", w)
        return Terms(scores, gates.sigmoid(), None, state)

    def _inputs(self, query: Tensor, key: Tensor, listed: Listed) -> Inputs:
        dtype = accumulation_dtype(query.dtype)
        mine, theirs = (x.to(dtype).transpose(0, 1).contiguous() for x in (query * self.head_dim**-0.5, key))
        products = sampled_dot(mine, theirs, listed.pattern()).T
        return Inputs([], [products], [], self._weights())

    def _sum_of_gates(self, gate: Tensor | None, listed: Listed) -> Tensor | None:
        return sum_by_row(gate, listed.row, listed.queries) if self.scale_degree and gate is not None else None

    def _width(self) -> int:
        return max(self.linear1.out_features, 2 * self.heads)

    def _read(self, part: Part) -> Terms:
        return self._of_products(part.edges[-2], part.edges[-1], part.weights)

    def _nodes(self, sums: Sums) -> Tensor:
        if not self.scale_degree:
            return sums.values
        assert sums.gates is not None
        return sums.values * sums.gates.log1p()[..., None]

    def _update(self, edge: Tensor, states: Tensor | None, x: Tensor, listed: Listed) -> Tensor:  # noqa: ARG002
        assert states is not None
        return states.to(edge.dtype)

    def extra_repr(self) -> str:
        """Sizes and options."""
        return super().extra_repr() + ", scale_degree=True" * self.scale_degree
