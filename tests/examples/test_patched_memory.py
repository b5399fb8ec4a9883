"""Tests the memory example: ways agree, its calls are measured, and its first sentence has the kept figures."""

import json

import pytest
import run as runner
import torch
from kept_results import Kept

pytest.importorskip("transformers")

import patched_memory as page
from experiments import patched_memory as example


def ways():
    """All ways that this version of transformers has: T5 has ``sdpa`` from 5.0 on."""
    return [way for way in page.WAYS if way != "sdpa" or page.T5EncoderModel._supports_sdpa]


@pytest.mark.parametrize("way", ways())
def test_all_ways_are_one_model(way):
    text, gradients = page.tokens(50), {}
    model, theirs = page.make_model(way), page.make_model("eager")
    assert "sdpa" not in (way, theirs.config._attn_implementation) or model.config._attn_implementation == "sdpa"
    for one in (model, theirs):
        states = page.once(one, text, "training step")
        gradients[one] = [parameter.grad for parameter in one.parameters()]
        torch.testing.assert_close(page.once(one, text, "forward"), states)
    torch.testing.assert_close(gradients[model], gradients[theirs])


def test_the_command_measures_every_length_and_draws(tmp_path, monkeypatch, capsys):
    given = []

    def here(work, *rest):
        given.append(rest)
        return work(*rest)

    monkeypatch.setattr(example, "in_new_process", here)
    monkeypatch.setattr(example, "QUICK_LENGTHS", (64, 512))
    monkeypatch.setattr(example, "THEIRS_TRAINS", 64)
    threads, rows = torch.get_num_threads(), [f"{call}, {way}" for call in page.CALLS for way in ("eager", "patched")]
    command = ["patched_memory", "--quick", "--rows", *rows, "--out", str(tmp_path)]
    assert runner.main(command) == 0
    torch.set_num_threads(threads)
    record = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in record["runs"]] == rows
    assert [[*run["mib"]] for run in record["runs"]] == [["64", "512"], ["64", "512"], ["64"], ["64", "512"]]
    assert all(second > 0 for run in record["runs"] for second in run["seconds"].values())
    assert example.report([example.Run(**run) for run in record["runs"]]) in capsys.readouterr().out
    assert (tmp_path / "results.png").is_file()
    runner.main(command)
    assert len(given) == 7, "what is kept is not measured again"


def test_the_patched_model_grows_with_the_length_and_transformers_with_its_square():
    rows = {row.name: row.figures for row in Kept.read("patched_memory").rows}
    for way in page.WAYS:
        (half,), (longest,) = (rows[f"forward, {way}"][length] for length in ("4,096", "8,192"))
        assert (longest / half < 2.5) if way == "patched" else (longest / half > 3.5)
    patched, theirs = rows["forward, patched"]["8,192"][0], rows["forward, sdpa"]["8,192"][0]
    assert patched < 100
    assert f"in under 100 MiB, where transformers needs {theirs / 1024:.1f} GiB" in page.__doc__
