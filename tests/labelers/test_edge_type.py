"""Labels by edge type."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import EdgeType

from .conformance import Case, LabelerSuite

GRAPH = rg.Graph(
    torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, edge_type=torch.tensor([0, 1, 0]), ptr=torch.tensor([0, 3, 3, 5])
)


class TestConformance(LabelerSuite):
    cases = (
        Case(EdgeType(2), (GRAPH,)),
        Case(EdgeType(["a", "b"], inverse=True, attend="all"), (GRAPH,)),
        Case(EdgeType(("a", "b"), self_loop=True, attend="all", default="none"), (GRAPH,)),
        Case(EdgeType(3, inverse=True, self_loop=True, duplicates="sum"), (rg.Graph(torch.zeros(2, 0).long(), 1, edge_type=torch.zeros(0).long()),)),
        Case(EdgeType(1), (rg.Graph(torch.zeros(2, 0).long(), 0),)),
    )  # fmt: skip


@st.composite
def graphs(draw, types=3):
    count = draw(st.integers(1, 6))
    node = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(node, node, st.integers(0, types - 1)), max_size=8, unique_by=lambda e: e[:2]))
    table = torch.tensor(edges, dtype=torch.int64).view(-1, 3).T
    return rg.Graph(table[:2], count, edge_type=table[2])


@given(graphs(), st.booleans(), st.sampled_from([None, "unlabeled", "none"]))
def test_against_a_loop(graph, inverse, default):
    others = {"attend": "edges"} if default is None else {"attend": "all", "default": default}
    labeler = EdgeType(["a", "b", "c"], inverse=inverse, duplicates="first", **others)
    listed = {}
    edges = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
    for source, target, kind in edges:
        listed.setdefault((target, source), []).append(labeler.names.index("abc"[kind]))
    for source, target, kind in edges if inverse else ():
        listed.setdefault((source, target), []).append(labeler.names.index("abc"[kind] + "⁻¹"))
    labels = labeler(graph)
    if default is None and any(len(several) > 1 for several in listed.values()):
        assert labels.parallel
        return
    ids, attend = labels.to_dense()
    rest = {None: (-1, False), "unlabeled": (-1, True), "none": (labeler.num_labels - 1, True)}[default]
    for i in range(graph.num_nodes):
        for j in range(graph.num_nodes):
            wanted = (listed[i, j][0], True) if (i, j) in listed else rest
            assert (int(ids[0, i, j]), bool(attend[0, i, j])) == wanted


def test_a_sum_names_what_edges_both_ways_need():
    both_ways = rg.Graph(torch.tensor([[0, 1], [1, 0]]), 2)
    with pytest.raises(ValueError, match="give it .* default= other than None, and duplicates='first' or 'sum'"):
        (EdgeType(1, inverse=True) + rg.ShortestPath(2))(both_ways)
    for duplicates in ("first", "sum"):
        edges = EdgeType(1, inverse=True, attend="all", duplicates=duplicates)
        assert (edges + rg.ShortestPath(2))(both_ways).num_labels == (2, 4)


def test_a_loop_of_the_graph_and_one_of_the_labeler():
    looped = rg.Graph(torch.tensor([[0, 0], [1, 0]]), 2)
    alone = EdgeType(["loop"], self_loop=True)(looped)
    assert alone.edge_index.tolist() == [[0, 0, 0, 1], [1, 0, 0, 1]]
    assert alone.ids.tolist() == [0, 0, 1, 1]  # node 0 attends to itself twice
    weights = rg.relation_attention_with_aux(*[torch.zeros(1, 1, 2, 4)] * 3, alone, need_label_mass=True)[1].label_mass
    torch.testing.assert_close(weights[0, 0], torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    first = EdgeType(["loop"], self_loop=True, attend="all", duplicates="first")(looped)
    assert first.to_dense()[0][0].tolist() == [[0, -1], [0, 1]]


@pytest.mark.parametrize(
    ("edges", "options", "match"),
    [
        ([(0, 1), (1, 0)], {"inverse": True}, "from 1 to 0, 1 of them added by inverse=True: make it EdgeType"),
        ([(0, 1), (0, 1)], {"inverse": True}, "from 1 to 0, 2 of them added by inverse=True: make it EdgeType"),
        ([(0, 1), (1, 1)], {"self_loop": True}, "from 1 to 1, 1 of them added by self_loop=True: make it EdgeType"),
        (
            [(1, 1)],
            {"self_loop": True, "inverse": True},
            "from 1 to 1, 1 of them added by inverse=True, 1 of them added by self_loop=True: make it EdgeType",
        ),
        ([(0, 2), (0, 2)], {"self_loop": True}, "more than one edge from 0 to 2: make it EdgeType"),
        ([(0, 1), (0, 1)], {}, "more than one edge from 0 to 1: make it EdgeType"),
    ],
)
def test_parallel_edges_name_the_option_that_made_them(edges, options, match):
    graph = rg.Graph(torch.tensor(edges).T, 3)
    with pytest.raises(ValueError, match=f"duplicates must be 'first' or 'sum' .* got 'error' and .*{match}"):
        EdgeType(1, attend="all", **options)(graph)


def test_priority_over_parallel_edges_says_how():
    twice = rg.Graph(torch.tensor([[0, 0], [1, 1]]), 2, edge_type=torch.tensor([0, 1]))
    summed = EdgeType(2, attend="all", duplicates="sum")
    says = r"first_of \(a \| b\): .* duplicates='first' to keep .* or duplicates='sum' to add .* and compose by \+"
    with pytest.raises(NotImplementedError, match=says):
        (summed | rg.ShortestPath(2))(twice)
    with pytest.raises(NotImplementedError, match=says):
        rg.labels.first_of(EdgeType(2)(twice), rg.ShortestPath(2)(twice))
    first = EdgeType(2, attend="all", duplicates="first") | rg.ShortestPath(2)
    assert first(twice).to_dense()[0][0].tolist() == [[2, 3], [0, 2]]
    assert (summed + rg.ShortestPath(2))(twice).num_labels == (2, 4)
