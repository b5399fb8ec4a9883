"""Labelers refuse too many labels, and too many pairs that are written out."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import relgraph as rg

GRAPH = rg.Graph(torch.tensor([[0, 0], [1, 2]]), 3, edge_type=torch.tensor([0, 1]), node_type=torch.tensor([0, 1, 0]))
WIDE = rg.Graph(GRAPH.edge_index, 10**6, edge_type=GRAPH.edge_type)
LABELS = "must make at most 1,048,576 labels, got"
PAIRS = "must make at most 4,294,967,296 pairs, which are written out, got"


def numbers(count):
    return rg.DenseLabels(torch.zeros(1, 1, dtype=torch.int64), count)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rg.ClippedDistance(2**19 - 1),
        lambda: rg.EdgeType(2**20),
        lambda: rg.Grid(511),
        lambda: rg.FromFunction(lambda i, j: i - j, 2**20),
        lambda: rg.ShortestPath(2**20 - 3),
    ],
)
def test_names_of_as_many_labels_as_may_be(make):
    labeler = make()
    assert 2**20 - 2**12 < labeler.num_labels <= 2**20
    assert len(labeler.names) == labeler.num_labels


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rg.ClippedDistance(10**9), f"clip {LABELS} 2000000001"),
        (lambda: rg.ClippedDistance((1, 10**30)), "clip[1] must fit into 64 bits"),
        (lambda: rg.BucketedDistance(10**9, 10**9), "num_buckets must be at most 1048576, got 1000000000"),
        (lambda: rg.Window(10**9, 0), "left and right must make fewer than 1,048,576 positions, got 1000000000: leave both out for an unlimited window"),
        (lambda: rg.Grid(10**9), f"clip {LABELS} 4000000004000000001"),
        (lambda: rg.FromFunction(max, 10**9), "num_labels must be at most 1048576, got 1000000000"),
        (lambda: rg.FromFunction(max, 2, map(str, itertools.count())), "names must hold at most 1048576 items, got more"),
        (lambda: rg.EdgeType(10**9), "types must be at most 1048576, got 1000000000"),
        (lambda: rg.NodeType(2000), f"types {LABELS} 4000000"),
        (lambda: rg.ShortestPath(10**9), f"clip {LABELS} 1000000002"),
        (lambda: rg.UpDown(10**9), f"clip {LABELS} 1000000002000000001"),
        (lambda: rg.labelers.SchemaRelations(10**9), f"clip {LABELS} 6000000039"),
        (lambda: rg.labelers.ShortestPathTypes(10**9, 2), "max_length must be at most 65536, got 1000000000"),
        (lambda: rg.Segments(1000) * rg.Segments(2), f"the operands of * {LABELS} 4000000"),
        (lambda: rg.EdgeType(2**20) | rg.ClippedDistance(2), f"the operands of | {LABELS} 1048581"),
        (lambda: rg.labels.product(numbers(2**20), numbers(2**20)), "labels must have at most 2147483647 ids together, got 1099511627776"),
        (lambda: rg.labels.first_of(numbers(2**30), numbers(2**30)), "labels must have at most 2147483647 ids together, got 2147483648"),
    ],
)  # fmt: skip
def test_too_many_labels(make, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rg.FromFunction(torch.ge, 2)(3, 10**9), "q_len and k_len must be at most 16,777,216 if pairs are written out, got 1000000000"),
        (lambda: rg.FromFunction(torch.ge, 2)(3, q_offset=torch.zeros(2**29, dtype=torch.int8)), "q_len and k_len must be at most 16,777,216"),
        (lambda: rg.ClippedDistance(1)(10**5).to_dense(), f"q_len and k_len {PAIRS} 10000000000"),
        (lambda: rg.EdgeType(2)(WIDE).to_dense(), f"q_len and k_len {PAIRS} 1000000000000"),
        (lambda: rg.Segments(2)(torch.zeros(10**5, dtype=torch.int8)), f"segments and k_segments {PAIRS} 10000000000"),
        (lambda: rg.Graph(torch.tensor(0).expand(2, 2**38), 1), "edge_index must hold at most 274,877,906,944 numbers, got shape [2, 274877906944]"),
        (lambda: rg.Grid(1)(10**9, 2), "height must be at most 16,777,216"),
        (lambda: rg.labelers.GridColumns(1)(10**3, 10**3), f"height and width {PAIRS} 1000000000000"),
        *(
            (lambda labeler=labeler: labeler(WIDE), f"graph {PAIRS} 1000000000000")
            for labeler in (
                rg.ShortestPath(1), rg.TreeRelation(), rg.UpDown(1), rg.labelers.TreePaths(1, 2),
                rg.labelers.ShortestPathTypes(1, 2), rg.labelers.shortest_path_lengths,
            )
        ),
    ],
)  # fmt: skip
def test_too_many_pairs(make, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        make()


ON_META = (
    rg.ShortestPath(1), rg.NodeType(2), rg.TreeRelation(), rg.CodeRelations(), rg.labelers.TreePaths(1, 2),
    rg.labelers.ShortestPathTypes(1, 2),
)  # fmt: skip


@pytest.mark.parametrize("labeler", ON_META, ids=repr)
def test_what_reads_a_graph_needs_its_numbers(labeler):
    with pytest.raises(ValueError, match="graph must hold numbers, got tensors on the device meta, which hold none"):
        labeler(GRAPH.to("meta"))


def test_edges_are_labeled_without_their_numbers():
    labels = rg.EdgeType(2, inverse=True, self_loop=True)(GRAPH.to("meta"))
    assert (labels.device.type, labels.ids.shape) == ("meta", (7,))
    assert rg.ClippedDistance(1)(GRAPH.to("meta")).q_len == 3


def test_paths_are_no_longer_than_they_are():
    """Lists of steps end where the longest path does, and are filled up for the bank alone."""
    for longest in (2, 2**16):
        for labels, paths in (
            rg.labelers.ShortestPathTypes(longest, 2)(GRAPH),
            rg.labelers.TreePaths(longest, 2)(GRAPH),
        ):
            assert paths.shape == (7, longest)
            assert bool((paths[:, 2:] == -1).all())
            assert labels.num_labels == 7
    alone = rg.Graph(torch.zeros(2, 0, dtype=torch.int64), 0)
    assert rg.labelers.ShortestPathTypes(3, 1)(alone).paths.shape == (0, 3)
    assert rg.labelers.TreePaths(3, 1, forest=True)(alone).paths.shape == (0, 3)
