"""Tests the cost model of several processes: it counts what processes send, and its choices follow its assumptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from docs.benchmarks.processes import __main__ as command
from docs.benchmarks.processes import choose, counted, model, peaks
from docs.benchmarks.processes.choose import Machine
from docs.benchmarks.processes.model import METHODS, Mode
from docs.benchmarks.processes.work import Graph, Sequences

WORK = Sequences(n=32, batch=2, heads=4, kv_heads=2, size=8, labels=5)
LARGE, HUGE = Sequences(**command.LARGE), Graph(**command.HUGE)


def taken(plans):
    """The family that the model chooses; None if nothing is possible."""
    return None if plans[0].why else plans[0].family


def plan_of(plans, family):
    (found,) = [plan for plan in plans if plan.family == family]
    return found


@pytest.fixture(scope="module")
def counts():
    return counted.count(2)


def test_two_processes_send_what_the_model_says(counts):
    exact = [row for row in counts if "estimated" not in row.what]
    assert len(exact) == 2 * len(METHODS) * len(counted.CASES) + 3 + 4
    assert [row for row in exact if row.counted != row.model] == []
    assert {row.what.split(",")[0].split(":")[0] for row in exact} == {*METHODS, "nodes", "heads", "DDP", "FSDP2"}


def test_bytes_by_hand():
    """Keys and values of 8 rows, 2 heads of 8 and 2 batch rows are 512 numbers; queries of 4 heads are as many."""
    assert model.context_bytes("allgather", WORK, 4) == (3 * 512 * 4, 3 * 512 * 4, 0)
    assert model.context_bytes("ring", WORK, 4) == (3 * 2048, 3 * 2048 + 4 * 2048, 2 * 3 * 2048)
    assert model.context_bytes("ulysses", WORK, 4)[:2] == (0.75 * (3 * 2048 + 64 * 4), 0.75 * 3 * 2048)
    assert model.heads_bytes(WORK, 4)[:2] == (1.5 * 2 * 32 * 32 * 4, 1.5 * (2 * 32 * 32 * 4 + 2 * 5 * 8 * 4))
    assert model.setup_bytes(10, 4) == 8 * 13
    assert model.replicated_bytes(100, 4) == 600
    assert model.sharded_bytes(100, 2, 4) == 450


def test_a_halo_of_random_sources():
    """With many edges a node reaches every node; with few, each edge reaches one. A partitioner leaves a share."""
    assert Graph(100, 10**9).halo_rows(4) == pytest.approx(75)
    assert Graph(10**9, 1000).halo_rows(4) == pytest.approx(0.75 * 250, rel=1e-5)
    assert Graph(100, 1000, halo=0.1).halo_rows(4) == pytest.approx(0.1 * Graph(100, 1000).halo_rows(4))
    assert Graph(100, 1000).halo_rows(1) == 0


def test_128k_tokens_on_64():
    machine = Machine()
    plans = choose.sequence_plans(LARGE, machine)
    assert taken(plans) == "heads + allgather"
    assert plan_of(plans, "heads + allgather").mode == Mode(heads=8, rows=8, method="allgather")
    sharded = choose.sequence_plans(LARGE, replace(machine, memory=30e9))[0].mode  # a copy of parameters does not fit
    assert sharded == Mode(heads=8, rows=8, method="allgather", sharded=True)
    assert "642 GB" in plan_of(plans, "one process").why
    assert "key heads" in plan_of(plans, "ulysses").why
    assert "batch of 1" in plan_of(plans, "DDP").why
    for plan in plans:
        if plan.mode is not None and plan.family != "one process":
            assert plan.mode.processes == machine.processes


@pytest.mark.parametrize(
    ("work", "machine", "family"),
    [
        pytest.param(LARGE, {"memory": 15e9}, "heads + ring", id="keys of all rows no longer fit"),
        pytest.param(LARGE, {"memory": 1e9}, None, id="nothing fits"),
        pytest.param(replace(LARGE, heads=64, kv_heads=64, size=64), {}, "ulysses", id="many small key heads"),
        pytest.param(replace(LARGE, batch=64, n=8192), {}, "FSDP2", id="many sequences"),
        pytest.param(replace(LARGE, batch=64, n=8192, layers=2), {"far": 50e9}, "DDP", id="and few parameters"),
    ],
)
def test_choices_follow_assumptions(work, machine, family):
    assert taken(choose.sequence_plans(work, Machine(**machine))) == family


def test_a_billion_edges_on_32():
    machine = Machine(processes=32)
    plans = choose.graph_plans(HUGE, machine)
    assert taken(plans) == "nodes"
    assert plans[0].computing == pytest.approx(0.096, rel=0.01)  # bytes from memory, more than operations
    assert all(plan.why for plan in plans[1:])
    assert taken(choose.graph_plans(replace(HUGE, halo=1.0), machine)) is None
    near = choose.graph_plans(replace(HUGE, nodes=1_000_000), replace(machine, memory=400e9))
    assert taken(near) == "nodes"
    assert plan_of(near, "one process").why == ""


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


def test_the_command_prints_its_assumptions(capsys):
    assert command.main(["choose", "graph", "--halo", "1"]) == 1
    shown = capsys.readouterr().out
    assert "halo=1.0" in shown
    assert "taken" not in shown
