"""What examples share: training, runs that are kept and not done twice, and pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import pytest
from example_runs import Runs, train, until_stopped
from torch import nn


@dataclass
class Run:
    variant: str
    seed: int
    share: float = 0.5


def weights(value):
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, value)
    return layer


class Trainer:
    """Notes what was asked for; stops where ``stop`` says."""

    def __init__(self, stop=None):
        self.asked, self.stop = [], stop

    def __call__(self, name, seed):
        if (name, seed) == self.stop:
            raise KeyboardInterrupt
        self.asked.append((name, seed))
        return Run(name, seed, seed / 4), weights(float(seed))


def test_training_warms_up_and_decays_and_computes_each_loss_when_it_is_due():
    """With a loss that is linear, AdamW moves a weight by its rate in every step, but for the decay."""
    model, moved = weights(0.0), []

    def losses():
        for _ in count():
            moved.append(model.weight.item())
            yield -model.weight.sum()

    found = train(model, losses(), 10, 1e-3, warm_up=0.4, title="")
    assert found == [-value for value in moved]
    moved.append(model.weight.item())
    rates = [1e-3 * min((step + 1) / 4, 1 - step / 10) for step in range(10)]
    steps = [after - before for before, after in pairwise(moved)]
    assert steps == pytest.approx(rates, rel=1e-3)


def test_all_rows_of_a_seed_come_before_the_next_seed(tmp_path):
    runs, trainer = Runs(tmp_path / "new", Run, {"steps": 3}), Trainer()
    assert runs.each(["a", "b c"], range(2), trainer)
    assert trainer.asked == [("a", 0), ("b c", 0), ("a", 1), ("b c", 1)]
    record = json.loads((tmp_path / "new" / "results.json").read_text())
    assert record.keys() == {"python", "torch", "relgraph", "steps", "runs"}
    assert record["runs"][3] == {"variant": "b c", "seed": 1, "share": 0.25}
    models = ["model-a-0.pt", "model-a-1.pt", "model-b-c-0.pt", "model-b-c-1.pt"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [*models, "results.json"]
    model = runs.load(weights(7.0), "b c", 1)
    assert model.weight.item() == 1.0
    assert not model.training


def test_what_is_stopped_goes_on_where_it_was(tmp_path, capsys):
    assert not Runs(tmp_path, Run, {}).each(["a", "b"], range(2), Trainer(stop=("a", 1)))
    assert "stopped: 2 of 4 runs are kept" in capsys.readouterr().out
    second, runs = Trainer(), Runs(tmp_path, Run, {})
    assert runs.done == [Run("a", 0, 0.0), Run("b", 0, 0.0)]
    assert runs.each(["a", "b"], range(2), second)
    assert second.asked == [("a", 1), ("b", 1)]
    assert "2 of 4 runs stand in" in capsys.readouterr().out
    assert [run.seed for run in Runs(tmp_path, Run, {}).done] == [0, 0, 1, 1]


def test_runs_count_with_the_same_settings_only(tmp_path):
    settings = {"sizes": (1, 2), "by": {3: 4}}
    runs = Runs(tmp_path, Run, settings)
    runs.each(["a"], [0], Trainer())
    runs.save(guess=0.25)
    assert len(Runs(tmp_path, Run, settings).done) == 1
    assert json.loads(runs.path.read_text())["notes"] == {"guess": 0.25}
    for other in ({}, {**settings, "sizes": [2]}, {**settings, "more": None, "steps": 1}):
        with pytest.raises(ValueError, match=r"results\.json must hold runs with these settings, .* --fresh"):
            Runs(tmp_path, Run, other)
    assert Runs(tmp_path, Run, {}, fresh=True).done == []


def test_a_write_that_fails_leaves_what_stood(tmp_path, monkeypatch):
    runs = Runs(tmp_path, Run, {})
    runs.each(["a"], [0], Trainer())
    before = runs.path.read_bytes()

    def fail(path, text, **_):
        path.write_bytes(text[:10].encode())
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="the disk is full"):
        runs.save()
    assert runs.path.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_what_a_killed_command_left_half_written_goes(tmp_path):
    for name in (".results.json.7.partial", ".model-a-0.pt.7.partial", "kept.partial"):
        (tmp_path / name).write_bytes(b"half")
    Runs(tmp_path, Run, {})
    assert [path.name for path in tmp_path.iterdir()] == ["kept.partial"]


def test_ctrl_c_outside_of_runs_is_no_traceback():
    def main():
        raise KeyboardInterrupt

    assert until_stopped(main) == 130
    assert until_stopped(lambda: 0) == 0
