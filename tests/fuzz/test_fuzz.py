"""Two hundred drawn calls, every implementation held to loops over pairs; more by ``python -m tests.fuzz``."""

from __future__ import annotations

import pytest

from relgraph.impl import fused
from tests.fuzz.compare import IMPLS, check

A_GROUP = 10
"""Seeds of one test: a failing test names its seed."""


@pytest.mark.parametrize("first", range(0, 200, A_GROUP))
def test_every_implementation_gives_what_loops_over_pairs_give(first):
    for seed in range(first, first + A_GROUP):
        check(seed, (*IMPLS, "none"))


@pytest.mark.skipif(not (fused.HAS_TRITON and fused.interpreted()), reason="needs Triton's interpreter")
@pytest.mark.parametrize("first", range(1000, 1008, 2))
def test_triton_gives_what_loops_over_pairs_give(first):
    for seed in range(first, first + 2):
        check(seed, ("triton",))
