"""What the pairs do that a tree labeler says nothing of: carry a label of their own, none, or not attend."""

from __future__ import annotations

from torch import Tensor

from relgraph import _check
from relgraph.graphs import Graph
from relgraph.labelers.written import label_pairs
from relgraph.labels import BlockLabels, DenseLabels

DEFAULTS = ("other", "unlabeled")


def check_default(default: str | None) -> str | None:
    """``default`` itself when it is one of the choices, or None."""
    return None if default is None else _check.choice("default", default, DEFAULTS)


def with_other(names: tuple[str, ...], default: str | None) -> tuple[str, ...]:
    """The names, and that of the rest where it has a label."""
    return (*names, "other") if default == "other" else names


def written_with_rest(graph: Graph, ids: Tensor, num_labels: int, default: str | None) -> DenseLabels | BlockLabels:
    """Labels from one id a pair, in the order of :meth:`Graph.pairs`, where -1 stands for the rest."""
    rest = ids < 0
    if default == "other":
        ids = ids.masked_fill(rest, num_labels - 1)
    return label_pairs(graph, ids, num_labels, attend=~rest if default is None else None)
