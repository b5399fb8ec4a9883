"""networkx graphs as graphs for labelers and back, and labels as networkx graphs.

- :func:`~relgraph.interop.networkx.from_networkx`: a networkx graph, or several, as a :class:`~relgraph.Graph`.
- :class:`~relgraph.interop.networkx.FromNetworkx`: that graph, and the meaning of its ids.
- :func:`~relgraph.interop.networkx.to_networkx`: a :class:`~relgraph.Graph` as a networkx graph.
- :func:`~relgraph.interop.networkx.labels_to_networkx`: labels as edges of a networkx graph.

An edge u → v lets v, the query, look at u, the key. Needs the extra ``relgraph[networkx]``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields, shown
from relgraph.arguments.hints import in_place_of_graph, in_place_of_labels
from relgraph.arguments.public import lists_public
from relgraph.graphs import Graph, check_graph, check_type_names
from relgraph.interop._networkx_attributes import (
    Read,
    ReadNumbers,
    distinct,
    listed_features,
    read_features,
    read_types,
)
from relgraph.interop._networkx_items import listed
from relgraph.labels import Labels

__all__ = ["FromNetworkx", "from_networkx", "labels_to_networkx", "to_networkx"]
__dir__ = lists_public(globals())

try:
    import networkx as nx
except ImportError:
    raise ImportError("relgraph.interop.networkx needs networkx: pip install networkx") from None


class FromNetworkx(NamedTuple):
    """A graph and the meaning of its ids, from :func:`~relgraph.interop.networkx.from_networkx`.

    Args:
        graph: a :class:`~relgraph.Graph`, its nodes in the order of ``nodes``.
        nodes: the networkx node of each id; for several graphs ``(g, node)`` with the number g of the graph.
        types: the edge type of each id in ``graph.edge_type``; empty without types.
        node_types: the node type of each id in ``graph.node_type``; empty without types.
        x: ``[N, F]``, the features of each node in the order of ``nodes``; None if none were read.
        edge_attr: ``[E, F]``, the features of each edge of ``graph.edge_index``; None if none were read.

    Example:
        >>> import networkx as nx
        >>> from relgraph.interop.networkx import from_networkx
        >>> read = from_networkx(nx.DiGraph([("Ann", "Bob"), ("Cem", "Bob")]))
        >>> keys = read.graph.edge_index[0, read.graph.edge_index[1] == read.nodes.index("Bob")]
        >>> [read.nodes[key] for key in keys]                                   # whom Bob looks at
        ['Ann', 'Cem']
    """

    graph: Graph
    nodes: tuple[Hashable, ...]
    types: tuple[Hashable, ...]
    node_types: tuple[Hashable, ...]
    x: Tensor | None = None
    edge_attr: Tensor | None = None

    def __repr__(self) -> str:
        return brief_fields(self, *self._fields)


def from_networkx(
    graph: Any,
    *,
    edge_type: Read | None = None,
    types: Sequence[Hashable] | None = None,
    node_type: Read | None = None,
    node_types: Sequence[Hashable] | None = None,
    node_features: ReadNumbers | None = None,
    edge_features: ReadNumbers | None = None,
) -> FromNetworkx:
    """Make the graph that labelers read: an edge u → v lets v, the query, look at u, the key.

    Nodes are numbered in networkx's order. An undirected edge goes both ways, a self-loop once, and every parallel edge
    of a multigraph is kept. Several graphs become one packed batch with the same types. If you read graphs in separate
    calls, pass ``types`` and ``node_types``: otherwise each call numbers only the types that occur in its graphs.

    Source: conventions of networkx (:class:`~networkx.DiGraph`).

    Args:
        graph: any networkx graph, such as a :class:`~networkx.Graph` or a :class:`~networkx.MultiDiGraph`; or several,
            as a list.
        edge_type: the edge attribute that holds the type, or a function of u, v and the dict of the edge's attributes;
            None for edges without types. Numbers with a fraction are accepted only if ``types`` lists them.
        types: the types in the order of their ids; by default those that occur, sorted.
        node_type: the node attribute that holds the type, or a function of the node and the dict of its attributes; a
            node of type None has none.
        node_types: the node types in the order of their ids; by default those that occur, sorted.
        node_features: the node attribute that holds a number or a sequence of numbers; several attributes, to
            concatenate; or a function of the node and the dict of its attributes. They become ``x``, ``[N, F]``.
        edge_features: the same for edges; a function takes u, v and the dict of the edge's attributes. They become
            ``edge_attr``, ``[E, F]``, in both directions of an undirected edge.

    Returns:
        A :class:`~relgraph.interop.networkx.FromNetworkx`; for several graphs its ``graph`` is packed, and its rows
        cover all graphs in turn.

    Raises:
        TypeError: features that are not numbers.
        ValueError: no graphs, an attribute is missing or holds numbers with a fraction as types, a type is not among
            ``types``, types cannot be sorted or are given without ``edge_type`` or ``node_type``, nodes or edges have
            different numbers of features.

    Example:
        >>> import networkx as nx
        >>> from relgraph.interop.networkx import from_networkx
        >>> family = nx.DiGraph()
        >>> family.add_edge("Ann", "Bob", kind="mother", years=31)
        >>> family.add_edge("Bob", "Cem", kind="brother", years=4)
        >>> read = from_networkx(family, edge_type="kind", edge_features="years")
        >>> read.nodes, read.types
        (('Ann', 'Bob', 'Cem'), ('brother', 'mother'))
        >>> read.graph.edge_index.tolist(), read.graph.edge_type.tolist(), read.edge_attr.tolist()
        ([[0, 1], [1, 2]], [1, 0], [[31.0], [4.0]])
        >>> rg.EdgeType(read.types)(read.graph).q_len
        3
        >>> two = from_networkx([family, nx.DiGraph([("Ann", "Dan", {"kind": "aunt"})])], edge_type="kind")
        >>> two.types, two.nodes[2:], two.graph.ptr.tolist()
        (('aunt', 'brother', 'mother'), ((0, 'Cem'), (1, 'Ann'), (1, 'Dan')), [0, 3, 5])
    """
    several = not isinstance(graph, nx.Graph)
    graphs = _checked_graphs(graph) if several else (graph,)
    nodes, edges, edge_index = listed(graphs, several=several)
    edge_ids, types = read_types("edge", edges, edge_type, types)
    node_ids, node_types = read_types("node", nodes, node_type, node_types)
    features = read_features("node", nodes, node_features), read_features("edge", edges, edge_features)
    ptr = torch.tensor([0, *map(len, graphs)]).cumsum(0) if several else None
    read: dict[str, Any] = {"edge_types": (edge_ids, types), "node_types": (node_ids, node_types)}
    texts = {name: of for name, (ids, of) in read.items() if ids is not None and all(isinstance(x, str) for x in of)}
    made = Graph(edge_index, len(nodes), edge_type=edge_ids, node_type=node_ids, ptr=ptr, **texts)
    names = tuple((item.graph, *item.ends) if several else item.ends[0] for item in nodes)
    return FromNetworkx(made, names, types, node_types, *features)


def to_networkx(
    graph: Graph,
    *,
    nodes: Sequence[Hashable] | None = None,
    types: Sequence[Hashable] | None = None,
    node_types: Sequence[Hashable] | None = None,
    x: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> Any:
    """Make a :class:`~networkx.MultiDiGraph` of nodes 0, 1, ..., with an edge from each source to its target.

    The source is the key, the target the query. If the graph has types and if you give features, nodes have the
    attributes ``node_type`` and ``x``, and edges have ``edge_type`` and ``edge_attr``. For a packed batch, nodes also
    have ``batch``, the number of their graph.

    Source: conventions of networkx (:class:`~networkx.MultiDiGraph`).

    Args:
        graph: a :class:`~relgraph.Graph`, one graph or a packed batch.
        nodes: names in place of the numbers 0, 1, ..., all different, such as the ``nodes`` of
            :class:`~relgraph.interop.networkx.FromNetworkx`.
        types: a name for each edge type, by default the graph's, else its id.
        node_types: a name for each node type, likewise. A node without a type has the type None.
        x: ``[N, F]``, features of the nodes, stored as one list per node; or ``[N]``, stored as one number per node.
        edge_attr: ``[E, F]`` or ``[E]``, features of the edges, stored in the same way.

    Returns:
        A :class:`~networkx.MultiDiGraph`.

    Raises:
        ValueError: names without types, names twice, fewer names than types, other names than the graph's, another
            number of nodes, or features of another length.

    Example:
        >>> from relgraph.interop.networkx import to_networkx
        >>> graph = rg.Graph(torch.tensor([[0], [1]]), 3, edge_type=torch.tensor([0]))
        >>> list(to_networkx(graph, types=["child"]).edges(data="edge_type"))
        [(0, 1, 'child')]
        >>> list(to_networkx(graph, nodes=["Ann", "Bob", "Cem"]).edges())
        [('Ann', 'Bob')]
    """
    made = nx.MultiDiGraph()
    named = named_nodes(check_graph(graph).num_nodes, nodes)
    check.not_meta("graph", graph)
    made.add_nodes_from(named)
    edge_names = names_of_types("types", graph, "edge_type", types)
    node_names = names_of_types("node_types", graph, "node_type", node_types)
    edges = {"edge_type": edge_names, "edge_attr": listed_features("edge_attr", graph.num_edges, edge_attr)}
    for at, (source, target) in enumerate(graph.edge_index.T.tolist()):
        made.add_edge(named[source], named[target], **{name: of[at] for name, of in edges.items() if of is not None})
    for name, of in {"node_type": node_names, "x": listed_features("x", graph.num_nodes, x)}.items():
        if of is not None:
            nx.set_node_attributes(made, dict(zip(named, of, strict=True)), name)
    if graph.ptr is not None:
        nx.set_node_attributes(made, dict(zip(named, graph.graph_of().tolist(), strict=True)), "batch")
    return made


def labels_to_networkx(labels: Labels, names: Sequence[Any] | None = None) -> Any:
    """Turn labels into a networkx graph, with an edge from key to query for each pair with a label.

    Edges have the attributes ``id`` and ``label``, the id's name; for a sum also ``part``. Pairs that attend without a
    label are left out.

    Args:
        labels: :class:`~relgraph.Labels` of one graph or a packed batch against itself.
        names: a labeler's ``names``, one for each id, for a sum one sequence per part; by default the ids.

    Returns:
        A :class:`~networkx.MultiDiGraph` of nodes 0, 1, ....

    Raises:
        ValueError: a padded batch, queries that are not the keys, or another number of names.

    Example:
        >>> from relgraph.interop.networkx import labels_to_networkx
        >>> labeler = rg.ClippedDistance(1)
        >>> made = labels_to_networkx(labeler(2), labeler.names)
        >>> sorted((u, v, of["label"]) for u, v, of in made.edges(data=True))
        [(0, 0, '0'), (0, 1, '-1'), (1, 0, '1'), (1, 1, '0')]
    """
    if not isinstance(labels, Labels):
        raise TypeError(f"labels must be Labels, got {in_place_of_labels(labels)}")
    if labels.batch_size != 1 or labels.q_len != labels.k_len:
        raise ValueError(f"labels must be of one graph or a packed batch against itself, got {labels!r}")
    made = nx.MultiDiGraph()
    check.most_pairs("labels", labels.q_len * labels.k_len)
    check.not_meta("labels", labels)
    made.add_nodes_from(range(labels.q_len))
    parts = labels._summands
    named = names_of_parts(parts, names)
    for number, (part, of) in enumerate(zip(parts, named, strict=True)):
        extra = {"part": number} if len(parts) > 1 else {}
        keys, queries, ids = part._labeled_pairs()
        for key, query, label in zip(keys.tolist(), queries.tolist(), ids.tolist(), strict=True):
            made.add_edge(key, query, id=label, label=of[label], **extra)
    return made


def _checked_graphs(graphs: Any) -> tuple[Any, ...]:
    """Several networkx graphs, at least one."""
    if type(graphs).__module__.startswith("torch_geometric."):
        raise TypeError(f"graph must be a networkx graph or several, got {in_place_of_graph(graphs)}")
    if isinstance(graphs, (str, Mapping)) or not isinstance(graphs, Iterable):
        raise TypeError(f"graph must be a networkx graph or several, got {type(graphs).__name__}")
    listed = check.items("graph", graphs, "a networkx graph or several")
    for at, graph in enumerate(listed):
        if not isinstance(graph, nx.Graph):
            raise TypeError(f"graphs[{at}] must be a networkx graph, got {type(graph).__name__}")
    if not listed:
        raise ValueError("graph must be a networkx graph or several, got none")
    return listed


def named_nodes(count: int, nodes: Sequence[Hashable] | None) -> tuple[Hashable, ...]:
    """The nodes by name; by number without names."""
    if nodes is None:
        return tuple(range(count))
    nodes = distinct("nodes", nodes, of="nodes", most=count)
    if None in nodes:
        raise ValueError("nodes must not be None, which networkx does not accept as a node")
    if len(nodes) != count:
        raise ValueError(f"nodes must be one for each of the {count} nodes of the graph, got {len(nodes)}")
    return nodes


def names_of_types(name: str, graph: Graph, kind: str, names: Sequence[Hashable] | None) -> list[Any] | None:
    """The name of every ``edge_type`` or ``node_type`` of a graph, as given or its own; the ids without names."""
    ids = getattr(graph, kind)
    names = getattr(graph, f"{kind}s") if names is None else names
    if ids is None:
        if names is not None:
            raise ValueError(f"{name} must be left out for a graph without such types, got {shown(names)}")
        return None
    listed = ids.tolist()
    if names is None:
        return [None if at < 0 else at for at in listed]
    names = distinct(name, names)
    check_type_names(name, names, f"{kind}s of the graph", getattr(graph, f"{kind}s"))
    if max(listed, default=-1) >= len(names):
        raise ValueError(f"{name} must have a name for each of the {max(listed) + 1} types, got {len(names)}")
    return [None if at < 0 else names[at] for at in listed]


def names_of_parts(parts: Sequence[Any], names: Sequence[Any] | None) -> Sequence[Sequence[str]]:
    """A name for each id of each part."""
    if names is None:
        return [[str(label) for label in range(part.num_labels)] for part in parts]
    what = "strings, as a labeler's are, for a sum one sequence per part"
    named = [names] if len(parts) == 1 else check.items("names", names, what)
    listed = [check.items("names", of, what) for of in named]
    for name in (name for of in listed for name in of):
        if not isinstance(name, str):
            raise TypeError(f"names must be {what}, got {type(name).__name__}")
    wanted = [part.num_labels for part in parts]
    if [len(of) for of in listed] != wanted:
        raise ValueError(f"names must be {wanted} names, as a labeler's are, got {shown(names)}")
    return listed
