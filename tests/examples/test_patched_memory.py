"""Tests the memory example: ways agree, its points are right, and its page shows the kept figures."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

import one_call
import patched_memory as example
from matplotlib.pyplot import imread

SMALL = replace(example.QUICK, lengths=(16, 40), calls=example.CALLS, theirs_trains=16)


@pytest.fixture
def within(monkeypatch):
    """Measure points in this process, without waiting; yields the names of measured points."""
    asked = []

    def measured(variant, seed, repeats):
        call, length, way = variant.split(", ")
        asked.append(variant)
        return example.Point(variant, seed, **one_call.measured(call, int(length), way, repeats))

    monkeypatch.setattr(example, "measured", measured)
    monkeypatch.setattr(example, "QUICK", SMALL)
    monkeypatch.setattr(example, "FULL", replace(SMALL, ways=example.FULL.ways))
    threads = torch.get_num_threads()
    yield asked
    torch.set_num_threads(threads)


@pytest.mark.parametrize("way", one_call.ways())
def test_all_ways_are_one_model(way):
    text, gradients = one_call.tokens(50), {}
    model, theirs = one_call.encoder(way), one_call.encoder("eager")
    assert "sdpa" not in (way, theirs.config._attn_implementation) or model.config._attn_implementation == "sdpa"
    for one in (model, theirs):
        states = one_call.once(one, text, "training step")
        gradients[one] = [parameter.grad for parameter in one.parameters()]
        torch.testing.assert_close(one_call.once(one, text, "forward"), states)
    torch.testing.assert_close(gradients[model], gradients[theirs])


@pytest.mark.parametrize("quick", [False, True])
def test_the_command_measures_all_points_and_draws(quick, within, tmp_path, capsys):
    assert example.main([*["--quick"] * quick, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    wanted = example.points(SMALL if quick else example.FULL)
    assert [run["variant"] for run in record["runs"]] == within == wanted
    assert all(run["process_mib"] > 50 and run["seconds"] > 0 for run in record["runs"])
    printed = capsys.readouterr().out
    assert example.report([example.Point(**run) for run in record["runs"]]) in printed
    assert ("the picture shows the long run" in printed) == quick
    assert imread(tmp_path / "results.png")[..., :3].std() > 0.05
    example.main([*["--quick"] * quick, "--out", str(tmp_path)])
    assert within == wanted, "what is kept is not measured again"


def test_the_page_shows_what_is_kept():
    kept = json.loads(example.KEPT.read_text(encoding="utf-8"))
    found = [example.Point(**run) for run in kept["runs"]]
    table = example.report(found)
    assert all(line in example.__doc__ for line in table.splitlines())
    assert kept["notes"]["processor"] in example.__doc__ and kept["notes"]["date"] in example.__doc__
    longest = {point.place[2]: point for point in found if point.place[:2] == ("forward", 8192)}
    half = {point.place[2]: point for point in found if point.place[:2] == ("forward", 4096)}
    assert set(longest) == {"eager", "sdpa", "patched"}
    for way, point in longest.items():
        growth = point.mib / half[way].mib
        assert (growth < 2.5) if way == "patched" else (growth > 3.5)
