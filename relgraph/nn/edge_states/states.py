"""The base class of edge states: attention that reads a vector per edge, and the next vector of each edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear

from relgraph.arguments import check
from relgraph.call import accumulation_dtype
from relgraph.nn.edge_states.blocks import Inputs, Part, by_blocks
from relgraph.nn.edge_states.listed import Listed


class Terms(NamedTuple):
    """What one form of attention computes for each of E edges, before the softmax.

    Attributes:
        scores: ``[E, H]``.
        values: ``[E, H, C']``, what the attention sums.
        gate: ``[E, H]``, a factor on the weight after the softmax, or None.
        states: ``[E, F]``, what the next states are made of, or None if they read the new nodes.
    """

    scores: Tensor
    values: Tensor
    gate: Tensor | None = None
    states: Tensor | None = None


class Attended(NamedTuple):
    """What attention with edge states gives.

    Attributes:
        nodes: ``[N_q, H, C]``.
        weights: ``[E, H]``, weights with their gates, before dropout; None unless asked for.
        states: ``[E, F]``, for :meth:`EdgeStates.update`; None if the next states read the new nodes.
    """

    nodes: Tensor
    weights: Tensor | None
    states: Tensor | None


class EdgeStates(nn.Module):
    """One published form: how an edge's vector enters the attention, and how the next vector is made.

    Args:
        edge_dim: F, the width of a state.
        heads: H.
        head_dim: C, the size of a head.
    """

    after_nodes: ClassVar[bool] = False
    """Whether the next states read the new nodes."""

    reads_degree: ClassVar[bool] = False
    """Whether the output depends on the degree of the nodes."""

    read: ClassVar[tuple[str, ...]]
    """The parts and parameters that :meth:`terms` reads."""

    def __init__(self, edge_dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.edge_dim = check.integer("edge_dim", edge_dim, minimum=1)
        self.heads = check.integer("heads", heads, minimum=1)
        self.head_dim = check.integer("head_dim", head_dim, minimum=1)
        check.parameter_size(2, edge_dim=edge_dim, heads=heads, head_dim=head_dim)

    def weights(self) -> dict[str, Tensor]:
        """The parameters that :meth:`terms` reads, by name."""
        return weights_of(self, self.read)

    def terms(self, query: Tensor, key: Tensor, value: Tensor, edge: Tensor, w: dict[str, Tensor]) -> Terms:
        """The terms of E edges: query, key and value ``[E, H, C]``, states ``[E, F]``, the parameters ``w``."""
        raise NotImplementedError

    def nodes(self, sums: Tensor, gates: Tensor | None, degree: Tensor) -> Tensor:  # noqa: ARG002
        """The output ``[N_q, H, C]`` of the sums ``[N_q, H, C']``, of gates ``[N_q, H]`` and of degrees ``[N_q]``."""
        return sums

    def update(self, edge_attr: Tensor, states: Tensor | None, x: Tensor, listed: Listed) -> Tensor:
        """The next states ``[E, F]``, from those before, from what attention found, and from the new nodes."""
        raise NotImplementedError

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, listed: Listed, *, dropout_p: float = 0.0,
        need_weights: bool = False, degree: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        """Attend over listed edges: queries ``[N_q, H, C]``, keys and values ``[N_k, H, C]``, states ``[E, F]``."""
        gathered = [(key, listed.col), (value, listed.col), (edge_attr, listed.order)]
        if dropout_p > 0.0:
            ones = edge_attr.new_ones(edge_attr.shape[0], self.heads, dtype=accumulation_dtype(edge_attr.dtype))
            gathered.append((dropout(ones, dropout_p), listed.order))
        shapes: list[bool] = []

        def formula(part: Part) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            key, value, edge, *kept = part.edges
            terms = self.terms(part.rows[0].index_select(0, part.at), key, value, edge, part.weights)
            alpha = softmax_by_row(terms.scores, part.at, part.targets)
            if terms.gate is not None:
                alpha = alpha * terms.gate
            used = alpha * kept[0] if kept else alpha
            rows = [sum_by_row(used[..., None] * terms.values, part.at, part.targets)]
            if terms.gate is not None:
                rows.append(sum_by_row(terms.gate, part.at, part.targets))
            shapes[:] = [terms.states is not None]
            states = [] if terms.states is None else [terms.states]
            return rows, [*states, alpha] if need_weights else states

        width = self.heads * self.head_dim
        rows, edges = by_blocks(formula, listed, Inputs([query], gathered, self.weights()), width)
        degree = listed.degrees() if degree is None else degree
        nodes = self.nodes(rows[0], rows[1] if len(rows) > 1 else None, degree.to(rows[0].dtype))
        weights = edges[-1] if need_weights else None
        return Attended(nodes.to(query.dtype), weights, edges[0] if shapes[0] else None)

    def reset_parameters(self) -> None:
        """Initialize all parameters again."""
        for part in self.children():
            part.reset_parameters()  # pyright: ignore[reportCallIssue]

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.edge_dim}, heads={self.heads}, head_dim={self.head_dim}"


def softmax_by_row(scores: Tensor, at: Tensor, rows: int) -> Tensor:
    """The softmax of scores ``[E, H]`` over the edges of each row; ``at`` ``[E]`` rises."""
    place = at[:, None].expand(scores.shape)
    top = scores.new_zeros(rows, scores.shape[1]).scatter_reduce(0, place, scores.detach(), "amax", include_self=False)
    weights = (scores - top.index_select(0, at)).exp()
    return weights / sum_by_row(weights, at, rows).index_select(0, at)


def sum_by_row(x: Tensor, at: Tensor, rows: int) -> Tensor:
    """The sums of the vectors ``[E, ...]`` of each row, ``[rows, ...]``."""
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, at, x)


def per_head(x: Tensor, heads: int) -> Tensor:
    """``[E, H · C]`` as ``[E, H, C]``."""
    return x.unflatten(-1, (heads, -1))


def weights_of(module: nn.Module, parts: Sequence[str]) -> dict[str, Tensor]:
    """These parameters, and the weight and bias of these parts, by name."""
    found: dict[str, Any] = {}
    for part in parts:
        one = getattr(module, part)
        found |= {part: one} if isinstance(one, Tensor) else {f"{part}.weight": one.weight, f"{part}.bias": one.bias}
    return {name: x for name, x in found.items() if x is not None}


def mapped(x: Tensor, part: str, w: dict[str, Tensor]) -> Tensor:
    """``x`` after the linear map ``part``."""
    return linear(x, w[f"{part}.weight"], w.get(f"{part}.bias"))


def normed(x: Tensor, part: str, w: dict[str, Tensor]) -> Tensor:
    """``x`` after the layer norm ``part``."""
    return layer_norm(x, x.shape[-1:], w[f"{part}.weight"], w[f"{part}.bias"])
