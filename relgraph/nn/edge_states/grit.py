"""Edge states of GRIT: score, nodes and next state read a vector per edge, made of query, key and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, relu

from relgraph.arguments import check
from relgraph.nn.edge_states.blocks import Inputs, Part, Results, by_blocks
from relgraph.nn.edge_states.listed import Listed
from relgraph.nn.edge_states.states import CLIP, EdgeStates, Sums, Terms, Weighed, mapped, per_head, sum_by_row


class GRITEdges(EdgeStates):
    """Edge states of the Graph Inductive bias Transformer (GRIT).

    For an edge e = (j → i) with state f_e, per head, with ρ(x) = √ReLU(x) − √ReLU(−x)::

        ê_e = ReLU(ρ((q_i + k_j) ⊙ E_w f_e) + E_b f_e)
        α_e = softmax_e(clip(a·ê_e, ±5))
        y_i = Σ_e α_e v_j + W_row Σ_e α_e ê_e
        z_i = y_i ⊙ c_1 + log(1 + degree_i) · y_i ⊙ c_2

    The next state is norm(f_e + W_O [ê_e of all heads]). The degree of a node is the number of edges that lead to it,
    unless the call says another: if all pairs of a graph are listed, pass that of the graph. The residual sum and the
    norm of the edges are in these formulas; those of the nodes belong to the layer around it, with norms last.

    Source: Ma et al. 2023, "Graph Inductive Biases in Transformers without Message Passing", section 3; the paper's
    code, which begins with the query projection and the edges' maps biased.

    Args:
        edge_dim: F, the width of a state.
        heads: H.
        head_dim: C, the size of a head.
        norm: ``"batch"`` for the mean and variance over all edges of a call, as published, or ``"layer"``.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a size below 1, or an unknown norm.

    Example:
        >>> states = rg.nn.GRITEdges(4, heads=2, head_dim=8, norm="layer")
        >>> conv = rg.pyg.RelationConv(16, 8, 2, edge_dim=4, edge_update=states)
        >>> edge_index, edge_attr = torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 4)
        >>> x, edge_attr = conv(torch.randn(3, 16), edge_index, edge_attr=edge_attr)
        >>> x.shape, edge_attr.shape
        (torch.Size([3, 16]), torch.Size([2, 4]))
    """

    reads_degree: ClassVar[bool] = True
    read = ("gain", "shift", "score", "out_proj")

    def __init__(
        self, edge_dim: int, heads: int, head_dim: int, *, norm: str = "batch",
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(edge_dim, heads, head_dim)
        place: dict[str, Any] = check.parameter_place(device, dtype)
        width = heads * head_dim
        self.gain, self.shift = (nn.Linear(edge_dim, width, **place) for _ in range(2))
        self.score = nn.Parameter(torch.empty(heads, head_dim, **place))
        self.row = nn.Parameter(torch.empty(heads, head_dim, head_dim, **place))
        self.degree = nn.Parameter(torch.empty(2, heads, head_dim, **place))
        self.out_proj = nn.Linear(width, edge_dim, **place)
        kinds = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.norm = kinds[check.choice("norm", norm, tuple(kinds))](edge_dim, **place)
        self._reset()

    def _reset(self) -> None:
        for one in (self.gain.weight, self.shift.weight, self.score, self.row, self.degree.flatten(1)):
            nn.init.xavier_normal_(one)

    def reset_parameters(self) -> None:
        """Initialize all parameters again, as the paper's code does."""
        super().reset_parameters()
        self._reset()

    def _terms(self, query: Tensor, key: Tensor, edge: Tensor, w: Mapping[str, Tensor]) -> Terms:
        product = (query + key) * per_head(mapped(edge, "gain", w), self.heads)
        found = relu(signed_root(product) + per_head(mapped(edge, "shift", w), self.heads))
        scores = (found * w["score"]).sum(-1).clamp(-CLIP, CLIP)
        return Terms(scores, None, found, edge + mapped(found.flatten(1), "out_proj", w))

    def _weighed(self, inputs: Inputs, listed: Listed, dropout_p: float) -> Weighed:
        """All within blocks, as the vectors that the attention sums are as wide as all heads together."""
        kept = dropout_p > 0.0
        if kept:
            ones = inputs.edges[-1].new_ones(listed.row.shape[0], self.heads, dtype=inputs.dtype())
            inputs = inputs._replace(edges=[dropout(ones, dropout_p), *inputs.edges])

        def formula(part: Part) -> Results:
            terms = self._read(part)
            alpha = softmax_by_row(terms.scores, part.at, part.targets)
            used = alpha * part.edges[0] if kept else alpha
            assert terms.vectors is not None and terms.states is not None
            vectors = sum_by_row(used[..., None] * terms.vectors, part.at, part.targets)
            return Results([vectors], [alpha, used, terms.states])

        (vectors,), (alpha, used, states) = by_blocks(formula, listed, inputs, self._width())
        return Weighed(alpha.T, used.T.contiguous(), vectors, None, states)

    def _nodes(self, sums: Sums) -> Tensor:
        assert sums.vectors is not None
        out = sums.values + torch.einsum("nhd,hdc->nhc", sums.vectors, self.row.to(sums.vectors.dtype))
        first, second = self.degree.to(out.dtype)
        return out * (first + sums.degree.log1p()[:, None, None] * second)

    def _update(self, edge: Tensor, states: Tensor | None, x: Tensor, listed: Listed) -> Tensor:  # noqa: ARG002
        assert states is not None
        if self.training and len(states) == 1 and isinstance(self.norm, nn.BatchNorm1d):
            raise ValueError(
                "edge_attr must have two rows or none in training, whose mean and variance norm='batch' takes, got 1; "
                "GRITEdges(..., norm='layer') takes one"
            )
        return self.norm(states.to(edge.dtype))


def softmax_by_row(scores: Tensor, at: Tensor, rows: int) -> Tensor:
    """The softmax of scores ``[E, H]`` over the edges of each row; ``at`` ``[E]`` rises."""
    place = at[:, None].expand(scores.shape)
    top = scores.new_zeros(rows, scores.shape[1]).scatter_reduce(0, place, scores.detach(), "amax", include_self=False)
    weights = (scores - top.index_select(0, at)).exp()
    return weights / sum_by_row(weights, at, rows).index_select(0, at)


def signed_root(x: Tensor) -> Tensor:
    """√x of positive numbers, −√(−x) of negative ones; the gradient at 0 is 0."""
    return x.abs().clamp_min(torch.finfo(x.dtype).tiny).sqrt() * x.sign()
