"""Drawn calls within a region equal one process, and what one process must refuse, both do."""

from __future__ import annotations

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed import region_fuzz
from tests.distributed.worlds import run_world

SEEDS = 120


def test_drawn_calls(tmp_path):
    found = run_world(2, tmp_path, region_fuzz.seeds, 0, SEEDS)
    assert len(found) == SEEDS
    assert not [text for texts in found.values() for of_process in texts for text in of_process]
