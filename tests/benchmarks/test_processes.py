"""Tests the cost model of several processes: it counts what processes send."""

from __future__ import annotations

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from docs.benchmarks.processes import __main__ as command
from docs.benchmarks.processes import counted, model, peaks
from docs.benchmarks.processes.model import METHODS, Sequences, random_halo

WORK = Sequences(n=32, batch=2, heads=4, kv_heads=2, size=8, labels=5)


@pytest.fixture(scope="module")
def counts():
    return counted.count(2)


def test_two_processes_send_what_the_model_says(counts):
    exact = [row for row in counts if "estimated" not in row.what]
    assert len(exact) == 2 * len(METHODS) * len(counted.CASES) + 3
    assert [row for row in exact if row.counted != row.model] == []
    assert {row.what.split(",")[0].split(":")[0] for row in exact} == {*METHODS, "nodes"}


def test_bytes_by_hand():
    """Keys and values of 8 rows, 2 heads of 8 and 2 batch rows are 512 numbers; queries of 4 heads are as many."""
    assert model.context_bytes("allgather", WORK, 4) == (3 * 512 * 4, 3 * 512 * 4, 0)
    assert model.context_bytes("ring", WORK, 4) == (3 * 2048, 3 * 2048 + 4 * 2048, 2 * 3 * 2048)
    assert model.context_bytes("ulysses", WORK, 4)[:2] == (0.75 * (3 * 2048 + 64 * 4), 0.75 * 3 * 2048)
    assert model.setup_bytes(10, 4) == 8 * 13


def test_a_halo_of_random_sources():
    """With many edges a node reaches every node; with few, each edge reaches one."""
    assert random_halo(100, 10**9, 4) == pytest.approx(75)
    assert random_halo(10**9, 1000, 4) == pytest.approx(0.75 * 250, rel=1e-5)
    assert random_halo(100, 1000, 1) == 0


def test_bytes_that_are_far_from_the_model_fail(capsys, monkeypatch):
    found = [counted.Count("a", 104, 100.0), counted.Count("b", 106, 100.0)]
    monkeypatch.setattr(counted, "count", lambda size: found)
    assert command.main(["bytes", "--quick"]) == 1
    assert "2 counts, 1 of them more than 5%" in capsys.readouterr().out
    del found[1]
    assert command.main(["bytes", "--processes", "2", "4"]) == 0


@pytest.mark.slow
def test_growth_of_memory(capsys):
    """Ratios at a length where inputs outweigh the fixed costs; and the command for smaller ratios."""
    setting = peaks.Setting(n=4096)
    (one,) = peaks.growths(setting, 1, None)
    for method, most in (("allgather", 0.7), ("ring", 0.45), ("ulysses", 0.45)):
        assert max(peaks.growths(setting, 4, method)) <= most * one
    assert command.main(["memory", "--quick", "--processes", "2"]) == 0
    assert "Each further edge" in capsys.readouterr().out
