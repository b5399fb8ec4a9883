"""Tests a run: what is timed, what is left out and why, and what is saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from docs.benchmarks import measure, results, run, sequences
from docs.benchmarks.sweeps import Sequence, Sweep, described
from docs.benchmarks.ways import Made, Side, Way

TINY = Sequence(heads=2, length=32, size=16, labels=4)
FLOOR = sequences.FLOOR
SWEEP = Sweep("length", "length", "n", (TINY,))


def options(**given):
    return run.Options(**{"rounds": 2, "budget": 60.0, "memory": 1 << 40, "peaks": 0, **given})


def rows_of(given, only=""):
    return {row["way"]: row for row in run.measure(TINY, ["length"], options(only=only, **given))}


def test_what_needs_too_much_memory_is_said():
    """Numbers for every pair fit in 400 kB; vectors for every pair and head do not."""
    rows = rows_of({"memory": 400_000}, "SDPA|split|reference")
    assert [way for way, row in rows.items() if "not_run" not in row] == [FLOOR, "split term, plain torch"]
    reason = rows["relgraph reference, distance"]["not_run"]
    assert reason == "not run: needs about 0.000732 GB, the limit is 0.000373 GB"


def side(*ways):
    return Side(lambda s: list(ways), sequences.Inputs, sequences.SIDE.small, lambda way, made, inputs: 0.0)


def made_of(call):
    return lambda inputs: Made(lambda: call(inputs), inputs.qkv)


def plain(inputs):
    return sequences.sdpa(inputs).call()


def full(_):
    raise torch.OutOfMemoryError("full")


def test_out_of_memory_is_said_wherever_it_comes(monkeypatch):
    def built(inputs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    ways = [
        Way("floor", made_of(plain), lambda s: 1),
        Way("built", built, lambda s: 1),
        Way("called", made_of(full), lambda s: 1),
    ]
    monkeypatch.setattr(run, "side_of", lambda setting: side(*ways))
    rows = {row["way"]: row for row in run.measure(TINY, ["length"], options())}
    assert rows["built"]["not_run"] == rows["called"]["not_run"] == "not run: out of memory"
    assert rows["floor"]["rounds"] == 2


def test_a_run_keeps_to_its_minutes(tmp_path):
    short = options(only="SDPA", minutes=1e-6)
    assert run.run([SWEEP], short, tmp_path, "cpu") == 0
    assert [row["not_run"] for row in results.read(tmp_path)["rows"]] == ["not run: out of time"]


def test_on_a_gpu_a_failing_way_ends_nothing(monkeypatch, tmp_path):
    """The fake GPU is a CPU under another name."""

    class CompilationError(Exception):
        pass

    def broken(inputs):
        raise CompilationError("no such instruction\nat line 7")

    ways = [Way("floor", made_of(plain), lambda s: 1), Way("broken", broken, lambda s: 1)]
    monkeypatch.setattr(run, "side_of", lambda setting: side(*ways))
    sweep = Sweep("length", "length", "n", (replace(TINY, device="cpu:0"),))
    assert run.run([sweep], options(), tmp_path, "cpu:0") == 1
    rows = {row["way"]: row for row in results.read(tmp_path)["rows"]}
    assert rows["broken"]["not_run"] == "not run: failed: CompilationError: no such instruction"
    assert "not_run" not in rows["floor"]


def test_a_wrong_way_is_counted(monkeypatch, tmp_path, capsys):
    floor, *_ = sequences.ways(TINY)
    wrong = Way("wrong", sequences.sdpa, sequences.linear, sequences.Meaning())
    real = sequences.SIDE
    monkeypatch.setattr(
        run, "side_of", lambda setting: Side(lambda s: [floor, wrong], real.inputs, real.small, real.check)
    )
    assert run.run([SWEEP], options(), tmp_path, "cpu") == 1
    assert "wrong: not run: wrong values: wrong: output is" in capsys.readouterr().out


def test_slow_ways_have_fewer_rounds():
    """At least three rounds, and otherwise as many as the budget allows; the floor has all of them."""
    inputs = sequences.Inputs(TINY)
    ready = {"floor": sequences.sdpa(inputs), "slow": sequences.sdpa(inputs)}
    found = run.turns(ready, "floor", inputs.grad, options(rounds=6, budget=1e-9), "cpu")
    assert (found["floor"]["rounds"], found["slow"]["rounds"]) == (6, run.LEAST_ROUNDS)


def test_figures():
    found = run.figures({1: (2.0, 8.0), 2: (4.0, 8.0)}, {1: (1.0, 2.0), 2: (1.0, 4.0)}, trains=True)
    assert found == {
        "rounds": 2,
        "forward": {"ms": [2.5, 3.0, 3.5], "turns": {1: 2.0, 2: 4.0}, "times": [2.5, 3.0, 3.5]},
        "forward+backward": {"ms": [8.0, 8.0, 8.0], "turns": {1: 8.0, 2: 8.0}, "times": [2.5, 3.0, 3.5]},
    }
    assert list(run.figures({1: (2.0, 0.0)}, {1: (1.0, 1.0)}, trains=False)) == ["rounds", "forward"]


def test_report_of_rounds():
    taken = {"a": [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0)], "b": [(2.0, 8.0), (4.0, 16.0), (3.0, 8.0)]}
    first, second = measure.report(taken)
    assert first["forward ×"] == "1.00 (1.00–1.00)"
    assert (second["forward ms"], second["forward ×"]) == (3.0, "2.00 (2.00–2.50)")
    assert second["forward+backward ×"] == "4.00 (4.00–4.00)"


def test_peak_of_a_known_size():
    held = []
    assert measure.peak_mib(lambda: held.append(torch.ones(64 << 18))) == pytest.approx(64, abs=8)
    # memory that was freed earlier does not count
    assert measure.peak_mib(lambda: None) < 8


def test_results_go_on_and_replace(tmp_path):
    head = {"device": "cpu", "torch": "1"}
    row = {"setting": described(TINY), "way": "a", "not_run": "not run: old"}
    first = results.Results(tmp_path, head, [SWEEP])
    first.put(row)
    first.put({**row, "way": "b"})
    first.save()
    second = results.Results(tmp_path, {**head}, [])
    second.put({**row, "not_run": "not run: new"})
    second.save()
    assert len(second.rows) == 2
    found = results.points(results.read(tmp_path), "length")
    assert {way: row[TINY.length]["not_run"] for way, row in found.items()} == {
        "a": "not run: new",
        "b": "not run: old",
    }
