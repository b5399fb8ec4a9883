"""Labels by dependency: whether the key is the head of the query or a dependent of it, and under which relation."""

from __future__ import annotations

from collections.abc import Sequence

from relgraph.labelers.graph.edge_type import EdgeType, type_names

UD_RELATIONS = (
    *("acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "clf", "compound", "conj", "cop"),
    *("csubj", "dep", "det", "discourse", "dislocated", "expl", "fixed", "flat", "goeswith", "iobj", "list", "mark"),
    *("nmod", "nsubj", "nummod", "obj", "obl", "orphan", "parataxis", "punct", "reparandum", "root", "vocative"),
    "xcomp",
)
"""The 37 universal relations of Universal Dependencies, version 2, in the order of the alphabet."""


def dependency_relations(
    relations: int | Sequence[str] = UD_RELATIONS,
    *,
    self_loop: bool = False,
    default: str | None = "unlabeled",
) -> EdgeType:
    """A labeler of dependency trees: ``"obj"`` where the key is the query's head, ``"obj⁻¹"`` where it is a dependent.

    It is :class:`~relgraph.EdgeType` with inverses, for graphs whose edges lead from head to dependent and carry the
    relation as their type, as :func:`relgraph.interop.conllu.read` makes them: the dependent receives, and looks at its
    head under the relation's own name.

    Source: Universal Dependencies, version 2, for the relations.

    Args:
        relations: the names of the relations in the order of their numbers, or how many there are.
        self_loop: whether every word also looks at itself, under the label ``self``.
        default: what pairs without an edge do: ``"unlabeled"``, they attend without a label, so that ``|`` can fill in
            another; ``"none"``, they carry the label ``none``; None, they do not attend.

    Returns:
        A labeler of edges. Ids count the relations in their order, then their inverses, then ``self`` and ``none``.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: an unknown choice, names that are not different, or more than 2^20 of them.

    Example:
        >>> labeler = rg.dependency_relations(["nsubj", "obj"])
        >>> labeler
        EdgeType(('nsubj', 'obj'), inverse=True, default='unlabeled')
        >>> she_reads_books = rg.Graph.from_parents(torch.tensor([1, -1, 1]), edge_type=torch.tensor([0, 0, 1]))
        >>> [[labeler.names[i] if i >= 0 else "" for i in row] for row in labeler(she_reads_books).to_dense()[0][0]]
        [['', 'nsubj', ''], ['nsubj⁻¹', '', 'obj⁻¹'], ['', 'obj', '']]
    """
    return EdgeType(type_names("relations", relations), inverse=True, self_loop=self_loop, default=default)
