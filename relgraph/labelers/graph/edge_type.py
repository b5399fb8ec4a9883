"""Labels by the type of the edge between two nodes, in either direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import cut, shown
from relgraph.arguments.hints import has_graph, in_place_of_types
from relgraph.graphs import Graph, check_graph, check_type_names
from relgraph.labelers.base import GraphLabeler
from relgraph.labels import UNLABELED, EdgeLabels
from relgraph.labels.edge import DUPLICATES

ATTEND, DEFAULTS = ("edges", "all"), ("unlabeled", "none")


@final
@dataclass(frozen=True, init=False, repr=False)
class EdgeType(GraphLabeler):
    """One label for each type of edge; inverses, self-loops and pairs without an edge can have their own labels.

    Ids count types first, then their inverses, then ``self``, then ``none``. The query of an edge is its target and the
    key is its source; the inverse of an edge lets the source look at the target. Edges stay a list, so nothing has n²
    entries.

    Args:
        types: the names of the edge types in the order of their numbers; or how many there are, then named ``"0"``,
            ``"1"`` and so on. A graph without types has one.
        inverse: whether every edge also goes the other way, with its own label.
        self_loop: whether every node also looks at itself, with the label ``self``. A node with a loop in the graph
            then has two edges to itself, or three with ``inverse``. In edges-only attention each attends separately;
            if all pairs attend, ``duplicates`` applies, and ``"first"`` keeps the loop's own type.
        attend: which pairs attend: ``"edges"``, those with an edge (edges-only attention), or ``"all"``.
        default: what pairs without an edge carry if all attend: ``"unlabeled"``, no label, so that ``|`` can add one;
            or ``"none"``, the label ``none``.
        duplicates: what to do with several edges of one pair if all pairs attend: ``"error"``,
            ``"first"`` or ``"sum"`` (see :class:`~relgraph.EdgeLabels`). Edges come before inverses, and inverses
            before ``self``, so an inverse is never first between two nodes with an edge each way.

    Raises:
        ValueError: a negative number of types or more than 2^20, an unknown choice, or repeated names.

    Example:
        >>> labeler = rg.EdgeType(["bond"], inverse=True, self_loop=True)
        >>> labeler.names
        ('bond', 'bond⁻¹', 'self')
        >>> labeler(rg.Graph(torch.tensor([[0], [1]]), 2)).to_dense()[0]
        tensor([[[2, 1],
                 [0, 2]]])
    """

    types: tuple[str, ...]
    inverse: bool
    self_loop: bool
    attend: str
    default: str
    duplicates: str

    def __init__(
        self,
        types: int | Sequence[str],
        *,
        inverse: bool = False,
        self_loop: bool = False,
        attend: str = "edges",
        default: str = "unlabeled",
        duplicates: str = "error",
    ) -> None:
        check_others(attend, default)
        check.boolean("inverse", inverse)
        check.boolean("self_loop", self_loop)
        check.choice("duplicates", duplicates, DUPLICATES)
        self._set(types=type_names("types", types), inverse=inverse, self_loop=self_loop)
        self._set(attend=attend, default=default, duplicates=duplicates)
        _ = self.names  # raises if one repeats

    @property
    def num_labels(self) -> int:
        """The types, twice with inverses, and one each for ``self`` and ``none``."""
        return len(self.types) * (1 + self.inverse) + self.self_loop + (self.default == "none")

    @property
    def names(self) -> tuple[str, ...]:
        """The types' names, ``"name⁻¹"`` for inverses, ``"self"`` and ``"none"``."""
        inverses = tuple(f"{name}⁻¹" for name in self.types) if self.inverse else ()
        names = (*self.types, *inverses, *["self"] * self.self_loop, *["none"] * (self.default == "none"))
        if len(set(names)) != len(names):
            raise ValueError(
                f"types must not be named like the labels that this labeler adds, got {cut(str(list(names)))}"
            )
        return names

    def _why_never_unlabeled(self) -> str | None:
        return why_others_labeled(self.attend, self.default)

    def __call__(self, graph: Graph) -> EdgeLabels:
        types = edge_types(check_graph(graph), self.types)
        index, ids = [graph.edge_index], [types]
        if self.inverse:
            index.append(graph.edge_index.flip(0))
            ids.append(types + len(self.types))
        if self.self_loop:
            nodes = torch.arange(graph.num_nodes, device=graph.device)
            index.append(torch.stack([nodes, nodes]))
            ids.append(torch.full_like(nodes, len(self.types) * (1 + self.inverse)))
        try:
            return edge_labels(self, graph, torch.cat(index, 1), torch.cat(ids))
        except ValueError as error:
            added, several = self._count_added(index, graph.num_nodes), str(error).startswith("duplicates")
            hint = ": make it EdgeType(..., duplicates='first') or 'sum'" if several else ""
            raise ValueError(f"{error}{added}{hint}") from None

    def _count_added(self, index: list[Tensor], nodes: int) -> str:
        """How many edges of the first pair with several were added, by each option."""
        pairs = [target * nodes + source for source, target in index]
        pair, count = torch.cat(pairs).unique(return_counts=True)
        several = pair[count > 1]
        options = ["inverse=True"] * self.inverse + ["self_loop=True"] * self.self_loop
        counts = [int((added == several[:1]).sum()) for added in pairs[1:]]
        added = zip(options, counts, strict=True)
        return "".join(f", {number} of them added by {option}" for option, number in added if number)


def edge_labels(labeler: Any, graph: Graph, edge_index: Tensor, ids: Tensor) -> EdgeLabels:
    """Labels of listed edges, with ``attend``, ``default`` and ``duplicates`` of a labeler."""
    others = UNLABELED if labeler.default == "unlabeled" else labeler.num_labels - 1
    default = others if labeler.attend == "all" else None
    options = {"q_len": graph.num_nodes, "default": default, "duplicates": labeler.duplicates, "ptr": graph.ptr}
    return EdgeLabels(edge_index, ids, labeler.num_labels, **options)


def check_others(attend: Any, default: Any) -> None:
    """Raise unless these say what pairs without an edge do."""
    check.choice("attend", attend, ATTEND)
    if check.choice("default", default, DEFAULTS) != "unlabeled" and attend == "edges":
        raise ValueError(f"default must be left out with attend='edges', as other pairs do not attend, got {default!r}")


def why_others_labeled(attend: str, default: str) -> str | None:
    """Answer :meth:`Labeler._why_never_unlabeled` for these options."""
    if attend == "edges":
        return "its other pairs do not attend: give it attend='all'"
    return None if default == "unlabeled" else f"its other pairs have the label {default!r}: give it no default"


def type_names(name: str, types: int | Sequence[str], *, kind: str = "edge") -> tuple[str, ...]:
    """Names of types, all different, from the names themselves or from how many there are."""
    if isinstance(types, int):
        return tuple(str(number) for number in range(check.length(name, types, most=check.MOST_LABELS)))
    if isinstance(types, str) or not isinstance(types, Sequence) or has_graph(types):
        raise TypeError(f"{name} must be an int or a sequence of strings, got {in_place_of_types(types, kind)}")
    names = check.items(name, types, "an int or a sequence of strings")
    if not all(isinstance(t, str) for t in names):
        raise TypeError(
            f"{name} must be an int or a sequence of strings, got {shown(types)}: pass [str(t) for t in {name}]"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"{name} must be different names, got {cut(str(list(names)))}")
    return names


def edge_types(graph: Graph, types: int | Sequence[str]) -> Tensor:
    """The type of every edge, ``[E]``, of these types; a graph without types has the one type 0."""
    count = types if isinstance(types, int) else len(types)
    if not isinstance(types, int):
        check_type_names("types", types, "edge_types of the graph", graph.edge_types)
    if graph.edge_type is None:
        if count != 1:
            raise ValueError(f"graph must have edge_type, as there are {count} types, got None")
        return torch.zeros(graph.num_edges, dtype=torch.int64, device=graph.device)
    check.id_range(f"edge_type of a graph with {count} types", graph.edge_type, count, minimum=0)
    return graph.edge_type
