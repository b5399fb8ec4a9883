"""PyTorch Geometric layers and transforms over labeled graphs; needs the extra ``relgraph[pyg]``."""

from __future__ import annotations

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise ImportError("relgraph.pyg needs PyTorch Geometric: pip install 'relgraph[pyg]'") from None

from relgraph.pyg.conv import RelationConv
from relgraph.pyg.convert import from_transformer_conv
from relgraph.pyg.data import from_data, to_data
from relgraph.pyg.global_attention import RelationGlobalAttention
from relgraph.pyg.hetero import RelationHeteroConv
from relgraph.pyg.hetero_data import HeteroGraph, from_hetero_data
from relgraph.pyg.transforms import AddRelationLabels, relation_labels

__all__ = [
    "AddRelationLabels",
    "HeteroGraph",
    "RelationConv",
    "RelationGlobalAttention",
    "RelationHeteroConv",
    "from_data",
    "from_hetero_data",
    "from_transformer_conv",
    "relation_labels",
    "to_data",
]
