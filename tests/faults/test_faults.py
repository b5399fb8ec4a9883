"""The list of deliberate faults fits the code; ``python -m tests.faults`` makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.faults import FAULTS

ROOT = Path(__file__).parents[2]


def test_there_are_sixty_with_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault):
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old
    for test in fault.tests.split():
        path, *name = test.split("::")
        assert (ROOT / path).is_file()
        assert not name or f"def {name[0]}(" in (ROOT / path).read_text(encoding="utf-8")
