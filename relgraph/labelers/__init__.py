"""Labelers: how labels come from an input.

A labeler knows how many labels there are and what each is called before it sees any input; called with one it gives
:class:`~relgraph.Labels`. Sequence labelers are called with a length or a graph, graph and tree labelers with a
:class:`~relgraph.Graph`, :class:`~relgraph.SchemaRelations` with a :class:`~relgraph.Schema`.

- Sequences and grids: ``ClippedDistance``, ``BucketedDistance``, ``Window``, ``Segments``, ``Grid``, ``GridRows``,
  ``GridColumns``.
- To write one: ``Labeler``, ``DistanceLabeler``, ``FromFunction``; ``label_pairs`` makes labels of ids of all pairs.
- Graphs: ``EdgeType``, ``ShortestPath``, ``PathEdges``, ``RandomWalk``, ``PersonalizedPageRank``, ``Degree``,
  ``NodeType``, ``VirtualNode``, ``graphormer``, ``grpe``, ``shortest_path_lengths``.
- Trees: ``TreeRelation``, ``UpDown``, ``AncestorDistance``, ``SiblingDistance``, ``StructuralPosition``,
  ``dependency_relations`` with ``UD_RELATIONS``.
- Code and databases: ``CodeRelations`` with ``GREAT_TYPES``, ``SchemaRelations`` of a ``Schema``.
- Whole paths as labels: ``ShortestPathTypes`` and ``TreePaths`` give ``PathLabels``; ``unique_paths`` numbers paths.
- Composed of others: ``Product``, ``Sum``, ``Priority``, ``Restriction``, ``Dense``, which the operators of
  :class:`~relgraph.Labeler` make; ``product``, ``total``, ``first_of`` and ``restrict`` do the same to labels.

>>> labeler = rg.EdgeType(["bond"], default="unlabeled") | rg.ClippedDistance(1)
>>> labeler.names
('bond', '-1', '0', '1')
>>> labeler(rg.Graph(torch.tensor([[0], [2]]), 3)).to_dense()[0]  # the edge 0 → 2: query 2 looks at key 0
tensor([[[2, 3, 3],
         [1, 2, 3],
         [0, 1, 2]]])
"""

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
from relgraph.labelers.written import label_pairs

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
    "label_pairs",
    "product",
    "restrict",
    "shortest_path_lengths",
    "total",
    "unique_paths",
]
