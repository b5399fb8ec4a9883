"""Names that tell distances are found, put in order, and told from names that are but ids."""

from __future__ import annotations

import pytest

import relgraph as rg
from relgraph.plot._names import naming, strings


def test_clipped_distances_are_integers_in_order():
    known = naming(rg.ClippedDistance(2).names, 5)
    assert known.order == known.distances == (0, 1, 2, 3, 4)
    assert known.integers == (-2, -1, 0, 1, 2)
    assert known.centre == 2


def test_buckets_are_ordered_by_the_distances_they_hold():
    names = rg.BucketedDistance(8, 20).names
    known = naming(names, len(names))
    assert known.ordered_texts == ["<=-7", "-6..-2", "-1", "0", "1", "2..6", ">=7", "unused 4"]
    assert known.rest == (4,)
    assert known.integers is None
    assert known.centre == 3


def test_bounds_lie_beside_the_number_that_they_name():
    known = naming((">4", "4", "<-4", "-4", "6.1e-05..0.5", "0", ">=0.5", "<6.1e-05"), 8)
    assert known.ordered_texts == ["<-4", "-4", "0", "<6.1e-05", "6.1e-05..0.5", ">=0.5", "4", ">4"]


def test_labels_that_are_no_distances_come_after():
    labeler = rg.EdgeType(["bond"], inverse=True, attend="all") | rg.ClippedDistance(1)
    known = naming(labeler.names, 5)
    assert known.ordered_texts == ["-1", "0", "1", "bond", "bond⁻¹"]
    assert [known.base(label) for label in known.rest] == ["bond", "bond"]
    assert known.integers == (-1, 0, 1)


@pytest.mark.parametrize("names", [None, ["0", "1", "2", "3"], ["a", "-1", "1", "b"]])
def test_ids_and_a_few_numbers_are_no_distances(names):
    known = naming(names, 4)
    assert known.distances == () and known.integers is None
    assert known.order == (0, 1, 2, 3)
    assert known.names == ("0", "1", "2", "3") or known.names == ("a", "-1", "1", "b")


def test_integers_with_a_gap_are_ranked():
    known = naming(["5", "-1", "0"], 3)
    assert known.distances == (1, 2, 0) and known.integers is None


def test_names_are_made_strings():
    assert strings("names", [1, ("a", 2), "c"]) == ("1", "('a', 2)", "c")
    assert naming([-1, 0, 1], 3).integers == (-1, 0, 1)


def test_an_inverse_with_a_long_name_keeps_its_base():
    long = "a relation with a name of sixty characters, more than fit in"
    known = naming([long, f"{long}⁻¹"], 2)
    assert known.base(1) == known.base(0) == long
    assert known.texts == ("a relation with …ore than fit in", "a relation with …e than fit in⁻¹")
