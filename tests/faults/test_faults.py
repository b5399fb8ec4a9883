"""The list of deliberate faults fits the code; ``python -m tests.faults`` makes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.__main__ import Run
from tests.faults.faults import FAULTS

ROOT = Path(__file__).parents[2]


def test_there_are_sixty_with_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault):
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old
    for test in fault.tests.split():
        path, *names = test.split("::")
        assert (ROOT / path).is_file()
        for name in names:
            assert re.search(rf"^ *(def|class) {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (1, "..F\nFAILED tests/test_a.py::test_b[two words] - assert 1 == 2\n", "caught by tests/test_a.py::test_b[two words]"),
        (1, "ERROR tests/test_a.py - ImportError\n", "no test failed, and pytest ended with 1"),
        (2, "ERROR tests/test_a.py - ImportError\n", "no test failed, and pytest ended with 2"),
        (-11, "Segmentation fault\n", "no test failed, and pytest ended with -11"),
        (None, "..", "no test failed within 600 s"),
        (0, "2 passed\n", "NOT CAUGHT"),
    ],
)  # fmt: skip
def test_only_a_failed_test_catches_a_fault(status, output, outcome):
    assert Run(status, output).outcome == outcome
