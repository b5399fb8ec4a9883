"""Labels by random walk: how likely a walk that starts at the query is to land on the key."""

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
from relgraph.graphs import Graph, check_graph, check_pairs
from relgraph.labelers.base import Labeler
from relgraph.labelers.written import label_pairs
from relgraph.labels import BlockLabels, DenseLabels

LEAST = 1e-12
"""A probability below this counts as 0: it is what rounding leaves of one."""

SLACK = 1e-9
"""How far below an edge, in proportion, a probability still counts as on it: whatever the rounding, 1/2 is 1/2."""


MOST_HALVES = 1024
"""How many bins that halve there are at most: a float holds 1/2 no smaller than to the power of 1074."""


class WalkLabeler(Labeler):
    """A labeler that bins the probability of landing on a key; ids do not depend on what else is in the batch."""

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
        """One for probability 0, and one a bin."""
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
        """The probability for each pair from that of one step, both ``[B, n, n]``, float64."""

    @final
    def __call__(self, graph: Graph) -> DenseLabels | BlockLabels:
        """The labels of all pairs of a graph, or of each graph of a packed batch.

        Args:
            graph: whose edges are walked; their types do not matter, and parallel ones count once.

        Returns:
            Dense labels for a graph alone, ``[1, N, N]``; block labels for a packed batch.
            Id 0 is probability 0, the others are bins from the least probability up, called as in ``names``.

        Raises:
            TypeError: what is no Graph.
            ValueError: more than 2^32 pairs, which are written out.
        """
        landing = _of_every_pair(check_pairs(check_graph(graph)), self._landing, directed=self.directed)
        edges = torch.tensor(self.edges, dtype=torch.float64, device=graph.device) * (1 - SLACK)
        ids = torch.bucketize(landing, edges, right=True) + 1
        return label_pairs(graph, ids.masked_fill(landing < LEAST, 0), self.num_labels)


@final
@dataclass(frozen=True)
class RandomWalk(WalkLabeler):
    """One label for each range of the probability that a walk of ``step`` steps from the query ends at the key.

    A step goes to one of the neighbours, each as likely as the others: (D⁻¹A)^step, row i, column j. A walk from a node
    without neighbours ends nowhere. Several lengths add up: ``RandomWalk(1) + RandomWalk(2)``.

    Source: Ma et al. 2023 (GRIT), section 3.1; there the probabilities themselves are features, in no bins.

    Args:
        step: how many steps a walk has, from 0; after 0 it is still at the query.
        bins: how many labels there are, one for probability 0 and the others parted at 1/2, 1/4, 1/8, ...; or the
            edges to part them at, rising, between 0 and 1.
        directed: whether a query steps to its keys alone, against the edges from target to source; otherwise either
            way. Parallel edges count once.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a negative step, fewer than 2 bins or more than 1024, or edges that do not rise between 0 and 1.

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
@dataclass(frozen=True)
class PersonalizedPageRank(WalkLabeler):
    """One label for each range of the probability that a walk from the query, stopping at any time, stops at the key.

    Before each step the walk stops with probability ``alpha``: alpha · (I − (1 − alpha) D⁻¹A)⁻¹, row i, column j. Bins
    that halve are bins of equal width in its negative logarithm. A walk is lost if it must leave a node without
    neighbours, so such a node stops at itself with probability ``alpha``, and nowhere else.

    Source: Zügner et al. 2021 (Code Transformer), who space the bins by how often each occurs; here they are fixed, so
    that a graph has the same labels in every batch.

    Args:
        bins: how many labels there are, one for probability 0 and the others parted at 1/2, 1/4, 1/8, ...; or the
            edges to part them at, rising, between 0 and 1.
        alpha: how likely the walk is to stop before a step.
        directed: whether a query steps to its keys alone, against the edges from target to source; otherwise either
            way. Parallel edges count once.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: ``alpha`` not between 0 and 1, fewer than 2 bins or more than 1024, or edges that do not rise
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


def _of_every_pair(graph: Graph, landing: Callable[[Tensor], Tensor], *, directed: bool) -> Tensor:
    """What ``landing`` makes of each graph's steps, in the order of :meth:`Graph.pairs`.

    Graphs are padded to the next power of two, which depends on nothing but their own size, and those of one width are
    computed together.
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
