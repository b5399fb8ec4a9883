"""Labels by random walk: the probability that a walk from the query lands on the key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import cut, shown
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import AllPairsLabeler, label_pairs
from relgraph.labels import BlockLabels, DenseLabels

LEAST = 1e-12  # a probability below this counts as 0, because rounding can leave this much of a zero
SLACK = 1e-9  # relative distance below a bin edge that still counts as on it, so that rounding does not move 1/2
MOST_HALVES = 1024  # bins that halve: a float holds no power of 1/2 beyond 1074


class WalkLabeler(AllPairsLabeler):
    """A labeler that bins a probability per pair; ids do not depend on the other graphs of a batch."""

    bins: int | Sequence[float]
    directed: bool

    @property
    def edges(self) -> tuple[float, ...]:
        """The probabilities where one bin ends and the next begins, rising."""
        if isinstance(self.bins, int):
            return tuple(0.5**power for power in range(self.bins - 2, 0, -1))
        return tuple(self.bins)

    @property
    def num_labels(self) -> int:
        """One for probability 0, and one per bin."""
        return len(self.edges) + 2

    @property
    def names(self) -> tuple[str, ...]:
        """The probabilities in each bin, such as ``"0"``, ``"<0.25"``, ``"0.25..0.5"`` and ``">=0.5"``."""
        edges = self.edges
        if not edges:
            return ("0", ">0")
        between = (f"{low!r}..{high!r}" for low, high in pairwise(edges))
        return ("0", f"<{edges[0]!r}", *between, f">={edges[-1]!r}")

    @abstractmethod
    def _landing(self, step: Tensor) -> Tensor:
        """The probability of landing for each pair, from that of one step; both ``[B, n, n]``, float64."""

    @final
    def _labels(self, graph: Graph) -> DenseLabels | BlockLabels:
        landing = _apply_per_graph(graph, self._landing, directed=self.directed)
        edges = torch.tensor(self.edges, dtype=torch.float64, device=graph.device) * (1 - SLACK)
        ids = torch.bucketize(landing, edges, right=True) + 1
        return label_pairs(graph, ids.masked_fill(landing < LEAST, 0), self.num_labels)


@final
@dataclass(frozen=True, repr=False)
class RandomWalk(WalkLabeler):
    """One label for each range of the probability that a walk of ``step`` steps from the query ends at the key.

    Each step goes to one of the neighbours with equal probability: (D⁻¹A)^step, row i, column j. A walk from a node
    without neighbours ends nowhere. For several walks add labelers: ``RandomWalk(1) + RandomWalk(2)``.

    Source: Ma et al. 2023 (GRIT), section 3.1, where the probabilities themselves are features.

    Args:
        step: how many steps a walk has, from 0; with 0 it stays at the query.
        bins: the number of labels: one for probability 0, the others split at 1/2, 1/4, 1/8, ...; or a rising
            sequence of the values to split at, between 0 and 1.
        directed: whether a walk steps only from a query to its keys, that is, against edges, from target to source; if
            False, both ways. Parallel edges count once.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a negative step, fewer than 2 bins or more than 1024, or values that do not rise between 0 and 1.

    Example:
        >>> labeler = rg.RandomWalk(2, bins=4)
        >>> labeler.names
        ('0', '<0.25', '0.25..0.5', '>=0.5')
        >>> labeler(rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)).to_dense()[0]
        tensor([[[3, 0, 3],
                 [0, 3, 0],
                 [3, 0, 3]]])
    """

    step: int
    bins: int | Sequence[float] = 16
    _: KW_ONLY
    directed: bool = False

    def __post_init__(self) -> None:
        check.integer("step", self.step, minimum=0)
        check.boolean("directed", self.directed)
        self._set(bins=_checked_bins(self.bins))

    def _landing(self, step: Tensor) -> Tensor:
        return torch.linalg.matrix_power(step, self.step)


@final
@dataclass(frozen=True, repr=False)
class PersonalizedPageRank(WalkLabeler):
    """One label for each range of the probability that a walk from the query, which stops at random, stops at the key.

    Before each step the walk stops with probability ``alpha``: alpha · (I − (1 − alpha) D⁻¹A)⁻¹, row i, column j. Bins
    that halve have equal width in the negative logarithm. A walk ends nowhere if it must leave a node without
    neighbours, so a walk from such a node stops there with probability ``alpha``, and nowhere else.

    Source: Zügner et al. 2021 (Code Transformer), where bins depend on how often each occurs; here they are fixed, so
    that a graph has the same labels in every batch.

    Args:
        bins: as in :class:`~relgraph.RandomWalk`.
        alpha: the probability that the walk stops before a step.
        directed: as in :class:`~relgraph.RandomWalk`.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: ``alpha`` not between 0 and 1, fewer than 2 bins or more than 1024, or values that do not rise
            between 0 and 1.

    Example:
        >>> labeler = rg.PersonalizedPageRank(bins=(0.1, 0.4))
        >>> labeler.names
        ('0', '<0.1', '0.1..0.4', '>=0.4')
        >>> labeler(rg.Graph(torch.tensor([[0], [1]]), 3)).to_dense()[0]
        tensor([[[3, 3, 0],
                 [3, 3, 0],
                 [0, 0, 2]]])
    """

    bins: int | Sequence[float] = 16
    _: KW_ONLY
    alpha: float = 0.15
    directed: bool = False

    def __post_init__(self) -> None:
        if not 0 < check.finite("alpha", self.alpha) < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {self.alpha}")
        check.boolean("directed", self.directed)
        self._set(bins=_checked_bins(self.bins))

    def _landing(self, step: Tensor) -> Tensor:
        identity = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device).expand_as(step)
        return torch.linalg.solve(identity - (1 - self.alpha) * step, self.alpha * identity)


def _apply_per_graph(graph: Graph, landing: Callable[[Tensor], Tensor], *, directed: bool) -> Tensor:
    """Apply ``landing`` to each graph's step probabilities; results come in the order of ``Graph.pairs``.

    Each graph is padded to the next power of two, whatever the batch, and all graphs of one width run together.
    """
    check.outside_compiled_code("a random walk")
    ptr, home = graph.borders(), graph.graph_of()
    sizes = ptr.diff()
    power = sizes.clamp(min=1).double().log2().ceil().long()
    of_pair = power.repeat_interleave(sizes.square())
    source, target = graph.edge_index
    out = torch.zeros(of_pair.shape[0], dtype=torch.float64, device=graph.device)
    for exponent in power.unique().tolist():
        chosen, width = power == exponent, 2**exponent
        place = chosen.cumsum(0) - 1
        here = chosen[home[source]]
        of_edge = home[source[here]]
        query, key = target[here] - ptr[of_edge], source[here] - ptr[of_edge]
        adjacent = out.new_zeros(int(chosen.sum()), width, width)
        adjacent[place[of_edge], query, key] = 1
        if not directed:
            adjacent = torch.maximum(adjacent, adjacent.mT)
        node = torch.arange(width, device=graph.device) < sizes[chosen][:, None]
        step = adjacent / adjacent.sum(-1, keepdim=True).clamp(min=1)
        out[of_pair == exponent] = landing(step)[node[:, :, None] & node[:, None, :]]
    return out


def _checked_bins(bins: Any) -> int | tuple[float, ...]:
    if isinstance(bins, int):
        return check.integer("bins", bins, minimum=2, maximum=MOST_HALVES)
    if isinstance(bins, str) or not isinstance(bins, Sequence):
        raise TypeError(f"bins must be an int or a sequence of floats, got {shown(bins)}")
    bins = check.items("bins", bins, "an int or a sequence of floats")
    edges = tuple(float(check.finite(f"bins[{index}]", edge)) for index, edge in enumerate(bins))
    if any(low >= high for low, high in pairwise((0.0, *edges, 1.0))):
        raise ValueError(f"bins must rise between 0 and 1, got {cut(str(list(edges)))}")
    return edges
