"""relgraph against transformers' own code: both compute the same, and missing packages are reported."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import pytest
import torch

import relgraph as rg
from docs.benchmarks import attention, owners
from docs.benchmarks.ways import NotRun, Wrong

QUICK = owners.cases(quick=True)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.fixture
def without_transformers(monkeypatch):
    monkeypatch.setattr(owners, "PACKAGE", "no_such_package")


@needs_transformers
@pytest.mark.parametrize("case", QUICK, ids=[f"{case.name}, n={case.length}" for case in QUICK])
def test_ours_and_theirs_are_the_same_and_timed(case):
    for row in owners.measured(case, "dense", 2):
        assert float(row["difference"]) < owners.ROUNDING
        assert row["forward+backward, theirs ms"] > 0
        assert row["forward+backward, ours ms"] > 0


@needs_transformers
def test_another_function_is_found_out():
    case = QUICK[-1]
    wrong = replace(case, ours=lambda *given: lambda: case.ours(*given)() * 1.001)
    with pytest.raises(Wrong, match=r"Wav2Vec2-BERT: output is 0.001 from eager, at most 5e-05 is allowed"):
        owners.compared(wrong, "dense")


def test_a_missing_transformers_is_said(without_transformers):
    for case in QUICK:
        with pytest.raises(NotRun, match="not run: transformers is not installed: No module named 'no_such_package'"):
            owners.measured(case, None, 1)


def test_the_command_without_transformers(without_transformers, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention.py", "owners", "--quick"])
    with pytest.raises(SystemExit, match="nothing was measured"):
        attention.main()
    assert "DeBERTa-v3, n=24: not run: transformers is not installed" in capsys.readouterr().out


def test_the_command_prints_a_row_for_each_of_their_implementations(monkeypatch, capsys, tmp_path):
    """Our own code replaces theirs here, so that the test runs without transformers."""
    case = replace(QUICK[-1], theirs=lambda case, leaves: {"own": case.ours(case, leaves, "reference")})
    monkeypatch.setattr(attention, "cases", lambda quick: [case])
    path = tmp_path / "rows.json"
    options = ["owners", "--rounds", "2", "--impl", "dense", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["attention.py", *options])
    attention.main()
    (row,) = json.loads(path.read_text())
    assert (row["model"], row["n"], row["theirs"]) == ("Wav2Vec2-BERT", 90, "own")
    assert "| Wav2Vec2-BERT | 90 | own |" in capsys.readouterr().out


def test_what_transformers_flips_is_flipped():
    """SAM has the row for a key above its query in the second half of a table, and does not scale it."""
    case = next(case for case in QUICK if case.name.startswith("SAM"))
    leaves, side = case.leaves(), owners.side_of(case)
    query, key, value, rows, columns = (leaf.detach().double() for leaf in leaves.values())
    at = torch.arange(case.length)
    down, right = (place[:, None] - place + side - 1 for place in (at // side, at % side))
    scores = query @ key.mT / owners.SIZE**0.5
    scores = scores + torch.einsum("bhid,ijd->bhij", query, rows[down] + columns[right])
    wanted = scores.softmax(-1) @ value
    torch.testing.assert_close(case.ours(case, leaves, "dense")().double(), wanted, atol=1e-5, rtol=0)


def test_the_lengths_are_those_of_the_models():
    assert [(case.name, case.length) for case in owners.cases()] == [
        ("DeBERTa-v3", 512), ("DeBERTa-v3", 2048), ("SAM, 32 × 32", 1024), ("T5", 2048), ("Wav2Vec2-BERT", 1000),
    ]  # fmt: skip
    assert isinstance(rg.ClippedDistance((owners.LEFT, owners.RIGHT))(4), rg.Labels)
