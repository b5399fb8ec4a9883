"""What examples share: runs are kept and not done twice, shares are printed, pictures written."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from example_runs import Runs, announce, bars, by_row, percent, picture, positive, until_stopped


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


def test_all_rows_of_a_seed_come_before_the_next_seed(tmp_path):
    runs, trainer = Runs(tmp_path / "new", Run, {"steps": 3}), Trainer()
    assert runs.each(["a", "b c"], range(2), trainer)
    assert trainer.asked == [("a", 0), ("b c", 0), ("a", 1), ("b c", 1)]
    record = json.loads((tmp_path / "new" / "results.json").read_text())
    assert record.keys() == {"python", "torch", "relgraph", "steps", "runs"}
    assert record["runs"][3] == {"variant": "b c", "seed": 1, "share": 0.25}
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        *("model-a-0.pt", "model-a-1.pt", "model-b-c-0.pt", "model-b-c-1.pt", "results.json")
    ]


def test_what_is_stopped_goes_on_where_it_was(tmp_path, capsys):
    first = Trainer(stop=("a", 1))
    assert not Runs(tmp_path, Run, {}).each(["a", "b"], range(2), first)
    assert "stopped: 2 of 4 runs are kept" in capsys.readouterr().out
    second = Trainer()
    runs = Runs(tmp_path, Run, {})
    assert runs.done == [Run("a", 0, 0.0), Run("b", 0, 0.0)]
    assert runs.each(["a", "b"], range(2), second)
    assert second.asked == [("a", 1), ("b", 1)]
    assert "2 of 4 runs stand in" in capsys.readouterr().out
    assert [run.seed for run in Runs(tmp_path, Run, {}).done] == [0, 0, 1, 1]


def test_what_stands_is_not_done_again(tmp_path):
    Runs(tmp_path, Run, {}).each(["a"], [0], Trainer())
    trainer = Trainer()
    assert Runs(tmp_path, Run, {}).each(["a", "b"], [0], trainer)
    assert trainer.asked == [("b", 0)]


def test_fresh_begins_anew(tmp_path):
    Runs(tmp_path, Run, {"steps": 1}).each(["a"], [0], Trainer())
    runs = Runs(tmp_path, Run, {"steps": 2}, fresh=True)
    assert runs.done == []
    runs.each(["b"], [0], Trainer())
    assert [run.variant for run in Runs(tmp_path, Run, {"steps": 2}).done] == ["b"]


@pytest.mark.parametrize("settings", [{"steps": 2}, {}, {"steps": 1, "more": None, "size": [2]}])
def test_runs_with_other_settings_are_an_error(tmp_path, settings):
    Runs(tmp_path, Run, {"steps": 1}).each(["a"], [0], Trainer())
    with pytest.raises(ValueError, match=r"results\.json must hold runs with these settings, .* begin anew by --fresh"):
        Runs(tmp_path, Run, settings)


def test_settings_are_compared_as_json_has_them(tmp_path):
    settings = {"sizes": (1, 2), "by": {3: 4}}
    Runs(tmp_path, Run, settings).each(["a"], [0], Trainer())
    assert len(Runs(tmp_path, Run, settings).done) == 1


def test_notes_are_written_and_do_not_count_as_settings(tmp_path):
    runs = Runs(tmp_path, Run, {})
    runs.each(["a"], [0], Trainer())
    runs.save(guess=0.25, word="é⁻¹")
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(text)["notes"] == {"guess": 0.25, "word": "é⁻¹"}
    assert "é⁻¹" in text
    assert len(Runs(tmp_path, Run, {}).done) == 1


def test_a_kept_model_is_read_back(tmp_path):
    runs = Runs(tmp_path, Run, {})
    runs.each(["a b"], [0, 3], Trainer())
    model = runs.load(weights(7.0), "a b", 3)
    assert model.weight.item() == 3.0
    assert not model.training


def test_a_run_without_a_model_keeps_none(tmp_path):
    assert Runs(tmp_path, Run, {}).each(["a"], [0], lambda name, seed: (Run(name, seed), None))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


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


def test_percent():
    assert percent([0.5]) == "50.0 %"
    assert percent([0.5, 0.6, 0.7]) == "60.0 % ± 10.0"
    assert percent([0.25, 0.75], "") == "50.0 ± 35.4"


def test_announce_says_how_long_and_where(capsys):
    announce(4, 41.4, Path("here"))
    announce(12, 360, Path("there"))
    assert capsys.readouterr().out.splitlines() == [
        "4 runs, about 41 seconds of one CPU core; each is written to here when it is done, then pictures",
        "12 runs, about 6 minutes of one CPU core; each is written to there when it is done, then pictures",
    ]


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan"])
def test_what_is_not_above_0_is_an_error(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be above 0, got {text}"):
        positive(float)(text)


def test_what_is_above_0_is_a_number():
    assert positive(int)("7") == 7
    assert positive(float)("0.5") == 0.5
    assert positive(int).__name__ == "int"
    with pytest.raises(ValueError, match="invalid literal"):
        positive(int)("many")


def test_by_row():
    runs = [Run("a", 0, 0.1), Run("b", 0, 0.2), Run("a", 1, 0.3)]
    assert by_row(runs, lambda run: run.share) == {"a": [0.1, 0.3], "b": [0.2]}


def test_a_picture_is_written_and_named(tmp_path, capsys):
    from matplotlib.pyplot import get_fignums, imread

    with picture(tmp_path / "new" / "two.png", 4, 2, 1, 2) as (left, right):
        left.plot([0, 1], [0, 1])
        right.set_title("right")
    assert capsys.readouterr().out == f"picture: {tmp_path / 'new' / 'two.png'}\n"
    image = imread(tmp_path / "new" / "two.png")
    assert image.shape[:2] == (220, 440)
    assert image[..., :3].std() > 0.05
    assert get_fignums() == []


def test_bars_are_means_with_a_dot_for_each_of_several_seeds(tmp_path):
    columns = {"near": {"a": [0.2, 0.4], "b": [0.5]}, "far": {"a": [0.1], "b": [0.0, 0.2]}}
    with picture(tmp_path / "bars.png") as ax:
        bars(ax, columns, "Right")
        assert [round(bar.get_width(), 9) for bar in ax.patches] == [30, 50, 10, 10]
        assert [line.get_xdata().tolist() for line in ax.lines] == [[20, 40], [0, 20]]
        assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["near", "far"]
        assert [text.get_text() for text in ax.texts] == ["30.0", "50.0", "10.0", "10.0"]
        assert ax.get_title() == "Right"


def test_a_command_stopped_before_any_run_says_so(tmp_path, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    runs = Runs(tmp_path, Run, {})
    assert not runs.each(["a"], range(2), stopped)
    assert capsys.readouterr().out == "\nstopped: no run was done yet; the same command goes on from there\n"
    assert not runs.path.exists()


def test_ctrl_c_outside_of_runs_is_no_traceback(capsys):
    def main():
        raise KeyboardInterrupt

    assert until_stopped(main) == 130
    assert capsys.readouterr().out.startswith("\nstopped; ")
    assert until_stopped(lambda: 0) == 0
