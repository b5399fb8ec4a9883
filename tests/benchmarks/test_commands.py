"""Every command that measures in one process, once at toy sizes: it prints its rows and keeps them in a file."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from docs.benchmarks import __main__ as whole
from docs.benchmarks import attention, shipped, small, step
from relgraph.impl.native import build

graphs = pytest.importorskip("docs.benchmarks.graphs", reason="torch-geometric is not installed")
SIZES = {"--impl": "dense", "--cache": "40", "--length": "64", "--edges": "200", "--kind": "types", "--lengths": "12"}  # fmt: skip
KERNELS = pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")


@pytest.mark.parametrize(("module", "what", "names", "ways"), [
    (attention, "table", ("--impl",), 8),
    (attention, "decode", ("--cache",), 2),
    (attention, "function", ("--impl",), 2),
    (attention, "scores", ("--impl", "--length"), 18),
    (attention, "pairs", ("--impl",), 2),
    (attention, "rotary", ("--length",), 4),
    (graphs, "edges", ("--edges",), 2),
    (graphs, "vectors", ("--edges",), 2),
    (graphs, "scores", ("--edges",), 6),
    (graphs, "states", ("--edges",), 4),
    (graphs, "growth", ("--edges",), 4),
    pytest.param(shipped, "libraries", ("--lengths",), 2, marks=KERNELS),
    pytest.param(shipped, "onnx", ("--lengths",), 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_rows_are_printed_and_kept(module, what, names, ways, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(attention, "WORK", {"float32": ((1, 2, 32),), "bfloat16": ((2, 2, 16),)})
    monkeypatch.setattr(attention, "FUNCTION_LENGTHS", (40,))
    monkeypatch.setattr(attention, "PAIRS", (2, 2, 16, 4))
    monkeypatch.setattr(attention, "fresh_peak", lambda *_: 1.0)
    given = [word for name in names for word in (name, SIZES[name])]
    module.main([what, *given, "--rounds", "1", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == ways
    assert f"| {' | '.join(rows[0])} |" in capsys.readouterr().out
    assert all(cell for row in rows for cell in row.values())


def test_cells_of_enough_rows_are_counted(tmp_path):
    pd = pytest.importorskip("pandas")
    cells = import_module("docs.benchmarks.cells")
    days = pd.date_range("2000-01-01", periods=60).astype(str)
    folder = tmp_path / "rel-f1" / "db"
    folder.mkdir(parents=True)
    for table, key in cells.PRIMARY.items():
        frame = pd.DataFrame({key: range(60), "points": 1.0, "date": days})
        if table == "results":
            frame["driverId"] = 0
        frame.to_csv(folder / f"{table}.csv.gz", index=False)
    cells.main(["labels", "--data", str(tmp_path), "--rows", "3", "--cells", "20", "--json", str(tmp_path / "rows")])
    rows = json.loads((tmp_path / "rows").read_text())["rows"]
    assert [row["rows"] for row in rows] == [3, 3]
    with pytest.raises(ValueError, match="--cells must be at most what samples hold, got 900"):
        cells.main(["labels", "--data", str(tmp_path), "--cells", "900"])


def test_small_calls_are_compared(capsys):
    small.main(["--quick", "--rounds", "2", "--only", "RelationConv|decoding"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(("| a ", "| Rel"))]
    assert [row[0].split(",")[0] for row in rows] == ["| a step of decoding", *["| RelationConv"] * 4]
    assert [row[-1].startswith("–") for row in rows] == [True, *[False] * 4]


@pytest.mark.parametrize(("module", "given"), [
    (attention, ("--impl", "dense", "--length", "64", "--kind", "written")), (graphs, ("--edges", "200")),
    (attention, ("--impl", "dense", "--kind", "pairs")),
])  # fmt: skip
def test_peaks_are_printed(module, given, capsys, monkeypatch):
    monkeypatch.setattr(attention, "PAIRS", (2, 2, 16, 4))
    module.main(["peak", *given])
    assert float(capsys.readouterr().out) >= 0


def test_steps_are_printed_and_kept(tmp_path, capsys):
    given = ["step", "--quick", "--rounds", "1", "--tokens", "16", "--length", "8", "4", "--out", str(tmp_path)]
    assert whole.main(given) == 0
    rows = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert [row["sentences × length"] for row in rows] == ["2 × 8", "2 × 8", "4 × 4", "4 × 4"]
    for positions in step.POSITIONS:
        model = step.Translator(step.Work(16, 8, vocabulary=30, size=64, layers=1), positions)
        assert any("table" in name for name, _ in model.named_parameters()) == (positions == "relative")
    assert rows[0]["×"] == "1.000 (1.000–1.000)"
    assert "| relative | 4 × 4 |" in capsys.readouterr().out
