"""Labelers: how labels come from an input."""

from relgraph.labelers.algebra import Dense, Priority, Product, Restriction, Sum
from relgraph.labelers.base import Labeler
from relgraph.labelers.combine import first_of, product, restrict, total
from relgraph.labelers.distance import BucketedDistance, ClippedDistance, DistanceLabeler, Window
from relgraph.labelers.edge_type import EdgeType
from relgraph.labelers.function import FromFunction
from relgraph.labelers.grid import Grid, GridColumns, GridRows
from relgraph.labelers.segments import Segments

__all__ = [
    "BucketedDistance",
    "ClippedDistance",
    "Dense",
    "DistanceLabeler",
    "EdgeType",
    "FromFunction",
    "Grid",
    "GridColumns",
    "GridRows",
    "Labeler",
    "Priority",
    "Product",
    "Restriction",
    "Segments",
    "Sum",
    "Window",
    "first_of",
    "product",
    "restrict",
    "total",
]
