"""Tests the benchmark of patched models: every model at a toy length, and the cases that it refuses."""

import pytest

pytest.importorskip("transformers")

from docs.benchmarks import patched
from docs.benchmarks.ways import Wrong

CASES = {f"{case.name}": case for case in patched.cases(quick=True) + patched.whole_cases(quick=True)}


@pytest.mark.parametrize("name", CASES)
def test_patched_and_not_give_the_same(name):
    rows = patched.measured(CASES[name]._replace(rounds=1), with_peaks=False, quick=True)
    assert [row["theirs"] for row in rows] == list(CASES[name].ways)
    for row in rows:
        assert row["forward, ours ms"] > 0
        assert "(" in row["forward + backward, ours / theirs"]


def test_another_answer_is_not_timed(monkeypatch):
    right = patched.forward
    kept = []

    def forward(model, inputs):
        kept.append(model)
        return right(model, inputs) * (1.1 if len(kept) > 1 else 1.0)

    monkeypatch.setattr(patched, "forward", forward)
    with pytest.raises(Wrong, match="T5-small encoder, 40: eager is 0.1 from eager"):
        patched.measured(CASES["T5-small encoder"], with_peaks=False, quick=True)
