"""Tables, plots and the command line."""

from __future__ import annotations

import json

import pytest

from docs.benchmarks import __main__ as command
from docs.benchmarks import results, sequences, tables
from docs.benchmarks.sweeps import Sequence, described

SETTINGS = (Sequence(length=1024), Sequence(length=2048))
OURS, PAPER, FLEX = "relgraph chunked, distance", "paper's computation (eqs. 3–4)", "FlexAttention, key term"
HEAD = {
    "device": "cpu", "hardware": "a processor", "threads": 2, "date": "2026-11-21", "python": "3.11", "torch": "2.13",
    "triton": "3.9", "torch-geometric": "2.8", "transformers": "not installed", "OpenNMT-py": "not installed",
}  # fmt: skip


def timed(ms, times):
    turns = {"1": ms, "2": ms * 1.1}
    return {"ms": [ms * 0.9, ms, ms * 1.2], "times": [times - 0.1, times, times + 0.1], "turns": turns}


def found():
    rows = []
    for setting in SETTINGS:
        scale = (setting.length / 1024) ** 2
        where = {"setting": described(setting), "run": "one", "note": ""}
        rows += [
            {**where, "way": sequences.FLOOR, "forward": timed(scale, 1), "forward+backward": timed(3 * scale, 1), "MiB": [1, 2, 3]},
            {**where, "way": "relgraph chunked, no labels", "forward+backward": timed(3 * scale, 1)},
            {**where, "way": OURS, "forward": timed(2 * scale, 2), "forward+backward": timed(4.5 * scale, 1.5), "MiB": [4, 5, 6]},
            {**where, "way": FLEX, "note": "forward only", "forward": timed(123.4, 12.3)},
        ]  # fmt: skip
    rows.append({**where, "setting": described(SETTINGS[0]), "way": PAPER, "forward+backward": timed(90, 30)})
    rows.append({**where, "way": PAPER, "not_run": "not run: needs about 32.4 GB, the limit is 8 GB"})
    axis = {"field": "length", "axis": "n, sequence length", "settings": [described(s) for s in SETTINGS]}
    return {"about": HEAD, "sweeps": {"length": axis}, "rows": rows}


def cells(table):
    lines = table.splitlines()
    return {line.split(" | ")[0].strip("| "): [c.strip() for c in line.strip("|").split(" | ")[1:]] for line in lines}


def test_tables():
    made = tables.tables(found())
    assert list(made) == [
        f"cpu:{x}"
        for x in ("about", "length-time", "length-forward", "length-memory", "length-beside", "length-detail")
    ]
    time = cells(made["cpu:length-time"])
    assert time["way"] == ["1,024"]  # the second table, of the ways that ran at the first values only
    assert time[sequences.FLOOR] == ["3 ms, 1×", "12 ms, 1×"]
    assert time[OURS] == ["1.5×", "1.5×"]
    assert time[PAPER] == ["30×"]
    assert FLEX not in time
    assert made["cpu:length-time"].startswith("| way | 1,024 | 2,048 |\n")
    assert made["cpu:length-time"].endswith(f"\n\nNot run:\n\n- {PAPER}, at 2,048: needs 32 GB")
    assert cells(made["cpu:length-forward"])[FLEX] == ["12.3×", "12.3×"]
    assert cells(made["cpu:length-memory"])[OURS] == ["5 MiB", "5 MiB"]
    detail = cells(made["cpu:length-detail"])
    assert detail[OURS] == ["8", "2.00 (1.90–2.10)", "18", "1.50 (1.40–1.60)", "5"]
    assert made["cpu:length-detail"].endswith(
        "\n\n- relgraph chunked, no labels: forward+backward, ms 12; forward+backward, × (quartiles) 1.00 (0.90–1.10)\n"
        f"- {FLEX}: forward, ms 123; forward, × (quartiles) 12.30 (12.20–12.40); forward only"
    )
    assert PAPER not in made["cpu:length-detail"]
    beside = cells(made["cpu:length-beside"])
    assert beside[OURS] == ["relgraph chunked, no labels", "1.50 (1.50–1.50)", "1.50 (1.50–1.50)"]


@pytest.mark.parametrize(("given", "steps", "minutes"), [
    ([], 1, 9), (["--minutes", "60"], 1, 60), (["--only", "^edges"], 0, 9),
])  # fmt: skip
def test_a_run_on_a_gpu_has_steps_and_a_time_limit(monkeypatch, tmp_path, given, steps, minutes):
    seen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "_step", lambda *_: seen.append("step"))
    monkeypatch.setattr(command, "run", lambda chosen, options, out, device: seen.append((options, out, device)) or 0)
    monkeypatch.setattr(command, "publish", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert command.main(["--device", "cuda", "--memory", "8", *given]) == 0
    *before, (options, out, device) = seen
    assert before == ["step"] * steps
    assert minutes - 0.5 < options.minutes <= minutes
    assert (out.as_posix(), device) == ("benchmarks-out/cuda", "cuda")


def test_a_quick_run_leaves_results_tables_and_plots(tmp_path, capsys):
    given = ["--quick", "--only", "length: relgraph chunked, distance$", "--out", str(tmp_path), "--rounds", "1"]
    assert command.main(given) == 0
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["about"]["device"] == "cpu"
    assert {"torch", "hardware", "threads", "date", "relgraph"} <= saved["about"].keys()
    assert {row["way"] for row in saved["rows"]} == {sequences.FLOOR, OURS}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("length")) == [
        "length-forward.png",
        "length-training.png",
    ]
    assert "## cpu:length-time" in (tmp_path / "tables.md").read_text()
    assert "[1/8]" in capsys.readouterr().out
    assert command.main(["plot", "--out", str(tmp_path)]) == 0


def test_a_page_is_filled_for_both_devices(tmp_path, monkeypatch, capsys):
    """The section for a GPU comes with its first table; a place that is filled again keeps what surrounds it."""
    (tmp_path / results.FILE).write_text(json.dumps(found()))
    page = tmp_path / "page.md"
    page.write_text(command.PAGE.read_text())
    monkeypatch.setattr(command, "PAGE", page)
    command.publish(tmp_path, docs=True)
    assert "filled cpu:about, cpu:length-time" in capsys.readouterr().out
    assert f"{PAPER}, at 2,048: needs 32 GB" in page.read_text()
    assert "![training against n, sequence length](length-training.png)" in page.read_text()
    assert tables.fill(page, {"cuda:step": "| a step |"}) == ["cuda:step"]
    text = page.read_text()
    assert text.count("| a step |") == text.count("## On a GPU\n") == 1
    assert text.index("## On a CPU\n") < text.index("## On a GPU\n") < text.index("## What is compared\n")
    for device in ("cpu", "cuda"):
        places = ("about", "length-plot", "length-time", "edges-time", "graphs-beside", "step")
        assert all(text.count(f"<!-- table:{device}:{name} -->") == 1 for name in places)
    tables.fill(page, {"cuda:step": "| another |"})
    assert page.read_text() == text.replace("| a step |", "| another |")
    with pytest.raises(ValueError, match=r"page\.md must have a place such as <!-- table:no -->, it has none"):
        tables.fill(page, {"no": ""})
