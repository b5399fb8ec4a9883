"""Two hundred drawn calls, every implementation held to loops over pairs; more by ``python -m tests.fuzz``."""

from __future__ import annotations

import pytest

from relgraph.impl.triton import limits
from tests.fuzz.checks import AROUND, run

A_GROUP = 10
"""Seeds of one test: a failing test names its seed."""


@pytest.mark.parametrize("first", range(0, 200, A_GROUP))
def test_every_implementation_gives_what_loops_over_pairs_give(first):
    for seed in range(first, first + A_GROUP):
        run("impls", seed)


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_gives_what_loops_over_pairs_give(name):
    for seed in range(60):
        run(name, seed)


@pytest.mark.skipif(not (limits.HAS_TRITON and limits.interpreted()), reason="needs Triton's interpreter")
@pytest.mark.parametrize("first", range(1000, 1008, 2))
def test_triton_gives_what_loops_over_pairs_give(first):
    for seed in range(first, first + 2):
        run("impls", seed, ("triton",))
