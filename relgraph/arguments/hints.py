"""What came where something else was wanted, in a few words, and how to make the one of the other.

By the names of classes alone: nothing is imported, as the packages that made a value need not be there.
"""

from __future__ import annotations

from typing import Any

from relgraph.arguments.brief import shown

_MAKERS = {
    "networkx": "relgraph.interop.networkx.from_networkx(...).graph",
    "torch_geometric": "relgraph.pyg.from_data(...)",
}


def in_place_of_graph(value: Any) -> str:
    """The kind of a value that came where a Graph was wanted, and how to come by one."""
    maker = _maker(value)
    if maker:
        return f"{_full_name(value)}: make it a Graph with {maker}"
    if has_graph(value):
        return f"{_name(value)}: pass its .graph"
    several = _several_graphs(value)
    if several:
        return f"{_name(value)} of graphs: make one Graph of them with {several}"
    return _name(value)


def in_place_of_labels(value: Any, *, or_graph: bool = False) -> str:
    """The kind of a value that came where Labels were wanted (or a Graph would do too), and how to come by them."""
    maker = _maker(value)
    several = _several_graphs(value)
    if or_graph and (maker or has_graph(value) or several):
        return in_place_of_graph(value)
    if several:
        return f"{in_place_of_graph(value)}, and labels of that, labels=labeler(graph)"
    if maker:
        return f"{_full_name(value)}: make it a Graph with {maker}, and labels of that, labels=labeler(graph)"
    if _is(value, "relgraph.graphs.Graph"):
        return f"{_name(value)}: a labeler makes labels of it, labels=labeler(graph)"
    if has_graph(value):
        return f"{_name(value)}: a labeler makes labels of its .graph, labels=labeler(read.graph)"
    if _is(value, "relgraph.labelers.base.Labeler"):
        return f"{_name(value)}: call it with a length or a graph, labels=labeler(length)"
    if _is(value, "relgraph.labelers.graph.paths.PathLabels"):
        return f"{_name(value)}: pass its .labels"
    if or_graph and not _is(value, "torch.Tensor"):  # where no raw ids are taken
        return _as_tensor(value).replace("make it a tensor with", "make labels of it with rg.DenseLabels and")
    return _as_tensor(value, "rg.DenseLabels(ids, num_labels)")


def in_place_of_edges(value: Any) -> str:
    """The kind of a value that came where ``edge_index`` was wanted, and how to come by it."""
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
    """What came where names of types of edges or nodes were wanted, and where the names are."""
    if not has_graph(value):
        return shown(value)
    names = ("node_types",) if kind == "node" else ("types", "edge_types")
    return f"{_name(value)}: pass its .{next((name for name in names if hasattr(value, name)), names[0])}"


def _several_graphs(value: Any) -> str | None:
    """What makes one Graph of a list of graphs."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(_is(one, "relgraph.graphs.Graph") for one in value):
        return "rg.Graph.batch(graphs)"
    if all(_is(one, "networkx.classes.graph.Graph") for one in value):
        return _MAKERS["networkx"].replace("...", "graphs")
    return None


def _as_tensor(value: Any, of_tensor: str = "") -> str:
    """The kind of a value that holds numbers, and how to make a tensor of it, or what is made of a tensor."""
    if _is(value, "torch.Tensor") and of_tensor:
        return f"{_name(value)}: make labels of it with {of_tensor}"
    if _is(value, "numpy.ndarray"):
        return f"{_name(value)}: make it a tensor with torch.from_numpy(...)"
    if isinstance(value, (list, tuple)):
        return f"{_name(value)}: make it a tensor with torch.tensor(...)"
    return _name(value)


def _maker(value: Any) -> str | None:
    """What makes a Graph of a graph of another package; subclasses, of which a PyG Batch is one, count too."""
    if _is(value, "torch_geometric.data.hetero_data.HeteroData"):
        return "relgraph.pyg.from_hetero_data(...).graph"
    bases = type(value).__mro__
    return next((maker for package, maker in _MAKERS.items() if any(_package(base) == package for base in bases)), None)


def has_graph(value: Any) -> bool:
    """Whether it is a value of ours that holds a Graph, such as what from_networkx gives."""
    return _package(type(value)) == "relgraph" and _is(getattr(value, "graph", None), "relgraph.graphs.Graph")


def _is(value: Any, name: str) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in type(value).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _name(value: Any) -> str:
    return type(value).__name__


def _full_name(value: Any) -> str:
    return f"{_name(value)} ({type(value).__module__}.{type(value).__qualname__})"
