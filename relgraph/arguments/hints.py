"""The end of wrong-type messages: the type of the value, and how to convert it.

Types are compared by name, because the packages that define them may not be installed.
"""

from __future__ import annotations

from typing import Any

from relgraph.arguments.brief import shown

_MAKERS = {
    "networkx": "relgraph.interop.networkx.from_networkx(...).graph",
    "torch_geometric": "relgraph.pyg.from_data(...)",
}


def in_place_of_tensor(value: Any) -> str:
    """Describe a value that is not a tensor, and say how to make it one or where it belongs."""
    graph = in_place_of_graph(value)
    return f"{graph}{belongs(value)}" if graph == _name(value) else graph


def in_place_of_graph(value: Any) -> str:
    """Describe a value that is not a Graph, and say how to make one."""
    maker = _maker(value)
    if maker:
        return f"{_full_name(value)}: make it a Graph with {maker}"
    if has_graph(value):
        return f"{_name(value)}: pass its .graph"
    several = _several_graphs(value)
    if several:
        return f"{_name(value)} of graphs: make them one Graph with {several}"
    return _name(value)


def belongs(value: Any) -> str:
    """The end of a message that says to which argument a value belongs, or how to make it a tensor; or nothing."""
    kinds = {"relgraph.labels.base.Labels": "labels", "relgraph.labelers.base.Labeler": "labeler"}
    named = (f": pass it as {name}=" for kind, name in kinds.items() if _is(value, kind))
    return next(named, _as_tensor(value).removeprefix(_name(value)))


def in_place_of_labels(value: Any, *, or_graph: bool = False) -> str:
    """Describe a value that is not Labels (nor a Graph, if ``or_graph``), and say how to make them."""
    maker = _maker(value)
    several = _several_graphs(value)
    if or_graph and (maker or has_graph(value) or several):
        return in_place_of_graph(value)
    if maker or several:
        return f"{in_place_of_graph(value)}, and pass labels=labeler(graph)"
    if _is(value, "relgraph.graphs.Graph"):
        return f"{_name(value)}: pass labels=labeler(graph)"
    if has_graph(value):
        return f"{_name(value)}: pass labels=labeler(read.graph)"
    if _is(value, "relgraph.labelers.base.Labeler"):
        return f"{_name(value)}: call it with a length or a graph, labels=labeler(length)"
    if _is(value, "relgraph.labelers.graph.paths.PathLabels"):
        return f"{_name(value)}: pass its .labels"
    if isinstance(value, (list, tuple)) and any(_is(one, "relgraph.labels.base.Labels") for one in value):
        return f"{_name(value)}: for several labels of a pair add them, as in rg.DenseLabels(ids, R) + distances"
    if or_graph and not _is(value, "torch.Tensor"):  # raw ids are not accepted then
        return _as_tensor(value).replace("make it a tensor with", "make labels of it with rg.DenseLabels and")
    return _as_tensor(value, "rg.DenseLabels(ids, num_labels)")


def in_place_of_edges(value: Any) -> str:
    """Describe a value that is not an ``edge_index``, and say how to get one."""
    maker = _maker(value)
    if maker == _MAKERS["torch_geometric"]:
        return f"{_full_name(value)}: pass its .edge_index"
    if maker:
        return f"{_full_name(value)}: make it a Graph with {maker}, and pass graph.edge_index and graph.edge_type"
    if _is(value, "relgraph.graphs.Graph"):
        return f"{_name(value)}: pass its .edge_index and .edge_type"
    if has_graph(value):
        return f"{_name(value)}: pass its .graph.edge_index and .graph.edge_type"
    if _is(value, "relgraph.labelers.base.Labeler"):
        return f"{_name(value)}: call it with a graph for EdgeLabels, labeler(graph)"
    return _as_tensor(value)


def in_place_of_types(value: Any, kind: str) -> str:
    """Describe a value that is not names of types of edges or nodes, and say where the names are."""
    if not has_graph(value):
        return shown(value)
    names = ("node_types",) if kind == "node" else ("types", "edge_types")
    return f"{_name(value)}: pass its .{next((name for name in names if hasattr(value, name)), names[0])}"


def _several_graphs(value: Any) -> str | None:
    """The call that makes a list of graphs one Graph."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(_is(one, "relgraph.graphs.Graph") for one in value):
        return "rg.Graph.batch(graphs)"
    if all(_is(one, "networkx.classes.graph.Graph") for one in value):
        return _MAKERS["networkx"].replace("...", "graphs")
    return None


def _as_tensor(value: Any, of_tensor: str = "") -> str:
    """Describe a value that may hold numbers, and say how to make it a tensor, or a tensor labels."""
    if _is(value, "torch.Tensor") and of_tensor:
        return f"{_name(value)}: make labels of it with {of_tensor}"
    if _is(value, "numpy.ndarray"):
        return f"{_name(value)}: make it a tensor with torch.from_numpy(...)"
    if isinstance(value, (list, tuple)):
        return f"{_name(value)}: make it a tensor with torch.tensor(...)"
    return _name(value)


def _maker(value: Any) -> str | None:
    """The call that converts a graph of another package to a Graph; also for subclasses, such as a PyG Batch."""
    if _is(value, "torch_geometric.data.hetero_data.HeteroData"):
        return "relgraph.pyg.from_hetero_data(...).graph"
    bases = type(value).__mro__
    return next((maker for package, maker in _MAKERS.items() if any(_package(base) == package for base in bases)), None)


def has_graph(value: Any) -> bool:
    """Whether a relgraph value has a ``.graph``, such as the result of from_networkx."""
    return _package(type(value)) == "relgraph" and _is(getattr(value, "graph", None), "relgraph.graphs.Graph")


def _is(value: Any, name: str) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in type(value).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _name(value: Any) -> str:
    return type(value).__name__


def _full_name(value: Any) -> str:
    return f"{_name(value)} ({type(value).__module__}.{type(value).__qualname__})"
