"""Tests the experiment on copying: its targets, and how far a run reaches."""

import json
import re
from pathlib import Path
from statistics import mean

import torch
from experiments import copying
from experiments.copying import Run

ROOT = Path(__file__).resolve().parents[2]


def test_targets_are_the_tokens_at_that_distance():
    far = torch.tensor([1, 48])
    tokens, wanted = copying.draw(far, torch.Generator().manual_seed(0))
    for row, distance in enumerate(far.tolist()):
        assert wanted[row, :distance].tolist() == [-100] * distance
        assert torch.equal(wanted[row, distance:], tokens[row, :-distance])


def test_reach_ends_at_the_first_distance_that_is_not_copied():
    run = Run("depth 1, k 4", 0, [1.0, 0.95, 0.9, 0.2, *[0.99] * 44], 1.0)
    assert run.reach == 3
    assert copying.report([run]).splitlines()[1].split()[:6] == ["depth", "1,", "k", "4", "3", "3"]
    beyond = 100 * (0.2 + 44 * 0.99) / 45
    assert f"{beyond:.1f}" in copying.report([run])


def test_the_page_has_the_means_of_the_kept_runs():
    kept = json.loads((ROOT / "examples" / "kept" / "partial" / "copying.json").read_text(encoding="utf-8"))["runs"]
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| depth, k .*\n(?:\|.*\n)+", page, re.MULTILINE)[0]
    header, _, *rows = [line[2:-2].split(" | ") for line in table.splitlines()]
    for row, (name, (depth, clip)) in zip(rows, copying.ROWS.items(), strict=True):
        mine = [run["right"] for run in kept if run["variant"] == name]
        shares = [mean(run[int(distance) - 1] for run in mine) for distance in header[2:]]
        assert row == [f"{depth}, {clip}", str(depth * (clip - 1)), *(f"{100 * share:.0f}" for share in shares)]
