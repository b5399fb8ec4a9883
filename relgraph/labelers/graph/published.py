"""Labelers of published graph Transformers, as sums of labelers of this library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from relgraph.arguments import check
from relgraph.labelers.algebra import Sum
from relgraph.labelers.base import Labeler
from relgraph.labelers.graph.edge_type import EdgeType
from relgraph.labelers.graph.node_type import VirtualNode
from relgraph.labelers.graph.path_edges import PathEdges
from relgraph.labelers.graph.released import ReleasedGRPE
from relgraph.labelers.graph.reversed import Reversed
from relgraph.labelers.graph.shortest_path import ShortestPath
from relgraph.labels.edge import DUPLICATES

STARTS = ("key", "query")


def graphormer(
    clip: int,
    types: int | Sequence[str],
    *,
    max_path: int = 5,
    beyond: str = "clip",
    unreachable: str | None = "label",
    virtual_node: int | None = None,
    start: str = "key",
) -> Sum:
    """Graphormer's labels: the distance along edges, and the types of the edges on the way, hop by hop.

    ``ShortestPath(clip, directed=True) + PathEdges(max_path, types, directed=True)``. Paths lead from the key
    to the query along the edges.

    The paper adds only a bias, one scalar per head: use tables of the kind ``"bias"``, ``per_head=True``. Its edge term
    is the mean over a path's N edges of a product of the edge's features with the weights of that hop. Here each (hop
    n, length N, type t) has its own scalar, which is the paper's if it equals ``w_n(t) / N``. To tie the scalars in
    this way, use :class:`~relgraph.labelers.ShortestPathTypes` and a bank that computes the mean. The paper adds
    centrality to nodes, not to pairs, so it is not included here.

    The released code differs from the paper. Its paths lead from the query to the key, and pairs without a path or at
    20 hops or more do not attend: ``graphormer(19, types, beyond="unreachable", unreachable=None, start="query",
    virtual_node=t)``. It has one scalar for all pairs of the virtual node: give the three labels the same scalar. If
    there are several shortest paths, it may take another one.

    Source: Ying et al. 2021, sections 3.1.2 and 3.1.3, and the code released with it.

    Args:
        clip: the largest distance with its own label; unreachable pairs share another label.
        types: the names of the edge types, or how many there are.
        max_path: how many edges of a path count, from the query on.
        beyond: what pairs farther than ``clip`` do, as in :class:`~relgraph.ShortestPath`: ``"clip"``,
            ``"label"`` or ``"unreachable"``.
        unreachable: what pairs without a path do, as in :class:`~relgraph.ShortestPath`: ``"label"``, ``"unlabeled"``
            or None.
        virtual_node: the node type of virtual nodes. Their pairs always attend and have the labels of
            :class:`~relgraph.VirtualNode`, whose ids come before those of distances.
        start: where paths begin, ``"key"`` or ``"query"``; their edges lead from there to the other end.

    Returns:
        A labeler of a sum of ``1 + max_path`` parts, distances named ``"0"`` to ``f">={clip}"`` and
        ``"unreachable"``, then for each hop ``"hop 1 of 2: single"`` and so on.

    Raises:
        TypeError, ValueError: a wrong type, sizes out of range, an unknown choice, or repeated names.

    Example:
        >>> labeler = rg.labelers.graphormer(20, ["single", "double"], max_path=2)
        >>> labeler.num_labels
        (22, 4, 2)
        >>> labeler.names[2]
        ('hop 2 of >=2: single', 'hop 2 of >=2: double')
        >>> tables = rg.RelationTables(labeler.num_labels, 8, heads=4, kinds=("bias",), per_head=True)
        >>> [list(table.shape) for table in tables()["bias_table"]]
        [[4, 22], [4, 4], [4, 2]]
    """
    check.choice("start", start, STARTS)
    distance: Labeler = ShortestPath(clip, directed=True, beyond=beyond, unreachable=unreachable)
    edges: Labeler = PathEdges(max_path, types, directed=True)
    if start == "query":
        distance, edges = Reversed(distance), Reversed(edges)
    if virtual_node is not None:
        check.integer("virtual_node", virtual_node, minimum=0)
        distance = VirtualNode(virtual_node) | distance
    return Sum(distance, edges)


@overload
def grpe(
    clip: int, types: int | Sequence[str], *, directed: bool = ..., duplicates: str = ..., task_node: int | None = ...,
    released: Literal[False] = ...,
) -> Sum: ...  # fmt: skip


@overload
def grpe(
    clip: int, types: int | Sequence[str], *, directed: bool = ..., duplicates: str = ..., task_node: int | None = ...,
    released: Literal[True],
) -> ReleasedGRPE: ...  # fmt: skip


def grpe(
    clip: int,
    types: int | Sequence[str],
    *,
    directed: bool = False,
    duplicates: str = "error",
    task_node: int | None = None,
    released: bool = False,
) -> Sum | ReleasedGRPE:
    """GRPE's two channels: the clipped distance in hops, and the edge's type, ``self`` or ``none``.

    The paper gives each channel a query and a key table in the scores and a value table: use tables of the kinds
    ``("key", "value", "query")``. Its task token is a node without edges, whose labels come first in both channels.

    The released code differs: see :class:`~relgraph.labelers.ReleasedGRPE`, which ``released=True`` gives.

    Source: Park et al. 2022 (GRPE).

    Args:
        clip: the largest distance with its own label; unreachable pairs share another label.
        types: the names of the edge types, or how many there are. Edges count from source (key) to target (query).
        directed: whether paths follow edges only from source to target; if False, both ways.
        duplicates: what to do with parallel edges (see :class:`~relgraph.EdgeType`). Graphs with self-loops, which are
            parallel to ``self``, need ``"first"`` or ``"sum"``. Leave it out with ``released``: the last edge counts.
        task_node: the node type of the task token, whose pairs have the labels of :class:`~relgraph.VirtualNode`.
        released: whether to give the labels of the released code, with its ids.

    Returns:
        A labeler of a sum of two parts, distances named ``"0"`` to ``f">={clip}"`` and ``"unreachable"``, then
        the types, ``"self"`` and ``"none"``.

    Raises:
        TypeError, ValueError: a wrong type, sizes out of range, an unknown choice, ``duplicates`` with ``released``, or
            repeated names.

    Example:
        >>> labeler = rg.labelers.grpe(5, ["single", "double"])
        >>> labeler.parts[1]
        EdgeType(('single', 'double'), self_loop=True, attend='all', default='none')
        >>> labeler.num_labels
        (7, 4)
        >>> labeler(rg.Graph(torch.tensor([[0], [1]]), 2, edge_type=torch.tensor([1]))).parts[1].to_dense()[0]
        tensor([[[2, 3],
                 [1, 2]]])
        >>> rg.labelers.grpe(5, ["single", "double"], released=True).num_labels
        (8, 6)
    """
    if check.boolean("released", released):
        if check.choice("duplicates", duplicates, DUPLICATES) != "error":
            raise ValueError(
                "duplicates must be left out with released=True, where the last of several edges counts, "
                f"got {duplicates!r}"
            )
        return ReleasedGRPE(clip, types, directed=directed, task_node=task_node)
    distance: Labeler = ShortestPath(clip, directed=directed)
    edges: Labeler = EdgeType(types, self_loop=True, attend="all", default="none", duplicates=duplicates)
    if task_node is not None:
        check.integer("task_node", task_node, minimum=0)
        distance, edges = VirtualNode(task_node) | distance, VirtualNode(task_node) | edges
    return Sum(distance, edges)
