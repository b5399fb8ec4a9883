"""The input of graph labelers: directed edges and nodes, each with an optional type; or a packed batch of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief, cut, shown
from relgraph.arguments.hints import in_place_of_graph
from relgraph.labels.borders import check_ptr, graph_of
from relgraph.labels.ragged import block_positions, block_starts

_FIELDS = ("edge_index", "num_nodes", "edge_type", "node_type", "ptr", "edge_types", "node_types")


@final
class Graph:
    """A directed graph, or a packed batch of graphs: immutable data, the input of every graph labeler.

    Direction: ``edge_index[:, e] = (source, target)`` as in PyG's ``MessagePassing``. The source is the key j, and the
    target is the query i that attends to it. In a tree, edges lead from parent to child. A sequence labeler that is
    called with a graph counts distances in the order of its nodes. Graphs compare by value.

    Source: PyG, for ``edge_index``.

    Args:
        edge_index: ``[2, E]``, integer in ``[0, N)``, one (source, target) per column.
        num_nodes: N, of all graphs together. Left out, it follows from ``node_type`` or ``ptr``; without these it is
            the largest number in ``edge_index`` plus one, which misses last nodes without edges, as in PyG.
        edge_type: ``[E]``, integer from 0, or None if edges have no types.
        node_type: ``[N]``, integer from 0 (-1 for no type), or None.
        ptr: ``[G+1]``, integer, borders of a packed batch: graph g owns nodes ``ptr[g]:ptr[g+1]``. No edge may leave
            its graph.
        edge_types: the names of the edge types by number, or None. Readers give them, and labelers that name types
            raise ValueError if they have other names.
        node_types: the same for node types.

    Raises:
        ValueError: wrong shapes, dtypes or devices, ends or types out of range, names without types or for too few of
            them, or an edge across graphs.

    Example:
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))  # 0 → 1 and 1 → 2
        >>> graph
        Graph(num_nodes=3, num_edges=2, edge_type=<tensor [2]>)
        >>> rg.EdgeType(["single", "double"])(graph).to_dense()[0]  # query 1 looks at key 0, query 2 at key 1
        tensor([[[-1, -1, -1],
                 [ 0, -1, -1],
                 [-1,  1, -1]]])
        >>> rg.Graph.batch([graph, graph]).ptr
        tensor([0, 3, 6])
    """

    edge_index: Tensor
    num_nodes: int
    edge_type: Tensor | None
    node_type: Tensor | None
    ptr: Tensor | None
    edge_types: tuple[str, ...] | None
    node_types: tuple[str, ...] | None

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int | None = None,
        *,
        edge_type: Tensor | None = None,
        node_type: Tensor | None = None,
        ptr: Tensor | None = None,
        edge_types: Sequence[str] | None = None,
        node_types: Sequence[str] | None = None,
    ) -> None:
        edge_index = check.integer_tensor("edge_index", edge_index, dim=2).to(torch.int64)
        if edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must have shape [2, E], got {list(edge_index.shape)}")
        if num_nodes is None:
            num_nodes = _inferred_nodes(edge_index, node_type, ptr)
        check.length("num_nodes", num_nodes, most=check.MOST_IDS)
        edge_type = _checked_types("edge_type", edge_type, edge_index.shape[1], least=0)
        node_type = _checked_types("node_type", node_type, num_nodes, least=-1)
        ptr = None if ptr is None else check_ptr("ptr", ptr, num_nodes)
        check.same_device(edge_index=edge_index, edge_type=edge_type, node_type=node_type, ptr=ptr)
        _check_ends(edge_index, num_nodes, ptr)
        names = _checked_names("edge_type", edge_types, edge_type), _checked_names("node_type", node_types, node_type)
        for name, value in zip(_FIELDS, (edge_index, num_nodes, edge_type, node_type, ptr, *names), strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Graph is immutable: cannot set {name}")

    @classmethod
    def from_parents(
        cls,
        parents: Tensor,
        *,
        edge_type: Tensor | None = None,
        node_type: Tensor | None = None,
        ptr: Tensor | None = None,
    ) -> Self:
        """Make a tree (or a forest, or a packed batch of them) from each node's parent.

        Edges lead from parent to child.

        Args:
            parents: ``[N]``, integer, the parent of every node, -1 for a root.
            edge_type: ``[N]``, integer, the type of the edge from each node's parent to it; ignored for a root.
            node_type: ``[N]``, integer from 0 (-1 for no type), or None.
            ptr: ``[G+1]``, integer, borders of a packed batch; parents are numbered through the batch.

        Returns:
            The graph, with one edge per node that has a parent.

        Raises:
            ValueError: a parent or type out of range, a parent in another graph, a cycle, or wrong shapes.

        Example:
            >>> rg.Graph.from_parents(torch.tensor([1, -1, 1])).edge_index
            tensor([[1, 1],
                    [0, 2]])
        """
        parents = check.integer_tensor("parents", parents, dim=1).to(torch.int64)
        check.data("parents", parents)
        count = parents.shape[0]
        check.id_range("parents", parents, count)
        edge_type = _checked_types("edge_type", edge_type, count, least=None)
        child = (parents >= 0).nonzero()[:, 0]
        edge_type = None if edge_type is None else edge_type[child]
        graph = cls(torch.stack([parents[child], child]), count, edge_type=edge_type, node_type=node_type, ptr=ptr)
        graph.parents(forest=True)
        return graph

    @classmethod
    def batch(cls, graphs: Iterable[Graph]) -> Self:
        """Join graphs into one packed batch; batches among them are split into their graphs.

        Types keep their numbers, so a number must mean the same type in every graph; names, if all graphs have them,
        are compared. For networkx, read all graphs with one call of
        :func:`~relgraph.interop.networkx.from_networkx`.

        Args:
            graphs: one or more, on one device.

        Returns:
            A graph of all their nodes in order, with ``ptr``.

        Raises:
            ValueError: no graphs, several devices, types that only some graphs have, or other names for them.

        Example:
            >>> pair = rg.Graph(torch.tensor([[0], [1]]), 2)
            >>> batch = rg.Graph.batch([pair, pair])
            >>> batch.edge_index, batch.ptr
            (tensor([[0, 2],
                    [1, 3]]), tensor([0, 2, 4]))
        """
        if not isinstance(graphs, Iterable):
            raise TypeError(f"graphs must be an iterable of Graphs, got {in_place_of_graph(graphs)}")
        graphs = check.items("graphs", graphs, "an iterable of Graphs")
        if not graphs:
            raise ValueError("graphs must hold at least one Graph, got none")
        for index, graph in enumerate(graphs):
            if not isinstance(graph, Graph):
                raise TypeError(f"graphs[{index}] must be a Graph, got {in_place_of_graph(graph)}")
        check.same_device(**{f"graphs[{index}]": graph.edge_index for index, graph in enumerate(graphs)})
        *starts, count = accumulate((graph.num_nodes for graph in graphs), initial=0)
        placed = list(zip(graphs, starts, strict=True))
        borders = [graph.borders()[1:] + start for graph, start in placed]
        return cls(
            torch.cat([graph.edge_index + start for graph, start in placed], 1),
            count,
            edge_type=_joined_types("edge_type", [graph.edge_type for graph in graphs]),
            node_type=_joined_types("node_type", [graph.node_type for graph in graphs]),
            ptr=torch.cat([graphs[0].borders()[:1], *borders]),
            **{name: _joined_names(name, graphs) for name in ("edge_types", "node_types")},
        )

    @property
    def num_edges(self) -> int:
        """E, how many edges there are."""
        return self.edge_index.shape[1]

    @property
    def num_graphs(self) -> int:
        """G, how many graphs there are; 1 without ``ptr``."""
        return 1 if self.ptr is None else self.ptr.shape[0] - 1

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.edge_index.device

    def borders(self) -> Tensor:
        """``ptr``, or the borders of the single graph.

        Returns:
            ``[G+1]``, int64.
        """
        return torch.tensor([0, self.num_nodes], device=self.device) if self.ptr is None else self.ptr

    def graph_of(self) -> Tensor:
        """Which graph each node belongs to.

        Returns:
            ``[N]``, int64.

        Example:
            >>> rg.Graph(torch.zeros(2, 0).long(), 3, ptr=torch.tensor([0, 2, 3])).graph_of()
            tensor([0, 0, 1])
        """
        return graph_of(self.borders(), self.num_nodes)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Query and key of every pair within a graph: graph by graph, query by query, key by key.

        Returns:
            ``(query, key)``, node numbers, int64 ``[sum of n_g²]`` each.

        Raises:
            ValueError: more than 2^32 pairs, or a graph on the device ``meta``.
            NotImplementedError: under ``torch.compile`` or ``torch.export``, because the number depends on data.

        Example:
            >>> rg.Graph(torch.zeros(2, 0).long(), 3, ptr=torch.tensor([0, 2, 3])).pairs()
            (tensor([0, 0, 1, 1, 2]), tensor([0, 1, 0, 1, 2]))
        """
        check.outside_compiled_code("Graph.pairs")
        check_pairs(self)
        ptr = self.borders()
        starts = block_starts(ptr, ptr)
        _, query, key = block_positions(ptr, ptr, starts, int(starts[-1]))
        return query, key

    def with_edges(self, edge_index: Tensor, edge_type: Tensor | None = None) -> Self:
        """The same nodes, node types and borders with other edges.

        Args:
            edge_index: ``[2, E]``, integer in ``[0, N)``, one (source, target) per column.
            edge_type: ``[E]``, integer from 0, whose names are those of this graph; None for edges without types, even
                if this graph has types.

        Returns:
            A new graph.

        Raises:
            TypeError, ValueError: as for :class:`Graph`.

        Example:
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
            >>> graph.with_edges(graph.edge_index.flip(0)).edge_index  # every edge the other way
            tensor([[1, 2],
                    [0, 1]])
        """
        rest: dict[str, Any] = {name: getattr(self, name) for name in ("node_type", "ptr", "node_types")}
        names = None if edge_type is None else self.edge_types
        return type(self)(edge_index, self.num_nodes, edge_type=edge_type, edge_types=names, **rest)

    def of_type(self, edge_type: int) -> Self:
        """Keep only the edges of one type; the new graph has no edge types.

        Args:
            edge_type: which edges to keep.

        Returns:
            A new graph, its ``edge_type`` None.

        Raises:
            ValueError: a negative type, or a graph without edge types.

        Example:
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
            >>> graph.of_type(1).edge_index.tolist()
            [[1], [2]]
        """
        check.integer("edge_type", edge_type, minimum=0)
        if self.edge_type is None:
            raise ValueError(f"graph must have edge_type to select edges of type {edge_type}, got None")
        check.data("graph", self.edge_type)
        return self.with_edges(self.edge_index[:, self.edge_type == edge_type])

    def parents(self, *, forest: bool = False) -> Tensor:
        """The parent of every node of a tree whose edges lead from parent to child; -1 for a root.

        Args:
            forest: whether a graph may have several roots.

        Returns:
            ``[N]``, int64.

        Raises:
            ValueError: a node with two parents, a cycle, or several roots in one graph; a graph on the device ``meta``.
            NotImplementedError: under ``torch.compile`` or ``torch.export``.

        Example:
            >>> rg.Graph(torch.tensor([[1, 1], [0, 2]]), 3).parents()
            tensor([ 1, -1,  1])
        """
        check.outside_compiled_code("Graph.parents")
        check.boolean("forest", forest)
        check.data("graph", self.edge_index)
        source, target = self.edge_index
        count = torch.bincount(target, minlength=self.num_nodes)
        if bool((count > 1).any()):
            node = int((count > 1).nonzero()[0])
            first, second, *_ = source[target == node].tolist()
            twice = f": the edge {first} -> {node} is there twice" if first == second else ""
            raise ValueError(f"graph must be a tree, got node {node} with the parents {first} and {second}{twice}")
        parents = torch.full((self.num_nodes,), -1, device=self.device).scatter(0, target, source)  # [N]
        here = torch.arange(self.num_nodes, device=self.device)
        above = torch.where(parents < 0, here, parents)
        for _ in range(self.num_nodes.bit_length()):  # each round looks twice as far up
            above = above[above]
        cyclic = parents[above] >= 0
        if bool(cyclic.any()):
            raise ValueError(f"graph must be a tree, got a cycle through node {int(above[cyclic][0])}")
        roots = (parents < 0).nonzero()[:, 0]
        home = self.graph_of()[roots]
        twice = (home[1:] == home[:-1]).nonzero()
        if not forest and twice.numel():
            at = int(twice[0])
            first, second = int(roots[at]), int(roots[at + 1])
            raise ValueError(f"graph must be a tree, got the roots {first} and {second} in graph {int(home[at])}")
        return parents

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """This graph with its tensors on ``device``.

        Args:
            device: as in ``torch.Tensor.to``.
            non_blocking: whether copies from pinned memory may overlap with other work.

        Returns:
            A new graph.

        Raises:
            ValueError: a device that torch does not know or cannot use here.
        """
        where = check.device("device", device)
        check.boolean("non_blocking", non_blocking)
        moved = object.__new__(type(self))
        for name in _FIELDS:
            value = getattr(self, name)
            value = value.to(where, non_blocking=non_blocking) if isinstance(value, Tensor) else value
            object.__setattr__(moved, name, value)
        return moved

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in _FIELDS)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        graphs = "" if self.ptr is None else f", num_graphs={self.num_graphs}"
        given = {name: getattr(self, name) for name in ("edge_type", "node_type")}
        types = "".join(f", {name}={brief(value)}" for name, value in given.items() if value is not None)
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}{types}{graphs})"


def check_graph(graph: Any) -> Graph:
    """Return ``graph``; raise TypeError unless it is a Graph."""
    if not isinstance(graph, Graph):
        hint = "; call a layer whose labeler reads graphs with labels=graph" if isinstance(graph, int) else ""
        if isinstance(graph, Tensor):
            hint = ": make it a Graph with rg.Graph(edge_index, num_nodes)"
        raise TypeError(f"graph must be a Graph, got {in_place_of_graph(graph)}{hint}")
    return graph


def check_pairs(graph: Graph) -> Graph:
    """Return ``graph``; raise ValueError unless all pairs within its graphs can be written out."""
    check.data("graph", graph.edge_index, graph.ptr)
    pairs = graph.num_nodes**2
    if graph.ptr is not None and pairs > check.MOST_PAIRS:  # sizes are read only if they matter
        pairs = sum(size**2 for size in graph.ptr.diff().tolist())
    check.most_pairs("graph", pairs)
    return graph


def check_only_graph(graph: Graph, **others: Any) -> Graph:
    """Return ``graph``; raise ValueError if another argument is given too, which the graph already defines."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} must not be given with a Graph, which has its own borders, got {shown(value)}")
    return graph


def _inferred_nodes(edge_index: Tensor, node_type: Any, ptr: Any) -> int:
    """The number of nodes where nobody gave it."""
    if node_type is not None:
        return check.integer_tensor("node_type", node_type, dim=1).shape[0]
    found = edge_index if ptr is None else check.integer_tensor("ptr", ptr, dim=1)
    check.outside_compiled_code("Graph without num_nodes")
    check.data("ptr" if ptr is not None else "edge_index", found)
    return int(found.max()) + (ptr is None) if found.numel() else 0


def _checked_types(name: str, types: Any, count: int, *, least: int | None) -> Tensor | None:
    """``count`` types as int64, none below ``least``; or None."""
    if types is None:
        return None
    types = check.integer_tensor(name, types, dim=1).to(torch.int64)
    if types.shape[0] != count:
        raise ValueError(f"{name} must have shape [{count}], got {list(types.shape)}")
    if least is not None and count and check.can_look_at_data(types) and int(types.min()) < least:
        raise ValueError(f"{name} must be at least {least}, got {int(types.min())}")
    return types


def _check_ends(edge_index: Tensor, num_nodes: int, ptr: Tensor | None) -> None:
    check.unmapped("edge_index", edge_index)
    if edge_index.shape[1] == 0 or not check.can_look_at_data(edge_index, ptr):
        return
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if bool(outside.any()):
        e = int(outside.any(0).nonzero()[0])
        source, target = edge_index[:, e].tolist()
        ends = " and ".join(name for name, out in zip(("source", "target"), outside[:, e], strict=True) if out)
        raise ValueError(
            f"edge_index must lie in [0, {num_nodes}), got edge {e}: {source} -> {target}, out of range at its {ends}"
        )
    if ptr is not None:
        home = graph_of(ptr, num_nodes)[edge_index]
        across = (home[0] != home[1]).nonzero()
        if across.numel():
            e = int(across[0])
            source, target = edge_index[:, e].tolist()
            raise ValueError(f"edge_index must not cross from graph to graph, got edge {e}: {source} -> {target}")


def _joined_types(name: str, types: list[Tensor | None]) -> Tensor | None:
    given = [t for t in types if t is not None]
    if not given:
        return None
    if len(given) != len(types):
        raise ValueError(f"{name} must be given for all graphs or for none, got {len(given)} of {len(types)}")
    return torch.cat(given)


def _checked_names(name: str, names: Any, types: Tensor | None) -> tuple[str, ...] | None:
    """The names of the types called ``name`` as a tuple; or None."""
    if names is None:
        return None
    if not isinstance(names, (tuple, list)) or not all(isinstance(one, str) for one in names):
        raise TypeError(f"{name}s must be a sequence of strings or None, got {shown(names)}")
    if len({*names}) < len(names):
        raise ValueError(f"{name}s must be different names, got {shown(names)}")
    if types is None:
        raise ValueError(f"{name}s must be left out without {name}, whose numbers they name, got {shown(names)}")
    check.id_range(name, types, len(names))
    return tuple(names)


def _joined_names(name: str, graphs: Sequence[Graph]) -> tuple[str, ...] | None:
    """The names of the types of all graphs, if all have them."""
    names: list[Any] = [getattr(graph, name) for graph in graphs]
    longest = max((one for one in names if one is not None), key=len, default=None)
    for index, one in enumerate(names):
        check_type_names(f"graphs[{index}].{name}", one or (), f"{name} of the other graphs", longest)
    return None if None in names else longest


def check_type_names(argument: str, types: Sequence[Any], of: str, names: Sequence[str] | None) -> None:
    """Raise ValueError if ``types`` have other names for the same numbers than ``names``, which errors call ``of``."""
    if names is None or [*types] == [str(number) for number in range(len(types))]:  # counted types have no names
        return
    for number, (wanted, got) in enumerate(zip(names, types, strict=False)):
        if wanted != got:
            raise ValueError(
                f"{argument} must be the {of}, {cut(str([*names]))}, got {cut(str([*types]))}: "
                f"type {number} is {wanted!r} there and {got!r} here"
            )


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a == b if type(a) is type(b) else False
    return a.device == b.device and torch.equal(a, b)
