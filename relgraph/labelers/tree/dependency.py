"""Labels of dependency trees: whether the key is the head of the query or a dependent, and by which relation."""

from __future__ import annotations

from collections.abc import Sequence

from relgraph.labelers.graph.edge_type import EdgeType, type_names

UD_RELATIONS = (
    *("acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "clf", "compound", "conj", "cop"),
    *("csubj", "dep", "det", "discourse", "dislocated", "expl", "fixed", "flat", "goeswith", "iobj", "list", "mark"),
    *("nmod", "nsubj", "nummod", "obj", "obl", "orphan", "parataxis", "punct", "reparandum", "root", "vocative"),
    "xcomp",
)
"""The 37 universal relations of Universal Dependencies, version 2, in alphabetical order."""


def dependency_relations(  # noqa: D417
    relations: int | Sequence[str] = UD_RELATIONS,
    *,
    self_loop: bool = False,
    attend: str = "all",
    default: str = "unlabeled",
) -> EdgeType:
    """Make a labeler of dependency trees: ``"obj"`` if the key is the query's head, ``"obj⁻¹"`` if a dependent.

    This is :class:`~relgraph.EdgeType` with inverses. It reads graphs whose edges lead from head to dependent with the
    relation as their type, as :func:`relgraph.interop.conllu.read` makes them: a dependent looks at its head under the
    relation's own name.

    Source: Universal Dependencies, version 2, for the relations.

    Args:
        relations: the names of the relations in the order of their numbers, or how many there are.
        self_loop: this and all further arguments as in :class:`~relgraph.EdgeType`, but all pairs attend by default.

    Returns:
        A labeler of edges. Ids count the relations in their order, then their inverses, then ``self`` and ``none``.

    Raises:
        TypeError, ValueError: a wrong type, an unknown choice, repeated names, or more than 2^20 of them.

    Example:
        >>> labeler = rg.labelers.dependency_relations(["nsubj", "obj"])
        >>> labeler
        EdgeType(('nsubj', 'obj'), inverse=True, attend='all')
        >>> she_reads_books = rg.Graph.from_parents(torch.tensor([1, -1, 1]), edge_type=torch.tensor([0, 0, 1]))
        >>> [[labeler.names[i] if i >= 0 else "" for i in row] for row in labeler(she_reads_books).to_dense()[0][0]]
        [['', 'nsubj', ''], ['nsubj⁻¹', '', 'obj⁻¹'], ['', 'obj', '']]
    """
    names = type_names("relations", relations)
    return EdgeType(names, inverse=True, self_loop=self_loop, attend=attend, default=default)
