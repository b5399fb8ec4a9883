"""The public names of the package, and its light import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import relgraph as rg
from tests.docstrings import exports

NAMES = [
    "BlockLabels", "BucketedDistance", "ClippedDistance", "CodeRelations",
    "DenseLabels", "DistanceLabels", "EdgeLabels", "EdgeType", "FromFunction", "Graph", "Grid", "KVCache",
    "Labeler", "Labels", "NodeType", "RelationAttention",
    "RelationDecoder", "RelationDecoderLayer", "RelationEncoder", "RelationEncoderLayer", "RelationTables",
    "RelationTransformer", "RotaryPositions", "Segments", "ShortestPath", "SinusoidalPositions",
    "SumLabels", "TreeRelation", "UpDown", "Window", "edge_attention", "functional",
    "labelers", "labels", "nn", "record_attention", "relation_attention", "relation_attention_with_aux", "score",
    "which_impl",
]  # fmt: skip


def test_names():
    assert sorted(exports(rg)) == sorted(NAMES)
    assert all(hasattr(rg, name) for name in NAMES)
    assert len(NAMES) <= 42, "the top level holds what a user types in the first hour"


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


def test_import_is_light_and_a_missing_package_says_what_to_install():
    """An import brings torch and the standard library only: no graph, plotting or compiler package."""
    code = (
        "import sys, torch; before = {m.split('.')[0] for m in sys.modules}; import relgraph as rg; "
        "print(*sorted({m.split('.')[0] for m in sys.modules} - before - set(sys.stdlib_module_names))); "
        "x = torch.zeros(1, 1, 3, 2); rg.which_impl(x, x, x, None); "
        "print(*[m for m in ('triton', 'torch.distributed.tensor') if m in sys.modules]); "
        "sys.modules['torch_geometric'] = None; rg.pyg"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "relgraph\n\n"
    assert "ImportError: relgraph.pyg needs PyTorch Geometric: pip install torch-geometric" in done.stderr


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'relgraph' has no attribute 'graph'"):
        _ = rg.graph
    with pytest.raises(AttributeError, match="module 'relgraph.interop' has no attribute 'dgl'"):
        _ = rg.interop.dgl
