"""Relation-aware attention: self-attention that sees its input as a labeled, directed graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from relgraph import labelers, labels, nn
from relgraph.functional import AttentionAux, relation_attention, relation_attention_with_aux
from relgraph.graphs import Graph
from relgraph.impl.merging import merge
from relgraph.labelers import (
    BucketedDistance,
    ClippedDistance,
    EdgeType,
    FromFunction,
    Grid,
    GridColumns,
    GridRows,
    Labeler,
    Segments,
    Window,
    first_of,
    product,
    restrict,
    total,
)
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels, padded
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
)

__version__ = "0.1.0"

__all__ = [
    "AttentionAux",
    "BlockLabels",
    "BucketedDistance",
    "ClippedDistance",
    "DenseLabels",
    "DistanceLabels",
    "EdgeLabels",
    "EdgeType",
    "FromFunction",
    "Graph",
    "Grid",
    "GridColumns",
    "GridRows",
    "KVCache",
    "LabelTable",
    "Labeler",
    "Labels",
    "LayerCache",
    "RelationAttention",
    "RelationDecoder",
    "RelationDecoderLayer",
    "RelationEncoder",
    "RelationEncoderLayer",
    "RelationTables",
    "RelationTransformer",
    "Segments",
    "SinusoidalPositions",
    "StackCache",
    "SumLabels",
    "Window",
    "first_of",
    "labelers",
    "labels",
    "merge",
    "nn",
    "padded",
    "product",
    "relation_attention",
    "relation_attention_with_aux",
    "restrict",
    "total",
]

_ON_FIRST_USE = ("interop", "pyg")


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
