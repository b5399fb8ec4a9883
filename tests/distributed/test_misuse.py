"""Wrong use of a region on one process ends in the same error on every process, and the region goes on."""

from __future__ import annotations

import re

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed import misuse
from tests.distributed.worlds import run_world


def test_processes_answer_or_refuse_alike(tmp_path):
    """A refusal names the argument, or the query, whose shape is that of all.

    For labels it may name the table, which has their number of rows.
    """
    wrong, answered = {}, {}
    for case, texts in run_world(2, tmp_path, misuse.cases).items():
        said = {text.split("\n", 1)[0].split("; on process")[0] for text in texts}
        names = rf"{case[1]}|query|labels" if case[1] != "labels" else "labels|bias_table"
        if said != {"answered"} and not (
            len(said) == 1 and re.match(rf"(Value|Type|NotImplemented)Error: .*\b({names})\b", *said)
        ):
            wrong[case] = said
        answered.setdefault(case[:2], []).append(said == {"answered"})
    assert not wrong
    assert not [argument for argument, values in answered.items() if all(values)]
