"""Relation-aware attention: self-attention that sees its input as a labeled, directed graph."""

from __future__ import annotations

from relgraph.functional import AttentionAux, relation_attention, relation_attention_with_aux
from relgraph.impl.merge import merge
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels

__version__ = "0.1.0"

__all__ = [
    "AttentionAux",
    "BlockLabels",
    "DenseLabels",
    "DistanceLabels",
    "EdgeLabels",
    "Labels",
    "SumLabels",
    "merge",
    "relation_attention",
    "relation_attention_with_aux",
]
