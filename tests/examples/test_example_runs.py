"""Tests the shared code of the examples: runs are saved and not repeated."""

import json
import os
import time
from dataclasses import dataclass
from itertools import count

import example_runs
import pytest
import torch
from example_runs import Runs, lead
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
    """Records the requested runs, and stops at ``stop``."""

    def __init__(self, stop=None):
        self.asked, self.stop = [], stop

    def __call__(self, name, seed):
        if (name, seed) == self.stop:
            raise KeyboardInterrupt
        self.asked.append((name, seed))
        return Run(name, seed, seed / 4), weights(float(seed))


class Failing:
    def __call__(self, name, seed):
        raise KeyError("no such row")


def test_what_is_stopped_goes_on_seed_by_seed(tmp_path, capsys):
    first, second, folder = Trainer(stop=("a", 1)), Trainer(), tmp_path / "new"
    assert not Runs(folder, Run, {"steps": 3}).each(["a", "b c"], range(2), first, tell=str)
    assert first.asked == [("a", 0), ("b c", 0)]
    assert "stopped: 2 of 4 runs are kept" in capsys.readouterr().out
    for name in (".results.json.partial", ".model-a-1.pt.partial", "kept.partial"):
        (folder / name).write_text("half")
    runs = Runs(folder, Run, {"steps": 3})
    assert runs.done == [Run("a", 0, 0.0), Run("b c", 0, 0.0)]
    assert runs.each(["a", "b c"], range(2), second, tell=str)
    assert second.asked == [("a", 1), ("b c", 1)]
    assert "2 of 4 runs are already in" in capsys.readouterr().out
    record = json.loads((folder / "results.json").read_text())
    assert record.keys() == {"python", "torch", "relgraph", "steps", "runs"}
    assert [run["seed"] for run in record["runs"]] == [0, 0, 1, 1]
    assert record["runs"][3] == {"variant": "b c", "seed": 1, "share": 0.25}
    models = {"model-a-0.pt", "model-a-1.pt", "model-b-c-0.pt", "model-b-c-1.pt"}
    assert {path.name for path in folder.iterdir()} == {*models, "results.json", "kept.partial"}
    model = runs.load(weights(7.0), "b c", 1)
    assert model.weight.item() == 1.0
    assert not model.training


def test_each_run_that_is_done_prints_its_score_and_its_time(tmp_path, capsys, monkeypatch):
    now, seconds = [0.0], {"a": 10, "b": 40}
    monkeypatch.setattr(example_runs.time, "perf_counter", lambda: now[0])

    def timed(name, seed):
        now[0] += seconds[name] * (1 + seed)
        return Run(name, seed), None

    assert Runs(tmp_path, Run, {}).each(["a", "b"], range(2), timed, tell=lambda run: f"score {run.share}")
    assert capsys.readouterr().out.splitlines() == [
        "a, seed 0: score 0.5, 10 s; 1 of 4 runs done",
        "b, seed 0: score 0.5, 40 s; 2 of 4 runs done",
        "a, seed 1: score 0.5, 20 s; 3 of 4 runs done",
        "b, seed 1: score 0.5, 80 s; 4 of 4 runs done",
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are copies of this one")
def test_processes_side_by_side_keep_what_one_after_the_other_keep(tmp_path):
    one, several = Runs(tmp_path / "one", Run, {}), Runs(tmp_path / "several", Run, {})
    assert one.each(["a", "b", "c"], range(2), Trainer(), tell=str)
    trainer = Trainer()
    assert several.each(["a", "b", "c"], range(2), trainer, 2, tell=str)
    assert trainer.asked == []  # all runs were made in copies of this process
    assert several.done == one.done
    assert several.path.read_text() == one.path.read_text()
    assert several.load(weights(7.0), "c", 1).weight.item() == 1.0
    with pytest.raises(KeyError, match="no such row"):
        several.each(["d"], [0], Failing(), 2, tell=str)


def test_runs_count_with_the_same_settings_only(tmp_path):
    settings = {"sizes": (1, 2), "by": {3: 4}}
    runs = Runs(tmp_path, Run, settings)
    runs.each(["a"], [0], Trainer(), tell=str)
    runs.save(guess=0.25)
    assert len(Runs(tmp_path, Run, settings).done) == 1
    assert json.loads(runs.path.read_text())["notes"] == {"guess": 0.25}
    for other in ({}, {**settings, "sizes": [2]}, {**settings, "more": None, "steps": 1}):
        with pytest.raises(ValueError, match=r"results\.json must hold runs with these settings, .* --fresh"):
            Runs(tmp_path, Run, other)
    assert Runs(tmp_path, Run, {}, fresh=True).done == []


def test_a_lead_compares_each_seed_with_itself():
    ours, theirs = {0: 0.50, 1: 0.70, 2: 0.99}, {1: 0.60, 0: 0.40, 7: 0.1}
    assert lead(ours, theirs) == "+10.0 (+10.0 to +10.0)"
    assert lead({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.5}, 1, 3) == "+0.100 (-1.171 to +1.371)"
    assert lead(ours, {2: 0.98}) == "+1.0"


def test_a_training_takes_as_many_steps_as_asked():
    model, steps = weights(1.0), count()
    losses = (model(torch.ones(1, 1)).square().sum() + step for step in steps)
    example_runs.train(model, losses, 3, 0.1, title="a row")
    assert next(steps) == 3
    assert model.weight.item() < 1


def test_a_training_continues_within_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example_runs, "LINE_EVERY", 0.0)  # so that each step is kept

    def trained(stop=None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))

        def loss_of(step):
            if step == stop:
                raise KeyboardInterrupt(f"at step {step}")
            return model(torch.full((4, 3), float(step))).square().mean()

        seconds = example_runs.train_on(tmp_path, "a row", 1, model, loss_of, 6, 0.1)
        return model[0].weight, seconds

    monkeypatch.setattr(time, "thread_time", count().__next__)
    wanted, seconds = trained()
    with pytest.raises(KeyboardInterrupt, match="at step 4"):
        trained(stop=4)
    weight, both = trained()
    assert torch.equal(weight, wanted)
    assert both == seconds == 7  # the clock's calls: one per step, and one at the end
    assert not [*tmp_path.iterdir()]
    assert "a row, seed 1: step 6 of 6" in capsys.readouterr().err
