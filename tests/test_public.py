"""What the package promises to those who import it: its names, its docstrings, and a light import."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import relgraph as rg
from tests.docstrings import exports

NAMES = [
    "AncestorDistance", "BlockLabels", "BucketedDistance", "ClippedDistance", "CodeRelations", "Degree",
    "DenseLabels", "DistanceLabels", "EdgeLabels", "EdgeType", "FromFunction", "Graph", "Grid", "KVCache",
    "Labeler", "Labels", "NodeType", "PathEdges", "PersonalizedPageRank", "RandomWalk", "RelationAttention",
    "RelationDecoder", "RelationDecoderLayer", "RelationEncoder", "RelationEncoderLayer", "RelationTables",
    "RelationTransformer", "Segments", "ShortestPath", "SiblingDistance", "SinusoidalPositions", "SumLabels",
    "TreeRelation", "UpDown", "VirtualNode", "Window", "edge_attention", "functional", "labelers", "labels",
    "nn", "record_attention", "relation_attention", "relation_attention_with_aux", "score", "which_impl",
]  # fmt: skip


def test_names():
    assert sorted(exports(rg)) == sorted(NAMES)
    assert all(hasattr(rg, name) for name in NAMES)
    assert len(NAMES) <= 50, "the top level holds what a user types in the first hour"


MODULES = (
    rg,
    rg.functional,
    rg.score,
    rg.nn,
    rg.labelers,
    rg.labels,
    rg.pyg,
    rg.distributed,
    *(getattr(rg.interop, name) for name in rg.interop.MODULES),
)


@pytest.mark.parametrize("module", [*MODULES, rg.plot, rg.interop], ids=lambda module: module.__name__)
def test_dir_lists_what_is_public(module):
    loaded = ["distributed", "interop", "plot", "pyg"] if module is rg else []
    assert dir(module) == sorted([*exports(module), *loaded])
    assert all(hasattr(module, name) for name in dir(module))


DOCUMENTED = sorted(
    {name for module in MODULES for name in exports(module)} - {"functional", "nn", "labels", "labelers", "score"}
)


def public(name):
    return next(getattr(module, name) for module in MODULES if name in exports(module))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_is_documented(name):
    value = public(name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    doc = inspect.getdoc(value) or ""
    assert len(doc.splitlines()[0]) > 20, f"{name} has no summary"
    abstract = inspect.isabstract(value) or issubclass_of_tuple(value)
    if not abstract:
        assert ">>> " in doc, f"{name} has no example"
    takes_arguments = len(inspect.signature(value).parameters) > 0
    if takes_arguments and not abstract:
        assert "Args:" in doc or "Attributes:" in doc, f"{name} does not say what it takes"


def issubclass_of_tuple(value):
    return inspect.isclass(value) and issubclass(value, tuple)


def test_import_is_light():
    """torch and the standard library alone: no numpy of our own, no graph, plotting or compiler packages."""
    code = (
        "import sys, torch; before = {m.split('.')[0] for m in sys.modules}; import relgraph; "
        "print(*sorted({m.split('.')[0] for m in sys.modules} - before - set(sys.stdlib_module_names)))"
    )
    new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert new == ["relgraph"]


def test_typed():
    from importlib.resources import files

    assert files("relgraph").joinpath("py.typed").is_file()


def test_a_missing_package_says_what_to_install():
    code = "import sys; sys.modules['torch_geometric'] = None; import relgraph as rg; rg.pyg"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: relgraph.pyg needs PyTorch Geometric: pip install torch-geometric" in done.stderr


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'relgraph' has no attribute 'graph'"):
        _ = rg.graph
    with pytest.raises(AttributeError, match="module 'relgraph.interop' has no attribute 'dgl'"):
        _ = rg.interop.dgl
