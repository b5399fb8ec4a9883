"""The base class of edge states: attention that reads a vector per edge, and the next vector of each edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear

from relgraph.arguments import check
from relgraph.impl.eager.sparse import row_softmax, weighted_sum
from relgraph.nn.edge_states.blocks import Inputs, Part, Results, by_blocks
from relgraph.nn.edge_states.listed import Listed

CLIP = 5.0
"""The largest score, or product, of the forms that clip them."""


class Terms(NamedTuple):
    """What one form of attention computes for each of E edges, before the softmax.

    Attributes:
        scores: ``[E, H]``.
        gate: ``[E, H]``, a factor on the weight after the softmax, or None.
        vectors: ``[E, H or 1, X]``, what the attention sums besides the values, or None.
        states: ``[E, F]``, what the next states are made of, or None if they read the new nodes.
    """

    scores: Tensor
    gate: Tensor | None = None
    vectors: Tensor | None = None
    states: Tensor | None = None


class Sums(NamedTuple):
    """The sums over the edges into each of N_q targets.

    Attributes:
        values: ``[N_q, H, C]``, weights times values.
        vectors: ``[N_q, H, X]``, weights times the vectors of ``Terms``, or None.
        gates: ``[N_q, H]``, or None.
        degree: ``[N_q]``, edges, or what the caller says.
    """

    values: Tensor
    vectors: Tensor | None
    gates: Tensor | None
    degree: Tensor


class Attended(NamedTuple):
    """What attention with edge states gives, edges in the order of ``Listed``.

    Attributes:
        nodes: ``[N_q, H, C]``.
        weights: ``[E, H]``, weights with their gates, before dropout.
        states: ``[E, F]``, for ``EdgeStates._update``; None if the next states read the new nodes.
    """

    nodes: Tensor
    weights: Tensor
    states: Tensor | None


class Weighed(NamedTuple):
    """Weights of edges, and what goes with them.

    Attributes:
        alpha: ``[H, E]``, before dropout.
        used: ``[H, E]``, after dropout.
        vectors, gates: as in ``Sums``.
        states: as in ``Terms``.
    """

    alpha: Tensor
    used: Tensor
    vectors: Tensor | None
    gates: Tensor | None
    states: Tensor | None


class EdgeStates(nn.Module):
    """One published form: how an edge's vector enters the attention, and how the next vector is made.

    Args:
        edge_dim: F, the width of a state.
        heads: H.
        head_dim: C, the size of a head.
    """

    reads_degree: ClassVar[bool] = False
    """Whether the output depends on the degree of the nodes."""

    after_nodes: ClassVar[bool] = False
    """Whether the next states read the new nodes, at both ends of an edge."""

    read: ClassVar[tuple[str, ...]]
    """The parts and parameters that ``_terms`` reads."""

    def __init__(self, edge_dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.edge_dim = check.integer("edge_dim", edge_dim, minimum=1)
        self.heads = check.integer("heads", heads, minimum=1)
        self.head_dim = check.integer("head_dim", head_dim, minimum=1)
        check.parameter_size(2, edge_dim=edge_dim, heads=heads, head_dim=head_dim)

    def _weights(self) -> dict[str, Tensor]:
        """The parameters that ``_terms`` reads, by name."""
        return weights_of(self, self.read)

    def _terms(self, query: Tensor, key: Tensor, edge: Tensor, w: Mapping[str, Tensor]) -> Terms:
        """The terms of E edges: query and key ``[E, H, C]``, states ``[E, F]``, the parameters ``w``."""
        raise NotImplementedError

    def _nodes(self, sums: Sums) -> Tensor:
        """The output ``[N_q, H, C]``."""
        return sums.values

    def _update(self, edge: Tensor, states: Tensor | None, x: Tensor, listed: Listed) -> Tensor:
        """The next states ``[E, F]`` from those before, what attention found, and the new nodes ``[N, width]``."""
        raise NotImplementedError

    def _sorted(self, edge: Tensor, listed: Listed) -> Tensor:
        """States by target, in the type of the parameters, which autocast may not have given them."""
        return listed.sort(edge.to(next(self.parameters()).dtype))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, edge: Tensor, listed: Listed, *, dropout_p: float = 0.0,
        degree: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        """Attend over edges by target: queries ``[N_q, H, C]``, keys and values ``[N_k, H, C]``, states ``[E, F]``."""
        inputs = self._inputs(query, key, listed)
        inputs = inputs._replace(edges=[*inputs.edges, edge])
        alpha, used, vectors, gates, states = self._weighed(inputs, listed, dropout_p)
        lanes = value.to(alpha.dtype).transpose(0, 1).contiguous()
        values = weighted_sum(used, lanes, listed.pattern()).transpose(0, 1)
        degree = listed.degrees() if degree is None else degree
        nodes = self._nodes(Sums(values, vectors, gates, degree.to(values.dtype)))
        return Attended(nodes.to(query.dtype), alpha.T, states)

    def _weighed(self, inputs: Inputs, listed: Listed, dropout_p: float) -> Weighed:
        """Scores by blocks; their softmax and all sums by sparse products."""
        has: list[bool] = []

        def formula(part: Part) -> Results:
            terms = self._read(part)
            found = (terms.gate, terms.states)
            has[:] = [x is not None for x in found]
            return Results((), [terms.scores, *(x for x in found if x is not None)])

        scores, *rest = by_blocks(formula, listed, inputs, self._width()).edges
        others = iter(rest)
        gate, states = (next(others) if there else None for there in has)
        alpha = row_softmax(scores.T.contiguous(), listed.pattern())[0]
        alpha = alpha if gate is None else alpha * gate.T
        used = dropout(alpha, dropout_p) if dropout_p > 0.0 else alpha
        vectors = self._sum_of_states(used, inputs.edges[-1], listed)
        return Weighed(alpha, used, vectors, self._sum_of_gates(gate, listed), states)

    def _sum_of_states(self, used: Tensor, edge: Tensor, listed: Listed) -> Tensor | None:  # noqa: ARG002
        """The vectors of ``Sums`` if they are states of edges, which have weights ``[H, E]``."""
        return None

    def _sum_of_gates(self, gate: Tensor | None, listed: Listed) -> Tensor | None:  # noqa: ARG002
        """The gates of ``Sums`` if the output reads them."""
        return None

    def _inputs(self, query: Tensor, key: Tensor, listed: Listed) -> Inputs:
        """What :meth:`_read` reads, apart from the states, which come last among the edges."""
        return Inputs([query], [], [(key, listed.col)], self._weights())

    def _width(self) -> int:
        """How many numbers per edge the largest tensors of a block have."""
        return self.heads * self.head_dim

    def _read(self, part: Part) -> Terms:
        """The terms of a block."""
        return self._terms(part.rows[0].index_select(0, part.at), part.gathered[0], part.edges[-1], part.weights)

    def reset_parameters(self) -> None:
        """Initialize all parameters again."""
        for part in self.children():
            part.reset_parameters()  # pyright: ignore[reportCallIssue]

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.edge_dim}, heads={self.heads}, head_dim={self.head_dim}"


def sum_by_row(x: Tensor, at: Tensor, rows: int) -> Tensor:
    """The sums of the vectors ``[E, ...]`` of each row, ``[rows, ...]``."""
    flat = x.flatten(1)
    return flat.new_zeros(rows, flat.shape[1]).index_add(0, at, flat).view(rows, *x.shape[1:])


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


def mapped(x: Tensor, part: str, w: Mapping[str, Tensor]) -> Tensor:
    """``x`` after the linear map ``part``."""
    return linear(x, w[f"{part}.weight"], w.get(f"{part}.bias"))


def normed(x: Tensor, part: str, w: Mapping[str, Tensor]) -> Tensor:
    """``x`` after the layer norm ``part``."""
    return layer_norm(x, x.shape[-1:], w[f"{part}.weight"], w[f"{part}.bias"])
