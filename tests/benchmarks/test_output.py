"""Tables, plots and the command line."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from docs.benchmarks import __main__ as command
from docs.benchmarks import plots, results, sequences, tables
from docs.benchmarks.sweeps import Sequence, described, sweeps

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
        "\n\n- relgraph chunked, no labels: forward+backward 12 ms, × 1.00 (0.90–1.10)\n"
        f"- {FLEX}: forward 123 ms, × 12.30 (12.20–12.40); forward only"
    )
    assert PAPER not in made["cpu:length-detail"]
    beside = cells(made["cpu:length-beside"])
    assert beside[OURS] == ["relgraph chunked, no labels", "1.50 (1.50–1.50)", "1.50 (1.50–1.50)"]


def test_ways_of_two_runs_share_no_rounds():
    given = found()
    for row in given["rows"]:
        if row["way"] == OURS:
            row["run"] = "another"
    assert cells(tables.tables(given)["cpu:length-beside"])[OURS][1] == "1.50 (of two runs)"


def test_times_where_the_floor_did_not_run():
    given = found()
    for row in given["rows"]:
        if row["way"] == OURS:
            del row["forward+backward"]["times"]
    made = tables.tables(given)
    assert cells(made["cpu:length-time"])[OURS] == ["4.5 ms", "18 ms"]
    said = f"- {OURS}: forward 8 ms, × 2.00 (1.90–2.10); forward+backward 18 ms; peak 5 MiB"
    assert said in made["cpu:length-detail"]


def test_points_that_fit_no_table_are_in_a_sentence():
    given = found()
    lengths = [Sequence(length=length) for length in (1024, 2048, 4096, 8192)]
    given["sweeps"]["length"]["settings"] = [described(setting) for setting in lengths]
    given["rows"] = []
    for way, measured in ((sequences.FLOOR, 3), (OURS, 3), (PAPER, 2), (FLEX, 2), ("another", 1)):
        for setting in lengths[:measured]:
            given["rows"].append({"setting": described(setting), "run": "one", "way": way, "forward": timed(2, 2)})
    given["rows"].append({"setting": described(lengths[3]), "run": "one", "way": OURS, "forward": timed(50, 2)})
    for setting in lengths[1:]:
        where = {"setting": described(setting), "run": "one"}
        given["rows"].append({**where, "way": "another", "not_run": "not run: one call took 9 s, the budget is 4 s"})
    made = tables.tables(given)
    assert made["cpu:length-forward"] == (
        "| way | 1,024 | 2,048 | 4,096 |\n|---|---|---|---|\n"
        f"| {sequences.FLOOR} | 2 ms, 1× | 2 ms, 1× | 2 ms, 1× |\n| {OURS} | 2× | 2× | 2× |\n\n"
        f"| way | 1,024 | 2,048 |\n|---|---|---|\n| {PAPER} | 2× | 2× |\n| {FLEX} | 2× | 2× |\n\n"
        f"Also measured: {OURS} 2× at 8,192; another 2× at 1,024."
    )
    assert made["cpu:length-time"] == ("Not run:\n\n- another, at 2,048 and more: one call took 9 s, the budget is 4 s")


def test_no_table_has_an_empty_cell_on_the_page():
    """What was not measured has no cell: it is in no table."""
    rows = [line for line in command.PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(rows) > 150
    said = [row for row in rows if any(cell.strip() in ("", "–", "-", "?") for cell in row.strip("|").split("|"))]
    assert said == []
    assert [row for row in rows if "not run" in row or "the budget is" in row or "| needs" in row] == []


def test_the_page_has_its_results_before_its_method():
    headings = re.findall(r"^## (.*)$", command.PAGE.read_text(), re.MULTILINE)
    results = ["In short", "Compiled kernels on a CPU", "Models of Hugging Face, patched", "On a CPU"]
    assert headings[: len(results)] == results
    assert headings[-3:] == ["What is compared", "How it is measured", "Commands"]


def test_about_in_a_sentence():
    line = tables.tables(found())["cpu:about"]
    assert line.startswith("a processor, 2 threads; torch 2.13, Python 3.11, triton 3.9")
    assert "transformers not installed" in line


@pytest.mark.parametrize(("x", "said"), [(0.01234, "0.0123"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")])
def test_numbers(x, said):
    assert tables.number(x) == said


def test_fill_writes_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table:cpu:x -->\nold\n<!-- /table -->\nb\n<!-- table:cuda:x -->\nkept\n<!-- /table -->\n")
    assert tables.fill(page, {"cpu:x": "| new \\1 |", "cpu:y": "| y |"}) == ["cpu:x"]
    assert page.read_text() == (
        "a\n<!-- table:cpu:x -->\n\n| new \\1 |\n\n<!-- /table -->\nb\n<!-- table:cuda:x -->\nkept\n<!-- /table -->\n"
    )
    with pytest.raises(ValueError, match=r"page\.md must have a place such as <!-- table:no -->, it has none"):
        tables.fill(page, {"no": ""})


def test_the_page_has_a_place_for_every_table(tmp_path):
    """Tables of all sweeps on both devices; the section for a GPU comes with its first table."""
    page = tmp_path / "page.md"
    page.write_text(command.PAGE.read_text())
    assert tables.fill(page, {"cuda:step": "| a step |"}) == ["cuda:step"]
    text = page.read_text()
    assert text.count("| a step |") == text.count("## On a GPU\n") == 1
    assert text.index("## On a CPU\n") < text.index("## On a GPU\n") < text.index("## What is compared\n")
    for device in ("cpu", "cuda"):
        for name in (
            "about",
            "step",
            *(f"{s.name}-{t}" for s in sweeps(device, quick=False) for t in ("time", "memory")),
        ):
            assert text.count(f"<!-- table:{device}:{name} -->") == 1
    tables.fill(page, {"cuda:step": "| another |"})
    assert page.read_text() == text.replace("| a step |", "| another |")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_page_shows_figures_only(device):
    text = command.PAGE.read_text()
    places = re.findall(rf"<!-- table:{device}:(\S+) -->\n(.*?)<!-- /table -->", text, re.DOTALL)
    assert [name for name, table in places if not table.strip() or "Not measured" in table] == []


def test_every_way_of_a_plot_exists():
    names = set()
    for device in ("cpu", "cuda"):
        for setting in (sweep.settings[0] for sweep in sweeps(device, quick=True)):
            names |= {way.name for way in results_side(setting).ways(setting)}
    unknown = {way for way in set(plots.STYLES) - names if "triton" not in way}
    assert unknown == set()
    assert {"relgraph chunked, no labels", "relgraph reference, distance"} <= names - set(plots.STYLES)


def results_side(setting):
    from docs.benchmarks.ways import side_of

    return side_of(setting)


def test_plots(tmp_path):
    made = plots.draw(found(), tmp_path)
    assert [path.name for path in made] == ["length-forward.png", "length-training.png", "length-memory.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000 for path in made)


@pytest.mark.parametrize(("given", "wanted"), [
    ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
    ([0.5, 0.5], [0.45, 0.55]),
    ([0.5, 0.5, 0.6], [0.4333333, 0.5333333, 0.6333333]),
    ([1.0, 1.0], [0.9, 1.0]),
])  # fmt: skip
def test_labels_are_moved_as_little_as_needed(given, wanted):
    assert plots.spread(given, 0.1) == pytest.approx(wanted)


@pytest.mark.parametrize(("given", "message"), [
    (["--rounds", "0"], "--rounds must be at least 1, got 0"),
    (["--budget", "0"], "--budget must be positive, in seconds, got 0"),
    (["--minutes", "0"], "--minutes must be positive, got 0"),
    (["--device", "cuda"], "--device must be cpu: torch sees no GPU here, got cuda"),
    (["--quick", "--docs"], "--docs needs a real run, got --quick"),
])  # fmt: skip
def test_options_that_cannot_be(given, message, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        command._check(command._parser().parse_args(given))
    assert command.main(given) == 2
    assert message in capsys.readouterr().err


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


def test_a_step_that_fails_ends_nothing_else(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "_step", fail)
    monkeypatch.setattr(command, "run", lambda *_: 0)
    monkeypatch.setattr(command, "publish", lambda *_: None)
    assert command.main(["--device", "cuda", "--memory", "8"]) == 1
    assert "step: not run: failed: RuntimeError: no such kernel" in capsys.readouterr().err


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


def test_a_run_without_matplotlib_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / results.FILE).write_text(json.dumps(found()))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command.publish(tmp_path, docs=False)
    assert "no plots: matplotlib is not installed" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.png"))


def test_docs_are_filled(tmp_path, monkeypatch, capsys):
    (tmp_path / results.FILE).write_text(json.dumps(found()))
    page = tmp_path / "page.md"
    places = ("length-time", "length-plots")
    page.write_text("".join(f"<!-- table:cpu:{place} -->\n<!-- /table -->\n" for place in places))
    monkeypatch.setattr(command, "PAGE", page)
    command.publish(tmp_path, docs=True)
    assert "filled cpu:length-time, cpu:length-plots" in capsys.readouterr().out
    assert f"{PAPER}, at 2,048: needs 32 GB" in page.read_text()
    assert "![training against n, sequence length](length-training.png)" in page.read_text()


def test_steps_are_printed_and_kept(tmp_path, capsys):
    assert (
        command.main(
            ["step", "--quick", "--rounds", "1", "--out", str(tmp_path), "--tokens", "16", "--length", "8", "4"]
        )
        == 0
    )
    rows = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert [row["sentences × length"] for row in rows] == ["2 × 8", "2 × 8", "4 × 4", "4 × 4"]
    assert "| relative | 4 × 4 |" in capsys.readouterr().out


def test_peak_prints_a_number(capsys):
    setting = json.dumps(described(Sequence(heads=1, length=80, size=16)))
    command.peak(argparse.Namespace(setting=setting, way=sequences.FLOOR))
    assert float(capsys.readouterr().out) >= 0
