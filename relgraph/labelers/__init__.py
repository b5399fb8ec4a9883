"""Labelers: how labels come from an input."""

from relgraph.labelers.algebra import Dense, Priority, Product, Restriction, Sum
from relgraph.labelers.base import Labeler
from relgraph.labelers.code import GREAT_TYPES, CodeRelations
from relgraph.labelers.combine import first_of, product, restrict, total
from relgraph.labelers.degree import Degree
from relgraph.labelers.dependency import UD_RELATIONS, dependency_relations
from relgraph.labelers.distance import BucketedDistance, ClippedDistance, DistanceLabeler, Window
from relgraph.labelers.edge_type import EdgeType
from relgraph.labelers.function import FromFunction
from relgraph.labelers.grid import Grid, GridColumns, GridRows
from relgraph.labelers.node_type import NodeType, VirtualNode
from relgraph.labelers.path_edges import PathEdges
from relgraph.labelers.paths import PathLabels, ShortestPathTypes, unique_paths
from relgraph.labelers.published import graphormer, grpe
from relgraph.labelers.random_walk import PersonalizedPageRank, RandomWalk
from relgraph.labelers.schema import Schema, SchemaRelations
from relgraph.labelers.segments import Segments
from relgraph.labelers.shortest_path import ShortestPath, shortest_path_lengths
from relgraph.labelers.structural import AncestorDistance, SiblingDistance, StructuralPosition
from relgraph.labelers.tree import TreeRelation, UpDown
from relgraph.labelers.tree_paths import TreePaths

__all__ = [
    "GREAT_TYPES",
    "UD_RELATIONS",
    "AncestorDistance",
    "BucketedDistance",
    "ClippedDistance",
    "CodeRelations",
    "Degree",
    "Dense",
    "DistanceLabeler",
    "EdgeType",
    "FromFunction",
    "Grid",
    "GridColumns",
    "GridRows",
    "Labeler",
    "NodeType",
    "PathEdges",
    "PathLabels",
    "PersonalizedPageRank",
    "Priority",
    "Product",
    "RandomWalk",
    "Restriction",
    "Schema",
    "SchemaRelations",
    "Segments",
    "ShortestPath",
    "ShortestPathTypes",
    "SiblingDistance",
    "StructuralPosition",
    "Sum",
    "TreePaths",
    "TreeRelation",
    "UpDown",
    "VirtualNode",
    "Window",
    "dependency_relations",
    "first_of",
    "graphormer",
    "grpe",
    "product",
    "restrict",
    "shortest_path_lengths",
    "total",
    "unique_paths",
]
