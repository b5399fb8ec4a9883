"""Labels by relations between the tokens of a program: syntax, control flow and data flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from relgraph.arguments import check
from relgraph.graphs import Graph, check_graph, check_type_names
from relgraph.labelers.base import GraphLabeler
from relgraph.labelers.graph.edge_type import check_others, edge_labels, why_others_labeled
from relgraph.labels import EdgeLabels
from relgraph.labels.edge import DUPLICATES

GREAT_TYPES = (
    *("CFG_NEXT", "LAST_READ", "LAST_WRITE", "COMPUTED_FROM", "RETURNS_TO", "FORMAL_ARG_NAME", "FIELD", "SYNTAX"),
    *("NEXT_SYNTAX", "LAST_LEXICAL_USE", "CALLS"),
)
"""The 11 edge types of GREAT's program graphs, in the order of its data (Hellendoorn et al. 2020)."""

NEXT_USE = len(GREAT_TYPES)  # an edge type of Python source that GREAT does not have


@final
@dataclass(frozen=True, repr=False)
class CodeRelations(GraphLabeler):
    """GREAT's labels of a program's graph: id 2t for an edge of type t, and 2t + 1 for the same edge the other way.

    For id 2t the query is the edge's target and the key its source, as everywhere in relgraph; for id 2t + 1 it is the
    other way round. GREAT's released code takes the *source* as the query of id 2t: to get its ids, pass
    ``graph.with_edges(graph.edge_index.flip(0), graph.edge_type)``.

    Types count from 0, as in :data:`~relgraph.labelers.GREAT_TYPES`. The files of GREAT's data count from 1 (``CALLS``
    is 11 there): map them by name, or subtract 1. Edges of type 11, ``NEXT_USE`` of ``relgraph.interop.python``, are
    left out. If a pair has several relations, their terms add up, as in GREAT. Such labels combine with distances by
    ``+`` or ``*``; ``|`` needs one relation per pair: ``CodeRelations(duplicates="first") | ClippedDistance(8)``.

    Source: Hellendoorn et al. 2020 (GREAT).

    Args:
        attend: which pairs attend: ``"all"``, or ``"edges"``, those with an edge (edges-only attention).
        default: what pairs without an edge carry if all attend: ``"unlabeled"``, no label, or ``"none"``, the label
            ``none``.
        duplicates: what to do with several edges of one pair if all pairs attend: ``"sum"`` adds up
            the terms of all, ``"first"`` uses only the first, ``"error"`` raises.

    Raises:
        TypeError, ValueError: an unknown choice.

    Example:
        >>> labeler = rg.CodeRelations()
        >>> labeler.names[2:5]
        ('LAST_READ', 'LAST_READ⁻¹', 'LAST_WRITE')
        >>> graph = rg.Graph(torch.tensor([[0], [2]]), 3, edge_type=torch.tensor([2]))
        >>> labeler(graph).to_dense()[0]
        tensor([[[-1, -1,  5],
                 [-1, -1, -1],
                 [ 4, -1, -1]]])
    """

    attend: str = "all"
    default: str = "unlabeled"
    duplicates: str = "sum"

    def __post_init__(self) -> None:
        check_others(self.attend, self.default)
        check.choice("duplicates", self.duplicates, DUPLICATES)

    @property
    def num_labels(self) -> int:
        """22, and one more for ``none``."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """``"LAST_READ"``, ``"LAST_READ⁻¹"`` and so on, and ``"none"``."""
        both = tuple(name + way for name in GREAT_TYPES for way in ("", "⁻¹"))
        return (*both, "none") if self.default == "none" else both

    def _why_never_unlabeled(self) -> str | None:
        return why_others_labeled(self.attend, self.default)

    def __call__(self, graph: Graph) -> EdgeLabels:
        types = check_graph(graph).edge_type
        if types is None:
            raise ValueError(f"graph must have edge_type, as there are {len(GREAT_TYPES)} types, got None")
        check.data("graph", types)
        check_type_names("types", GREAT_TYPES, "edge_types of the graph", graph.edge_types)
        if types.numel() and check.can_look_at_data(types) and int(types.max()) > NEXT_USE:
            low, high = (int(end) for end in torch.aminmax(types))
            raise ValueError(
                f"edge_type must lie in [0, {NEXT_USE + 1}): the {len(GREAT_TYPES)} of GREAT_TYPES, counted from 0, "
                f"and NEXT_USE; got values from {low} to {high} (GREAT's files count from 1)"
            )
        known = types < NEXT_USE
        edges, types = graph.edge_index[:, known], types[known]
        # An edge is followed by its reverse, so that "first" follows the order of the graph's edges.
        both = torch.stack([edges, edges.flip(0)], 2).flatten(1)
        return edge_labels(self, graph, both, torch.stack([2 * types, 2 * types + 1], 1).flatten())
