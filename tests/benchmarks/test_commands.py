"""Every command that measures in one process, once at toy sizes: it prints its rows and keeps them in a file."""

from __future__ import annotations

import json

import pytest

from docs.benchmarks import attention, packed_graphs, shipped, small
from relgraph.impl.native import build

graphs = pytest.importorskip("docs.benchmarks.graphs", reason="torch-geometric is not installed")
SIZES = {"--impl": "dense", "--cache": "40", "--length": "64", "--edges": "200", "--kind": "types", "--lengths": "12",
         "--graphs": "5", "--most": "20"}  # fmt: skip
KERNELS = pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")


@pytest.mark.parametrize(("module", "what", "names", "ways"), [
    (attention, "table", ("--impl",), 8),
    (attention, "decode", ("--cache",), 2),
    (attention, "scores", ("--impl", "--length"), 18),
    (graphs, "edges", ("--edges",), 2),
    (graphs, "vectors", ("--edges",), 2),
    (graphs, "scores", ("--edges",), 6),
    (graphs, "growth", ("--edges",), 4),
    (packed_graphs, "pairs", ("--graphs", "--most"), 7),
    pytest.param(shipped, "libraries", ("--lengths",), 2, marks=KERNELS),
    pytest.param(shipped, "onnx", ("--lengths",), 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_rows_are_printed_and_kept(module, what, names, ways, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(attention, "WORK", {"float32": ((1, 2, 32),), "bfloat16": ((2, 2, 16),)})
    monkeypatch.setattr(attention, "fresh_peak", lambda *_: 1.0)
    given = [word for name in names for word in (name, SIZES[name])]
    module.main([what, *given, "--rounds", "1", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == ways
    assert f"| {' | '.join(rows[0])} |" in capsys.readouterr().out
    assert all(cell for row in rows for cell in row.values())


def test_small_calls_are_compared(capsys):
    small.main(["--quick", "--rounds", "2", "--only", "RelationConv|decoding"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(("| a ", "| Rel"))]
    assert [row[0].split(",")[0] for row in rows] == ["| a step of decoding", *["| RelationConv"] * 4]
    assert [row[-1].startswith("–") for row in rows] == [True, *[False] * 4]


@pytest.mark.parametrize(("module", "given"), [
    (attention, ("--impl", "dense", "--length", "64", "--kind", "written")), (graphs, ("--edges", "200")),
])  # fmt: skip
def test_peaks_are_printed(module, given, capsys, monkeypatch):
    module.main(["peak", *given])
    assert float(capsys.readouterr().out) >= 0
