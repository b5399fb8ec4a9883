"""Wrong use of a region ends in the same error on every process, and the region goes on."""

from __future__ import annotations

import re

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed import misuse
from tests.distributed.context_cases import METHODS
from tests.distributed.worlds import run_world


@pytest.fixture(scope="module", params=METHODS)
def found(request, tmp_path_factory):
    """For each case the first lines of what two processes say, without the number of a process."""
    both = run_world(2, tmp_path_factory.mktemp("misuse"), misuse.cases, request.param)
    return {case: {text.split("\n", 1)[0].split("; on process")[0] for text in texts} for case, texts in both.items()}


def test_processes_answer_or_refuse_alike(found):
    assert not {case: texts for case, texts in found.items() if len(texts) > 1}


def test_a_refusal_names_the_argument(found):
    """Or the query, whose shape is that of all, or for labels the table, which has their number of rows."""
    unclear = {}
    for case, texts in found.items():
        text = next(iter(texts))
        names = rf"{case[1]}|query|labels" if case[1] != "labels" else "labels|bias_table"
        if text != "answered" and not re.match(rf"(Value|Type|NotImplemented)Error: .*\b({names})\b", text):
            unclear[case] = text
    assert not unclear


def test_each_argument_has_values_that_are_refused(found):
    refused = {case[:2] for case, texts in found.items() if "answered" not in texts}
    assert refused == {case[:2] for case in found}
