"""The base of labelers."""

from __future__ import annotations

import pytest

from relgraph.labelers import Labeler
from relgraph.labelers.base import distinct


def test_a_labeler_needs_numbers_names_and_a_call():
    with pytest.raises(TypeError, match="abstract"):
        Labeler()


def test_distinct():
    assert distinct([]) == ()
    assert distinct(["a", "b", "a", "a"]) == ("a", "b", "a′", "a′′")
    assert distinct(["a", "a′", "a"]) == ("a", "a′", "a′′")
