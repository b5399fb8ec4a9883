"""Tests the example on SCAN: its commands are the published ones, rows differ in positions only, runs continue."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
import run as runner
import torch
from example_runs import lead
from experiments import scan

ROOT = Path(__file__).resolve().parents[2]


def test_a_split_by_length():
    split = scan.Split.after(26)
    assert (len(split.train), len(split.same), len(split.other)) == (16458, 1828, 2624)
    assert not {*split.other} & {*split.train, *split.same}
    assert not {*split.train} & {*split.same}
    assert {*split.train, *split.same, *split.other} == {*scan.commands()}
    assert max(len(actions) for _, actions in split.train) == 26


@pytest.mark.parametrize("row", ["rotary", "ALiBi", "relative, one layer"])
def test_a_model_learns_a_command_by_heart_and_search_finds_what_one_call_tests(row):
    torch.manual_seed(0)
    model, known = scan.Model(row).eval(), scan.commands()[40:44]
    words, given, wanted = scan.tensors(known)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(words, given).flatten(0, 1), wanted.flatten(), ignore_index=scan.PAD
        ).backward()
        optimizer.step()
    longer, shorter = [(words, actions * 2) for words, actions in known], [(words, acts[:-1]) for words, acts in known]
    assert scan.verdicts(model, known + longer + shorter) == ["right"] * 4 + ["early"] * 4 + ["wrong"] * 4
    layers = {id(layer) for layer in model.transformer.encoder.layers}
    assert len(layers) == (1 if row.endswith("one layer") else scan.LAYERS)
    for (words, _), row_wanted in zip(known, wanted, strict=True):
        source, found = scan.tensors([(words, ())])[0], [scan.END]
        while len(found) < 60 and (len(found) == 1 or found[-1] != scan.END):
            found.append(int(model(source, torch.tensor([found]))[0, -1].argmax()))
        assert found[1:] == [one for one in row_wanted.tolist() if one != scan.PAD]


def test_the_command_runs_and_continues(tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    monkeypatch.setattr(scan, "BATCH", 4)
    command = ["scan", "--quick", "--steps", "4", "--out", str(tmp_path)]
    assert runner.main(command) == 0
    path = tmp_path / str(scan.QUICK_LONGEST) / "results.json"
    first = json.loads(path.read_text(encoding="utf-8"))
    assert [run["variant"] for run in first["runs"]] == ["sinusoidal", "relative"]
    assert "relative against sinusoidal: " in capsys.readouterr().out
    assert runner.main(command) == 0
    assert "2 of 2 runs are already in" in capsys.readouterr().out
    torch.set_num_threads(threads)


def test_the_page_has_the_figures_of_the_kept_runs():
    runs = json.loads((ROOT / "examples" / "kept" / "partial" / "scan-26.json").read_text(encoding="utf-8"))["runs"]
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| positions \| up to 26 .*\n(?:\|.*\n)+", page, re.MULTILINE)[0]
    header, _, *rows = [line[2:-2].split(" | ") for line in table.splitlines()]

    def percent(shares):
        return f"{100 * mean(shares):.1f}" + (f" ± {100 * stdev(shares):.1f}" if len(shares) > 1 else "")

    for name, *cells, seeds in rows:
        mine = [run for run in runs if run["variant"] == name]
        lengths = [f"{100 * mean(run['by_length'][length] for run in mine):.0f}" for length in header[3:-1]]
        assert cells == [*(percent([run[part] for run in mine]) for part in ("same", "other")), *lengths]
        assert int(seeds) == len(mine)
    assert {row[0] for row in rows} == {run["variant"] for run in runs}
    words = page.replace("\n", " ")
    counted = [run for run in runs if "early" in run]
    learned, not_learned = (
        [100 * run["early"] / (1 - run["other"]) for run in counted if (run["same"] > 0.99) == whether]
        for whether in (True, False)
    )
    learned_words = f"In the {len(learned)} runs that learned the commands of training and where we counted it,"
    assert f"{learned_words} {min(learned):.0f} to {max(learned):.0f} %" in words
    not_learned_words = f"in {len(not_learned)} runs with ALiBi or the shift, which did not learn them,"
    assert f"{not_learned_words} {min(not_learned):.0f} to {max(not_learned):.0f} %" in words
    shares = {name: {run["seed"]: run["other"] for run in runs if run["variant"] == name} for name in scan.ROWS}
    for ours in ("relative", "relative, one layer"):
        others = [name for name in ("sinusoidal", "rotary", "relative") if name != ours]
        leads = " | ".join(lead(shares[ours], shares[other]) for other in others)
        assert f"| {ours} | {leads} |" in page
