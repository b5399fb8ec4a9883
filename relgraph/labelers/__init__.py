"""Labelers turn an input into :class:`~relgraph.Labels`.

A labeler has a fixed number of labels, each with a name, for every input. Call a sequence labeler with a length or a
graph, a graph or tree labeler with a :class:`~relgraph.Graph`, and :class:`~relgraph.labelers.SchemaRelations` with a
:class:`~relgraph.labelers.Schema`.

- Sequences and grids: ``ClippedDistance``, ``BucketedDistance``, ``Window``, ``Segments``, ``Grid``, ``GridRows``,
  ``GridColumns``.
- To write your own: ``Labeler``, ``DistanceLabeler``, ``FromFunction``; ``label_pairs`` turns ids of all pairs into
  labels.
- Graphs: ``EdgeType``, ``ShortestPath``, ``NodeType``, ``shortest_path_lengths``.
- Trees: ``TreeRelation``, ``UpDown``, ``dependency_relations`` with ``UD_RELATIONS``.
- Code and databases: ``CodeRelations`` with ``GREAT_TYPES``, ``SchemaRelations`` of a ``Schema``, ``CellRelations`` of
  ``Cells``.
- Whole paths as labels: ``ShortestPathTypes`` and ``TreePaths`` give ``PathLabels``.
- Results of the operators of :class:`~relgraph.Labeler`: ``Product``, ``Sum``, ``Priority``, ``Restriction`` and
  ``Dense``; ``product``, ``total``, ``first_of`` and ``restrict`` do the same to labels.

>>> labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(1)
>>> labeler.names
('bond', '-1', '0', '1')
>>> labeler(rg.Graph(torch.tensor([[0], [2]]), 3)).to_dense()[0]  # the edge 0 → 2: query 2 looks at key 0
tensor([[[2, 3, 3],
         [1, 2, 3],
         [0, 1, 2]]])

Files:

- ``base``: the base class; ``algebra``: labelers composed of labelers.
- ``sequence/``, ``graph/``, ``tree/``: the labelers of each kind of input.
- ``code``, ``schema``, ``cells``: relations of programs, of database schemas and of a database's cells.
- ``all_pairs``: from one id per pair to labels of all pairs.
"""

from relgraph.arguments.public import lists_public
from relgraph.labelers.algebra import Dense as Dense
from relgraph.labelers.algebra import Priority as Priority
from relgraph.labelers.algebra import Product as Product
from relgraph.labelers.algebra import Restriction as Restriction
from relgraph.labelers.algebra import Sum as Sum
from relgraph.labelers.all_pairs import label_pairs as label_pairs
from relgraph.labelers.base import Labeler as Labeler
from relgraph.labelers.cells import CellRelations as CellRelations
from relgraph.labelers.cells import Cells as Cells
from relgraph.labelers.code import GREAT_TYPES as GREAT_TYPES
from relgraph.labelers.code import CodeRelations as CodeRelations
from relgraph.labelers.graph.edge_type import EdgeType as EdgeType
from relgraph.labelers.graph.node_type import NodeType as NodeType
from relgraph.labelers.graph.paths import PathLabels as PathLabels
from relgraph.labelers.graph.paths import ShortestPathTypes as ShortestPathTypes
from relgraph.labelers.graph.shortest_path import ShortestPath as ShortestPath
from relgraph.labelers.graph.shortest_path import shortest_path_lengths as shortest_path_lengths
from relgraph.labelers.schema import Schema as Schema
from relgraph.labelers.schema import SchemaRelations as SchemaRelations
from relgraph.labelers.sequence.buckets import BucketedDistance as BucketedDistance
from relgraph.labelers.sequence.distance import ClippedDistance as ClippedDistance
from relgraph.labelers.sequence.distance import DistanceLabeler as DistanceLabeler
from relgraph.labelers.sequence.distance import Window as Window
from relgraph.labelers.sequence.function import FromFunction as FromFunction
from relgraph.labelers.sequence.grid import Grid as Grid
from relgraph.labelers.sequence.grid import GridColumns as GridColumns
from relgraph.labelers.sequence.grid import GridRows as GridRows
from relgraph.labelers.sequence.segments import Segments as Segments
from relgraph.labelers.tree.dependency import UD_RELATIONS as UD_RELATIONS
from relgraph.labelers.tree.dependency import dependency_relations as dependency_relations
from relgraph.labelers.tree.paths import TreePaths as TreePaths
from relgraph.labelers.tree.relation import TreeRelation as TreeRelation
from relgraph.labelers.tree.relation import UpDown as UpDown

__dir__ = lists_public(globals())
