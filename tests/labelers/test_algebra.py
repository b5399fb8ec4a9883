"""Labelers composed of labelers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import (
    BucketedDistance,
    ClippedDistance,
    CodeRelations,
    EdgeType,
    FromFunction,
    Grid,
    GridColumns,
    GridRows,
    Labeler,
    Priority,
    Product,
    Restriction,
    Segments,
    ShortestPath,
    Sum,
    TreeRelation,
    UpDown,
    Window,
)
from relgraph.labels import DistanceLabels, SumLabels, first_of, product, restrict, total

from .conformance import Case, LabelerSuite, before, parity

A, B, C, W = ClippedDistance(2), ClippedDistance((1, 0)), BucketedDistance(8, 12), Window(2)
F = FromFunction(before, 2)
SEGMENTS = torch.tensor([[0, 1, 1, 2], [2, 0, 0, 1]])
PACKED = {"ptr": torch.tensor([0, 3, 7])}


class TestConformance(LabelerSuite):
    cases = (
        Case(A * B, (7,)),
        Case(A * B * C, (5, 7), {"q_offset": 2}),
        Case(A + B, (7,), PACKED),
        Case(A * B + C, (7,)),
        Case((A + B) & W, (7,), PACKED),
        Case(((A + B) & W) + C, (7,)),
        Case(W | A, (7,), PACKED),
        Case(F | A, (4, 6), {"q_offset": 2}),
        Case(F | W | B, (4,)),
        Case((F | A) * B & W, (4,)),
        Case(A & W, (7,), PACKED),
        Case(A & (W * B), (7,)),
        Case(W | (B & W), (7,)),
        Case(A.dense(), (6,)),
        Case((A & W).dense(), (7,), PACKED),
        Case((A + B).dense(), (6,)),
        Case((A + B).dense() + C, (6,)),
        Case(A.dense() * B, (6,)),
        Case(Segments(2) * Segments(3), (torch.tensor([0, 1, 1]),)),
        Case(GridRows(1) * GridColumns(1) & Grid(1), (2, 3)),
    )


LABELERS = (A, B, C, W, F, FromFunction(parity, 2, names=["even", "odd"]))
three = st.tuples(*(st.sampled_from(LABELERS) for _ in range(3)))
UNLABELED_PAIRS = (W, F, FromFunction(parity, 2, names=["even", "odd"]))  # what | takes before its last operand
ordered = st.tuples(st.sampled_from(UNLABELED_PAIRS), st.sampled_from(UNLABELED_PAIRS), st.sampled_from(LABELERS))


@given(three)
def test_composition_flattens(parts):
    a, b, c = parts
    assert (a * b) * c == a * (b * c) == Product(a, b, c)
    assert (a + b) + c == a + (b + c) == Sum(a, b, c)
    assert (a & b) & c == a & (b & c) == Restriction(a, b, c)
    for composed in (a * b * c, a + b + c, a & b & c):
        assert composed.parts == (a, b, c)


@given(ordered)
def test_priority_flattens(parts):
    a, b, c = parts
    assert (a | b) | c == a | (b | c) == Priority(a, b, c)
    assert (a | b | c).parts == (a, b, c)


@given(three, st.integers(0, 5))
def test_a_composed_labeler_composes_the_labels(parts, n):
    a, b, c = parts
    assert (a * b * c)(n) == product(a(n), b(n), c(n))
    assert (a & b & c)(n) == restrict(a(n), b(n), c(n))
    assert (a + b + c)(n) == total(a(n), b(n), c(n))


@given(ordered, st.integers(0, 5))
def test_a_priority_composes_the_labels(parts, n):
    a, b, c = parts
    assert (a | b | c)(n) == first_of(a(n), b(n), c(n))


@given(st.tuples(st.sampled_from(LABELERS), st.sampled_from(LABELERS)))
def test_the_name_of_a_product_joins_the_names(parts):
    a, b = parts
    ids, x, y = (labeler(5).to_dense()[0] for labeler in (a * b, a, b))
    names = (a * b).names
    assert len(names) == len(a.names) * len(b.names)
    for both, mine, theirs in zip(ids.flatten(), x.flatten(), y.flatten(), strict=True):
        if both >= 0:
            assert names[both] == f"{a.names[mine]}×{b.names[theirs]}"


def test_names_of_a_priority_stay_apart():
    assert (F | F).names == ("0", "1", "0′", "1′")
    assert (F | F | F).names[4:] == ("0′′", "1′′")
    assert (F | B).names == ("0", "1", "-1", "0′")


def test_names_of_a_sum_and_a_restriction():
    assert (A + B).names == (A.names, B.names)
    assert (((A + B) & W) + C).names == (A.names, B.names, C.names)
    assert (((A + B) & W) + C).num_labels == (5, 2, 8)
    assert (A & W).names == A.names
    assert ((A + B) & W).names == (A.names, B.names)


def test_prints_as_an_expression():
    assert repr(A * B + C) == "(ClippedDistance(2) * ClippedDistance((1, 0))) + BucketedDistance(8, 12)"
    assert repr((A & W).dense()) == "(ClippedDistance(2) & Window(2)).dense()"


def test_equal_parts_under_other_operators_differ():
    assert len({F * B, F + B, F | B, F & B, B * F}) == 5


@pytest.mark.parametrize(
    ("symbol", "compose"),
    [
        (r"\*", lambda a, b: a * b),
        (r"\+", lambda a, b: a + b),
        (r"\|", lambda a, b: a | b),
        ("&", lambda a, b: a & b),
    ],
)
def test_refuses_what_is_no_labeler(symbol, compose):
    with pytest.raises(TypeError, match=f"{symbol} must be a Labeler, got DistanceLabels: compose labels with labels"):
        compose(A, B(3))
    with pytest.raises(TypeError, match="unsupported operand"):
        compose(3, A)


def test_refuses_a_sum_where_one_label_is_needed():
    for compose in (lambda: (A + B) * C, lambda: C * (A + B), lambda: (A + B) | C, lambda: C | ((A + B) & W)):
        with pytest.raises(TypeError, match=r"must have one label per pair, got a sum, .*: compose its parts"):
            compose()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: EdgeType(2) | ShortestPath(4), r"EdgeType\(2\): its other pairs do not attend"),
        (lambda: EdgeType(2, attend="all", default="none") | ShortestPath(4), "its other pairs have the label 'none'"),
        (lambda: CodeRelations(attend="edges") | A, "its other pairs do not attend"),
        (lambda: TreeRelation() | A, "its other pairs have the label 'other' because default='other'"),
        (lambda: TreeRelation(default=None) | A, "its other pairs do not attend"),
        (lambda: (EdgeType(2) * EdgeType(3)) | ShortestPath(4), "its other pairs do not attend"),
        (lambda: (EdgeType(2) & ShortestPath(4)) | ShortestPath(4), "its other pairs do not attend"),
        (lambda: EdgeType(2).dense() | ShortestPath(4), "its other pairs do not attend"),
        (lambda: W | (F | EdgeType(2)) | ShortestPath(4), r"EdgeType\(2\)"),
    ],
)
def test_priority_refuses_a_part_after_which_no_other_would_speak(build, says):
    way = "give it (attend='all'|default='unlabeled'|no default)"
    with pytest.raises(ValueError, match=rf"the operand of \| must leave pairs .* to label, got .*{says}.*: {way}"):
        build()


def test_priority_refuses_a_labeler_of_all_pairs():
    writes_all = (ShortestPath(4), ShortestPath(4, unreachable=None), UpDown(1), Grid(1))
    mixed = (EdgeType(2) * ShortestPath(2), ShortestPath(2) & EdgeType(2))
    for labeler in (A, C, A & W, A * B, A.dense(), *writes_all, *mixed):
        with pytest.raises(
            ValueError, match=r"the operand of \| must leave .*(put it last|default='unlabeled'|attend='all')"
        ):
            labeler | EdgeType(2)


def test_priority_takes_what_leaves_pairs_without_a_label():
    labeler = EdgeType(2, attend="all") * EdgeType(3) | W * A | ShortestPath(4)
    assert labeler.num_labels == 6 + 0 + 6


def test_composed_distances_compile():
    labeler = (A & W) * C + (W | A)

    def use(x):
        labels = labeler(x.shape[0])
        parts = labels.parts if isinstance(labels, SumLabels) else (labels,)
        return x + labels.q_len + sum(sum(part.lookup) for part in parts)

    torch._dynamo.reset()
    compiled = torch.compile(use, fullgraph=True, dynamic=True, backend="eager")
    for n in (2, 5, 9):
        torch.testing.assert_close(compiled(torch.zeros(n)), use(torch.zeros(n)))


class Borders(Labeler):
    """Reads the borders of a packed batch; pairs carry one label."""

    num_labels, names = 1, ("pair",)

    def __call__(self, ptr):
        return DistanceLabels(int(ptr[-1]), lookup=(0,), left=0, ptr=ptr)


class TestOwnInput:
    """Parts that read lengths take those of a part that reads something else."""

    def test_sum(self):
        segments = Segments(3)
        for labeler in (segments + A + F, A + segments + F, A.dense() + segments):
            made = labeler(SEGMENTS)
            for part, labels in zip(labeler.parts, made.parts, strict=True):
                wanted = segments(SEGMENTS) if part == segments else part(4)
                assert torch.equal(labels.to_dense()[0].expand(2, 4, 4), wanted.to_dense()[0].expand(2, 4, 4))

    def test_other_operators(self):
        segments = Segments(3)
        for operator, function in ((Product, product), (Restriction, restrict)):
            made = operator(segments, A)(SEGMENTS)
            for got, wanted in zip(made.to_dense(), function(segments(SEGMENTS), A(4)).to_dense(), strict=True):
                assert torch.equal(got, wanted)

    def test_nested(self):
        labeler = (A * B) + Segments(3)
        assert torch.equal(labeler(SEGMENTS).parts[0].to_dense()[0], (A * B)(4).to_dense()[0])

    def test_packed(self):
        made = (A + Borders())(PACKED["ptr"])
        assert torch.equal(made.parts[0].k_ptr, PACKED["ptr"])
        assert torch.equal(made.parts[0].to_dense()[0], A(7, **PACKED).to_dense()[0])
