"""Labels by the relations between the tokens of a program."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.interop import python
from relgraph.labelers import GREAT_TYPES, ClippedDistance, CodeRelations, Window

from .conformance import Case, LabelerSuite

SINGLE = rg.Graph(torch.tensor([[0, 2, 1], [2, 1, 0]]), 4, edge_type=torch.tensor([7, 10, 11]))
PARALLEL = rg.Graph(torch.tensor([[0, 0, 1], [1, 1, 0]]), 2, edge_type=torch.tensor([8, 7, 2]))
EMPTY = rg.Graph(torch.zeros(2, 0).long(), 0, edge_type=torch.zeros(0).long())
PACKED = rg.Graph.batch([SINGLE, EMPTY, rg.Graph(torch.tensor([[0], [0]]), 1, edge_type=torch.tensor([9]))])


class TestConformance(LabelerSuite):
    cases = (
        Case(CodeRelations(), (SINGLE,)),
        Case(CodeRelations(default="none", duplicates="first"), (PACKED,)),
        Case(CodeRelations("edges", duplicates="first"), (EMPTY,)),
        Case(CodeRelations(duplicates="first") | ClippedDistance(2), (PARALLEL,)),
        Case(CodeRelations(duplicates="first") * ClippedDistance(1), (PACKED,)),
        Case(CodeRelations(duplicates="first") & Window(1), (PACKED,)),
        Case(CodeRelations(duplicates="first") + ClippedDistance(2), (PACKED,)),
    )  # fmt: skip


@pytest.fixture
def edges():
    def listed(graph, **options):
        labels = CodeRelations(**options)(graph)
        names = CodeRelations(**options).names
        key, query = labels.edge_index.tolist()
        return list(zip(query, key, (names[number] for number in labels.ids.tolist()), strict=True))

    return listed


def test_ids():
    labeler = CodeRelations()
    assert len(GREAT_TYPES) == 11
    assert labeler.num_labels == 22
    assert CodeRelations(default="none").num_labels == 23
    for number, name in enumerate(GREAT_TYPES):
        assert labeler.names[2 * number : 2 * number + 2] == (name, f"{name}⁻¹")


def test_both_directions(edges):
    assert edges(SINGLE) == [(2, 0, "SYNTAX"), (0, 2, "SYNTAX⁻¹"), (1, 2, "CALLS"), (2, 1, "CALLS⁻¹")]


def test_several_relations_of_a_pair_add_up(edges):
    at = [name for query, key, name in edges(PARALLEL) if (query, key) == (1, 0)]
    assert at == ["NEXT_SYNTAX", "SYNTAX", "LAST_WRITE⁻¹"]
    labels = CodeRelations()(PARALLEL)
    assert labels.parallel and labels.duplicates == "sum"
    ids, attend = CodeRelations(duplicates="first")(PARALLEL).to_dense()
    assert CodeRelations().names[int(ids[0, 1, 0])] == "NEXT_SYNTAX"
    assert bool(attend.all())
    total = (CodeRelations() + ClippedDistance(2))(PARALLEL)
    assert total.num_labels == (22, 5)
    assert (CodeRelations() * ClippedDistance(1))(PARALLEL).num_labels == 66
    with pytest.raises(NotImplementedError, match=r"first_of \(a \| b\): parallel edges give a pair several labels"):
        (CodeRelations() | ClippedDistance(2))(PARALLEL)
    with pytest.raises(ValueError, match="duplicates must be 'first' or 'sum'"):
        CodeRelations(duplicates="error")(PARALLEL)


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="graph must have edge_type, as there are 11 types, got None"):
        CodeRelations()(rg.Graph(torch.zeros(2, 0).long(), 1))
    with pytest.raises(
        ValueError, match=r"edge_type must lie in \[0, 12\).* from 1 to 12 \(GREAT's files count from 1\)"
    ):
        CodeRelations()(rg.Graph(torch.tensor([[0, 1], [1, 0]]), 2, edge_type=torch.tensor([1, 12])))


def test_only_the_type_of_python_source_beyond_great_s_is_left_out(edges):
    assert python.EDGE_TYPES.index("NEXT_USE") == len(GREAT_TYPES)
    assert edges(SINGLE.of_type(11).with_edges(SINGLE.edge_index, torch.full((3,), 11))) == []
