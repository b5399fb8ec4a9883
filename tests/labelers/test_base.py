"""What every labeler shares."""

from __future__ import annotations

import pytest

from relgraph.labelers import ClippedDistance, Labeler
from relgraph.labelers.base import check_operand, distinct


def test_a_labeler_needs_numbers_names_and_a_call():
    with pytest.raises(TypeError, match="abstract"):
        Labeler()


def test_check_operand():
    labeler = ClippedDistance(1)
    assert check_operand("*", labeler) is labeler
    with pytest.raises(TypeError, match="must be a Labeler, got DistanceLabels: compose labels with labels"):
        check_operand("*", labeler(3))


def test_distinct():
    assert distinct([]) == ()
    assert distinct(["a", "b", "a", "a"]) == ("a", "b", "a′", "a′′")
    assert distinct(["a", "a′", "a"]) == ("a", "a′", "a′′")
