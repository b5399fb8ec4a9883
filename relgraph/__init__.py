"""Relation-aware attention: self-attention that sees its input as a labeled, directed graph.

Query i looks at key j through an edge with a label, and each label owns learned vectors. A *labeler* makes *labels* of
an input; a *layer* learns tables for them; the function beneath is :func:`~relgraph.relation_attention`.

>>> labeler = rg.ClippedDistance(2)
>>> layer = rg.RelationAttention(16, 4, num_labels=labeler.num_labels)
>>> layer(torch.randn(1, 6, 16), labels=labeler(6)).shape
torch.Size([1, 6, 16])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relgraph import labelers, labels, nn
from relgraph.choice import ImplChoice, which_impl
from relgraph.functional import AttentionAux, relation_attention, relation_attention_with_aux
from relgraph.functional_edges import edge_attention
from relgraph.graphs import Graph
from relgraph.impl.merging import merge
from relgraph.labelers import (
    GREAT_TYPES,
    UD_RELATIONS,
    AncestorDistance,
    BucketedDistance,
    ClippedDistance,
    CodeRelations,
    Degree,
    DistanceLabeler,
    EdgeType,
    FromFunction,
    Grid,
    GridColumns,
    GridRows,
    Labeler,
    NodeType,
    PathEdges,
    PathLabels,
    PersonalizedPageRank,
    RandomWalk,
    Schema,
    SchemaRelations,
    Segments,
    ShortestPath,
    ShortestPathTypes,
    SiblingDistance,
    StructuralPosition,
    TreePaths,
    TreeRelation,
    UpDown,
    VirtualNode,
    Window,
    dependency_relations,
    first_of,
    graphormer,
    grpe,
    label_pairs,
    product,
    restrict,
    shortest_path_lengths,
    total,
    unique_paths,
)
from relgraph.labels import (
    BlockLabels,
    DenseLabels,
    DistanceLabels,
    EdgeLabels,
    LabelCounts,
    Labels,
    SumCounts,
    SumLabels,
    padded,
)
from relgraph.nn import (
    KVCache,
    LabelTable,
    LayerCache,
    RelationAttention,
    RelationDecoder,
    RelationDecoderLayer,
    RelationEncoder,
    RelationEncoderLayer,
    RelationTables,
    RelationTransformer,
    SinusoidalPositions,
    StackCache,
    check_label_names,
    record_attention,
)

if TYPE_CHECKING:
    from relgraph import interop as interop
    from relgraph import plot as plot
    from relgraph import pyg as pyg

__version__ = "0.1.0"

__all__ = [
    "GREAT_TYPES",
    "UD_RELATIONS",
    "AncestorDistance",
    "AttentionAux",
    "BlockLabels",
    "BucketedDistance",
    "ClippedDistance",
    "CodeRelations",
    "Degree",
    "DenseLabels",
    "DistanceLabeler",
    "DistanceLabels",
    "EdgeLabels",
    "EdgeType",
    "FromFunction",
    "Graph",
    "Grid",
    "GridColumns",
    "GridRows",
    "ImplChoice",
    "KVCache",
    "LabelCounts",
    "LabelTable",
    "Labeler",
    "Labels",
    "LayerCache",
    "NodeType",
    "PathEdges",
    "PathLabels",
    "PersonalizedPageRank",
    "RandomWalk",
    "RelationAttention",
    "RelationDecoder",
    "RelationDecoderLayer",
    "RelationEncoder",
    "RelationEncoderLayer",
    "RelationTables",
    "RelationTransformer",
    "Schema",
    "SchemaRelations",
    "Segments",
    "ShortestPath",
    "ShortestPathTypes",
    "SiblingDistance",
    "SinusoidalPositions",
    "StackCache",
    "StructuralPosition",
    "SumCounts",
    "SumLabels",
    "TreePaths",
    "TreeRelation",
    "UpDown",
    "VirtualNode",
    "Window",
    "check_label_names",
    "dependency_relations",
    "edge_attention",
    "first_of",
    "graphormer",
    "grpe",
    "label_pairs",
    "labelers",
    "labels",
    "merge",
    "nn",
    "padded",
    "product",
    "record_attention",
    "relation_attention",
    "relation_attention_with_aux",
    "restrict",
    "shortest_path_lengths",
    "total",
    "unique_paths",
    "which_impl",
]

_ON_FIRST_USE = ("interop", "plot", "pyg")


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
