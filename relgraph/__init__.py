"""Relation-aware attention: self-attention that sees its input as a labeled, directed graph.

Query i looks at key j through an edge with a label, and each label has learned vectors. A *labeler* makes *labels* from
an input, and a *layer* learns tables for them. Layers call :func:`~relgraph.relation_attention`.

>>> layer = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(2))
>>> layer(torch.randn(1, 6, 16)).shape
torch.Size([1, 6, 16])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relgraph import functional as functional
from relgraph import labelers as labelers
from relgraph import labels as labels
from relgraph import nn as nn
from relgraph import score as score
from relgraph.arguments.public import lists_public
from relgraph.functional.attention import relation_attention as relation_attention
from relgraph.functional.attention import relation_attention_with_aux as relation_attention_with_aux
from relgraph.functional.choice import which_impl as which_impl
from relgraph.functional.edges import edge_attention as edge_attention
from relgraph.graphs import Graph as Graph
from relgraph.labelers import BucketedDistance as BucketedDistance
from relgraph.labelers import ClippedDistance as ClippedDistance
from relgraph.labelers import CodeRelations as CodeRelations
from relgraph.labelers import EdgeType as EdgeType
from relgraph.labelers import FromFunction as FromFunction
from relgraph.labelers import Grid as Grid
from relgraph.labelers import Labeler as Labeler
from relgraph.labelers import NodeType as NodeType
from relgraph.labelers import Segments as Segments
from relgraph.labelers import ShortestPath as ShortestPath
from relgraph.labelers import TreeRelation as TreeRelation
from relgraph.labelers import UpDown as UpDown
from relgraph.labelers import Window as Window
from relgraph.labels import BlockLabels as BlockLabels
from relgraph.labels import DenseLabels as DenseLabels
from relgraph.labels import DistanceLabels as DistanceLabels
from relgraph.labels import EdgeLabels as EdgeLabels
from relgraph.labels import Labels as Labels
from relgraph.labels import SumLabels as SumLabels
from relgraph.nn import KVCache as KVCache
from relgraph.nn import RelationAttention as RelationAttention
from relgraph.nn import RelationDecoder as RelationDecoder
from relgraph.nn import RelationDecoderLayer as RelationDecoderLayer
from relgraph.nn import RelationEncoder as RelationEncoder
from relgraph.nn import RelationEncoderLayer as RelationEncoderLayer
from relgraph.nn import RelationTables as RelationTables
from relgraph.nn import RelationTransformer as RelationTransformer
from relgraph.nn import RotaryPositions as RotaryPositions
from relgraph.nn import SinusoidalPositions as SinusoidalPositions
from relgraph.nn import record_attention as record_attention

if TYPE_CHECKING:
    from relgraph import distributed as distributed
    from relgraph import interop as interop
    from relgraph import plot as plot
    from relgraph import pyg as pyg

__version__ = "0.1.0"

_ON_FIRST_USE = ("distributed", "interop", "plot", "pyg")


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = lists_public(globals(), "functional", "labelers", "labels", "nn", "score", *_ON_FIRST_USE)
