"""Tests a run: what is timed, what is left out and why, and what is saved."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docs.benchmarks import about, measure, peaks, results, run, sequences, step
from docs.benchmarks.sweeps import WIDE, Sequence, Sweep, described, each, restored, sweeps
from docs.benchmarks.ways import Made, NotRun, Side, Way

TINY = Sequence(heads=2, length=32, size=16, labels=4)
FLOOR = sequences.FLOOR
SWEEP = Sweep("length", "length", "n", (TINY,))


def options(**given):
    return run.Options(**{"rounds": 2, "budget": 60.0, "memory": 1 << 40, "peaks": 0, **given})


def rows_of(given, only=""):
    return {row["way"]: row for row in run.measure(TINY, ["length"], options(only=only, **given))}


def test_rows_hold_times_and_their_ratios():
    rows = rows_of({}, "length: relgraph chunked, distance$")
    assert list(rows) == [FLOOR, "relgraph chunked, distance"]
    floor, ours = rows.values()
    for what in ("forward", "forward+backward"):
        assert floor[what]["times"] == [1, 1, 1]
        ratios = [ours[what]["turns"][turn] / floor[what]["turns"][turn] for turn in (1, 2)]
        assert ours[what]["times"][1] == pytest.approx(sum(ratios) / 2, rel=0.01)
        assert ours[what]["ms"][0] <= ours[what]["ms"][1] <= ours[what]["ms"][2]
    assert ours["error"] < 1e-5
    assert ours["rounds"] == 2


def test_only_is_a_pattern_of_sweep_and_way():
    assert run.measure(TINY, ["length"], options(only="^edges")) == []
    assert list(rows_of({}, "^length: SDPA")) == [FLOOR]


def test_what_needs_too_much_memory_is_said():
    """Numbers for every pair fit in 400 kB; vectors for every pair and head do not."""
    rows = rows_of({"memory": 400_000}, "SDPA|split|reference")
    assert [way for way, row in rows.items() if "not_run" not in row] == [FLOOR, "split term, plain torch"]
    reason = rows["relgraph reference, distance"]["not_run"]
    assert reason == "not run: needs about 0.000732 GB, the limit is 0.000373 GB"


def test_what_takes_too_long_is_said():
    rows = rows_of({"budget": 1e-9}, "SDPA")
    assert rows[FLOOR]["not_run"] == "not run: one call took 0 s, the budget is 1e-09 s"


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


def test_what_an_implementation_cannot_do_is_said(monkeypatch):
    def unable(_):
        raise NotImplementedError("impl='triton' needs a GPU")

    ways = [Way("floor", made_of(plain), lambda s: 1), Way("unable", unable, lambda s: 1)]
    monkeypatch.setattr(run, "side_of", lambda setting: side(*ways))
    rows = {row["way"]: row for row in run.measure(TINY, ["length"], options())}
    assert rows["unable"]["not_run"] == "not run: impl='triton' needs a GPU"
    assert "not_run" not in rows["floor"]


def test_what_does_not_begin_in_time_is_said():
    over = run.Box(0.0, 1.0)
    rows = run.measure(TINY, ["length"], options(only="SDPA|relgraph"), over)
    assert len(rows) > 3
    assert {row["not_run"] for row in rows} == {"not run: out of time"}


def test_every_setting_has_a_share_of_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(run.time, "perf_counter", lambda: now[0])
    box = run.Box.of(160.0, 3)
    assert (box.begins, box.ends) == (100.0, 130.0)
    assert (box.full(), box.each_of(4, 30.0), box.each_of(4, 2.0)) == (False, 7.5, 2.0)
    now[0] = 119.0
    assert (box.full(), box.full(run.PREPARING)) == (False, True)
    now[0] = 140.0
    assert (box.full(), box.each_of(4, 30.0)) == (True, 0.0)
    assert run.Box.of(160.0, 1).ends == 160.0
    assert run.Box.of(120.0, 1).full()
    endless = run.Box.of(None, 1)
    assert (endless.full(), endless.each_of(4, 30.0)) == (False, 30.0)


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


def test_ways_of_a_gpu():
    names = [way.name for way in sequences.ways(replace(TINY, device="cuda"))]
    assert names[:9] == [
        FLOOR,
        *(f"relgraph triton, {what}" for what in ("no labels", "distance", "arbitrary labels", "distance, key term")),
        "SDPA, cuDNN",
        "paper's computation (eqs. 3–4)",
        "FlexAttention, key term",
        "relgraph chunked, no labels",
    ]
    assert len(set(names)) == len(names)
    assert set(names) >= {way.name for way in sequences.ways(TINY) if "native" not in way.name}


def test_cudnn_where_there_is_none_is_said():
    with pytest.raises(NotRun, match="not run: cuDNN does not do this here"):
        sequences.cudnn(sequences.Inputs(TINY))


@pytest.mark.parametrize("name", ["floor", "other"])
def test_other_errors_are_not_swallowed(monkeypatch, name):
    def broken(inputs):
        raise RuntimeError("something else")

    ways = {"floor": made_of(plain), "other": made_of(plain)} | {name: made_of(broken)}
    monkeypatch.setattr(run, "side_of", lambda setting: side(*(Way(n, make, lambda s: 1) for n, make in ways.items())))
    with pytest.raises(RuntimeError, match="something else"):
        run.measure(TINY, ["length"], options())
    monkeypatch.undo()

    def unbuilt(inputs):
        raise RuntimeError("no such thing")

    ways = [Way(n, unbuilt if n == name else made_of(plain), lambda s: 1) for n in ("floor", "other")]
    monkeypatch.setattr(run, "side_of", lambda setting: side(*ways))
    with pytest.raises(RuntimeError, match="no such thing"):
        run.measure(TINY, ["length"], options())


def test_the_floor_out_of_memory_is_an_error_while_timed(monkeypatch):
    monkeypatch.setattr(run, "side_of", lambda setting: side(Way("floor", made_of(full), lambda s: 1)))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        run.measure(TINY, ["length"], options())


def test_times_without_the_floor(monkeypatch):
    ways = [Way("floor", made_of(plain), lambda s: 1 << 50), Way("other", made_of(plain), lambda s: 1)]
    monkeypatch.setattr(run, "side_of", lambda setting: side(*ways))
    rows = {row["way"]: row for row in run.measure(TINY, ["length"], options())}
    assert "not_run" in rows["floor"]
    assert "times" not in rows["other"]["forward"]
    assert rows["other"]["forward"]["ms"][1] > 0


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


def test_a_package_that_is_missing_is_said(monkeypatch):
    def missing(setting):
        raise run.NotRun("not run: No module named 'torch_geometric'")

    monkeypatch.setattr(run, "side_of", missing)
    (row,) = run.measure(TINY, ["length"], options())
    assert (row["way"], row["not_run"]) == ("all ways", "not run: No module named 'torch_geometric'")
    assert run.measure(TINY, ["length"], options(only="edges")) == []


def test_report_of_rounds():
    taken = {"a": [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0)], "b": [(2.0, 8.0), (4.0, 16.0), (3.0, 8.0)]}
    first, second = measure.report(taken)
    assert first["forward ×"] == "1.00 (1.00–1.00)"
    assert (second["forward ms"], second["forward ×"]) == (3.0, "2.00 (2.00–2.50)")
    assert second["forward+backward ×"] == "4.00 (4.00–4.00)"


def test_rounds_count_all_but_the_first():
    calls = []
    x = torch.ones(2, requires_grad=True)
    taken = measure.rounds({"a": lambda: calls.append(0) or x * 2}, 3)
    assert (len(calls), len(taken["a"])) == (4, 3)
    assert all(forward <= both for forward, both in taken["a"])
    assert x.grad is not None


def test_peak_of_a_known_size():
    held = []
    assert measure.peak_mib(lambda: held.append(torch.ones(64 << 18))) == pytest.approx(64, abs=8)
    # memory that was freed earlier does not count
    assert measure.peak_mib(lambda: None) < 8


def test_peak_of_a_fresh_process():
    large = Sequence(heads=1, length=2048, size=16)
    taken = peaks.fresh_peak(large, "split term, plain torch")
    # scores, weights, gathered terms and their gradients: several matrices of 16 MiB, and ids of 32 MiB
    assert 60 < taken < 300


def ended(code, output="", error=""):
    return lambda *_, **__: subprocess.CompletedProcess([], code, output, error)


def test_a_peak_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(peaks.subprocess, "run", ended(1, error="no such way"))
    with pytest.raises(RuntimeError, match=r"the peak of it could not be measured:\nno such way"):
        peaks.fresh_peak(TINY, "it")


def test_peaks_stand_in_rows(monkeypatch):
    monkeypatch.setattr(peaks, "fresh_peak", lambda setting, way: {FLOOR: 3.0}.get(way))
    rows = rows_of({"peaks": 3}, "SDPA|chunked, distance$")
    assert rows[FLOOR]["MiB"] == [3.0, 3.0, 3.0]
    assert "MiB" not in rows["relgraph chunked, distance"]
    assert rows["relgraph chunked, distance"]["note"] == "; no peak: its process was killed"


def test_a_killed_process_has_no_peak(monkeypatch):
    monkeypatch.setattr(peaks.subprocess, "run", ended(-9))
    assert peaks.fresh_peak(TINY, FLOOR) is None


def test_settings_survive_a_file():
    for _, setting in each(sweeps("cpu", quick=True)):
        assert restored(json.loads(json.dumps(described(setting)))) == setting


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_sweeps(device, dtype):
    found = {sweep.name: sweep for sweep in sweeps(device, quick=False)}
    order = ["length", "size", "labels", "edges", "graphs"]
    assert list(found) == (order if device == "cpu" else ["length", "edges", WIDE, "graphs", "size", "labels"])
    if device == "cuda":
        assert {s.size for s in found[WIDE].settings} == {128}
        assert [s.length for s in found[WIDE].settings] == [512, 1024, 2048, 4096, 8192, 16384]
    for sweep in found.values():
        values = [getattr(setting, sweep.field) for setting in sweep.settings]
        assert values == sorted(set(values))
        assert {setting.device for setting in sweep.settings} == {device}
    assert found["length"].settings[0].dtype == dtype
    assert found["edges"].settings[0].dtype == "float32"


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
    found = results.points(results.read(tmp_path), "length")
    assert {way: row[TINY.length]["not_run"] for way, row in found.items()} == {
        "a": "not run: new",
        "b": "not run: old",
    }


def test_results_of_other_versions_are_refused(tmp_path):
    results.Results(tmp_path, {"torch": "1", "date": "then"}, []).save()
    results.Results(tmp_path, {"torch": "1", "date": "now"}, []).save()
    with pytest.raises(
        ValueError, match=r"same machine and versions: torch is '1' there and '2' here; choose another --out"
    ):
        results.Results(tmp_path, {"torch": "2", "date": "now"}, [])


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--out must be a folder with results\.json"):
        results.read(tmp_path)


def test_memory_must_be_given_where_the_system_does_not_say(monkeypatch):
    assert about.free_bytes("cpu") > 1 << 20
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(ValueError, match="--memory must be given"):
        about.free_bytes("cpu")


def test_a_training_step_learns():
    work = step.Work(tokens=32, length=8, vocabulary=30, size=64, layers=1)
    assert work.batch == 4
    one = step.Step(work, "relative", "cpu")
    model = one.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    one()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert any("table" in name for name in moved)
    assert "embedding.weight" in moved


def test_steps_of_both_positions():
    rows = step.measure(step.Work(tokens=16, length=8, vocabulary=30, size=64, layers=1), 2, "cpu")
    assert [row["positions"] for row in rows] == ["sinusoidal", "relative"]
    assert rows[0]["×"] == "1.000 (1.000–1.000)"
    assert rows[1]["tokens / s"] == pytest.approx(16 / rows[1]["step ms"] * 1e3, rel=0.05)
