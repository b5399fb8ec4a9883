"""Plans: every labeling as a few kinds of regions that kernels understand."""

from relgraph.labels.base import NOT_ATTENDING, graph_at
from relgraph.plan.codec import decode, encode, on_device
from relgraph.plan.lower import lower, plain
from relgraph.plan.regions import DEAD, EXTRA, FIRST, Band, Block, Csr, LabelPlan, Part, Region, Uniform
from relgraph.plan.window import dense_ids, distances, ids_by_distance, inside_graphs, listed_pairs

__all__ = [
    "DEAD",
    "EXTRA",
    "FIRST",
    "NOT_ATTENDING",
    "Band",
    "Block",
    "Csr",
    "LabelPlan",
    "Part",
    "Region",
    "Uniform",
    "decode",
    "dense_ids",
    "distances",
    "encode",
    "graph_at",
    "ids_by_distance",
    "inside_graphs",
    "listed_pairs",
    "lower",
    "on_device",
    "plain",
]
