"""PyTorch Geometric layers and transforms over labeled graphs; needs the extra ``relgraph[pyg]``.

- :class:`~relgraph.pyg.RelationConv`: attention over incoming edges, each with a relation.
- :class:`~relgraph.pyg.SelfLoops`: features and relation of the self-loops that it adds.
- :class:`~relgraph.pyg.LinearScore`: the additive score of RGAT for a RelationConv.
- :class:`~relgraph.pyg.RelationHeteroConv`: attention over incoming edges of heterogeneous graphs.
- :class:`~relgraph.pyg.RelationGlobalAttention`: attention between all nodes of each graph, every pair with a label.
- :func:`~relgraph.pyg.from_transformer_conv`, :func:`~relgraph.pyg.from_gatv2_conv`: a RelationConv with the weights
  of PyG's layer; :func:`~relgraph.pyg.from_gps_conv`: the attention of GPSConv.
- :func:`~relgraph.pyg.from_data`, :func:`~relgraph.pyg.to_data`: convert PyG's data objects to graphs for labelers,
  and back.
- :func:`~relgraph.pyg.from_hetero_data`, :class:`~relgraph.pyg.HeteroGraph`: heterogeneous graphs in one id space.
- :class:`~relgraph.pyg.AddRelationLabels`, :func:`~relgraph.pyg.relation_labels`: store labels in data objects, and
  read them back from a batch.

An edge ``edge_index[:, e] = (source, target)`` is (key, query), as in PyG. ``relgraph.pyg`` loads on first use, and
raises an ImportError if PyTorch Geometric is missing.

Files, in the order in which data meets them:

- ``data``, ``hetero_data``: between PyG's data objects and graphs for labelers.
- ``transforms``, ``stored``: labels stored with the data.
- ``adjacency``, ``self_loops``: nodes and edges in any of PyG's forms, checked.
- ``messages``: scores and values edge by edge, for explainers and hooks.
- ``related``, ``full_maps``, ``linear_score``, ``query_maps``, ``relation_mean``: maps of the whole input by relation.
- ``fitting``: which options fit together.
- ``edge_layer``: what ``conv`` and ``hetero`` share.
- ``projected_layer``: the projections of ``conv``, with full maps in place of any.
- ``conv``, ``hetero``, ``global_attention``: one layer each.
- ``convert``, ``convert_relational``: from PyG's TransformerConv, GATv2Conv, GPSConv, RGATConv and RGCNConv.
- ``record``: how ``record_attention`` records ``conv`` and ``hetero``.
"""

from __future__ import annotations

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise ImportError("relgraph.pyg needs PyTorch Geometric: pip install torch-geometric") from None

from relgraph.arguments.public import lists_public
from relgraph.pyg import record as _record  # noqa: F401  record_attention then knows these layers
from relgraph.pyg.conv import RelationConv as RelationConv
from relgraph.pyg.convert import from_gatv2_conv as from_gatv2_conv
from relgraph.pyg.convert import from_gps_conv as from_gps_conv
from relgraph.pyg.convert import from_transformer_conv as from_transformer_conv
from relgraph.pyg.data import from_data as from_data
from relgraph.pyg.data import to_data as to_data
from relgraph.pyg.global_attention import RelationGlobalAttention as RelationGlobalAttention
from relgraph.pyg.hetero import RelationHeteroConv as RelationHeteroConv
from relgraph.pyg.hetero_data import HeteroGraph as HeteroGraph
from relgraph.pyg.hetero_data import from_hetero_data as from_hetero_data
from relgraph.pyg.linear_score import LinearScore as LinearScore
from relgraph.pyg.self_loops import SelfLoops as SelfLoops
from relgraph.pyg.transforms import AddRelationLabels as AddRelationLabels
from relgraph.pyg.transforms import relation_labels as relation_labels

__dir__ = lists_public(globals())
