"""What nodes, types and labels are called in a networkx graph: the names given, or their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from relgraph import _check
from relgraph._brief import cut
from relgraph.interop._networkx_attributes import distinct


def named_nodes(count: int, nodes: Sequence[Hashable] | None) -> tuple[Hashable, ...]:
    """The nodes by name; by number without names."""
    if nodes is None:
        return tuple(range(count))
    nodes = distinct("nodes", nodes, of="nodes", most=count)
    if None in nodes:
        raise ValueError("nodes must not be None, which networkx takes for no node, got one that is")
    if len(nodes) != count:
        raise ValueError(f"nodes must be one for each of the {count} nodes of the graph, got {len(nodes)}")
    return nodes


def names_of_types(name: str, ids: Tensor | None, names: Sequence[Hashable] | None) -> list[Any] | None:
    """The name of every id; the ids themselves without names."""
    if ids is None:
        if names is not None:
            raise ValueError(f"{name} must be left out for a graph without such types, got {cut(repr(names))}")
        return None
    listed = ids.tolist()
    if names is None:
        return [None if at < 0 else at for at in listed]
    names = distinct(name, names)
    if max(listed, default=-1) >= len(names):
        raise ValueError(f"{name} must have a name for each of the {max(listed) + 1} types, got {len(names)}")
    return [None if at < 0 else names[at] for at in listed]


def names_of_parts(parts: Sequence[Any], names: Sequence[Any] | None) -> Sequence[Sequence[str]]:
    """A name for each id of each part."""
    if names is None:
        return [[str(label) for label in range(part.num_labels)] for part in parts]
    what = "strings, as a labeler's are, for a sum one sequence a part"
    named = [names] if len(parts) == 1 else _check.items("names", names, what)
    listed = [_check.items("names", of, what) for of in named]
    for name in (name for of in listed for name in of):
        if not isinstance(name, str):
            raise TypeError(f"names must be {what}, got {type(name).__name__}")
    wanted = [part.num_labels for part in parts]
    if [len(of) for of in listed] != wanted:
        raise ValueError(f"names must be {wanted} names, as a labeler's are, got {cut(repr(names))}")
    return listed
