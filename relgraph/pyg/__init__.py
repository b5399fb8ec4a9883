"""PyTorch Geometric layers and transforms over labeled graphs; needs the extra ``relgraph[pyg]``."""

from __future__ import annotations

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise ImportError("relgraph.pyg needs PyTorch Geometric: pip install 'relgraph[pyg]'") from None

from relgraph.pyg.data import from_data, to_data
from relgraph.pyg.hetero_data import HeteroGraph, from_hetero_data
from relgraph.pyg.transforms import AddRelationLabels, relation_labels

__all__ = [
    "AddRelationLabels",
    "HeteroGraph",
    "from_data",
    "from_hetero_data",
    "relation_labels",
    "to_data",
]
