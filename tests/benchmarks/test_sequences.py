"""Every way over sequences gives the values of its formula, the check finds one that does not, and a run says why not."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docs.benchmarks import __main__ as command
from docs.benchmarks import measure, run, sequences, tables
from docs.benchmarks.sequences import FLOOR, Inputs, Meaning, Sequence, check, expected
from docs.benchmarks.ways import Made, NotRun, Way, Wrong

LINE = Sequence(batch=2, heads=2, length=9, size=4, labels=5, dtype="float64")
TINY = Sequence(heads=2, length=32, size=16, labels=4)
KEPT = Path(__file__).parents[2] / "docs/images/benchmarks/cpu/results.json"


def by_loops(query, key, value, key_rows, value_rows):
    """The formula, pair by pair; ``key_rows(i, j)`` is the key vector of a pair."""
    batch, heads, length, size = query.shape
    out = torch.zeros_like(value)
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                scores = torch.stack([query[b, h, i] @ (key[b, h, j] + key_rows(i, j)) for j in range(length)])
                weights = (scores / math.sqrt(size)).softmax(-1)
                out[b, h, i] = sum(weights[j] * (value[b, h, j] + value_rows(i, j)) for j in range(length))
    return out


@pytest.mark.parametrize(("labels", "kept"), [
    ("none", "none"), ("distance", "key"), ("distance", "both"), ("distance", "tied"), ("arbitrary", "both"), ("positions", "key"),
])  # fmt: skip
def test_oracle(labels, kept):
    inputs = Inputs(LINE)
    leaves = inputs.leaves(Meaning(labels, kept))
    label = {
        "arbitrary": lambda i, j: int(inputs.written[i, j]), "positions": lambda i, j: i - j + LINE.length - 1,
    }.get(labels, lambda i, j: min(max(j - i, -LINE.clip), LINE.clip) + LINE.clip)  # fmt: skip
    a = leaves.get("key_table")
    b = leaves.get("value_table", a if kept == "tied" else None)
    rows = [(lambda i, j, t=t: 0.0 if t is None else t[label(i, j)]) for t in (a, b)]
    wanted = by_loops(*inputs.qkv.values(), *rows)
    grads = torch.autograd.grad(wanted, list(leaves.values()), inputs.grad)
    got = expected(inputs, Meaning(labels, kept), torch.arange(LINE.length))
    for name, exact in {"output": wanted.detach(), **dict(zip(leaves, grads, strict=True))}.items():
        torch.testing.assert_close(got[name], exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", [9, 80])
@pytest.mark.parametrize("way", [way for way in sequences.ways(LINE) if not way.compiles], ids=lambda way: way.name)
def test_ways(way, length):
    """All rows and gradients of a short length, sampled rows of a longer one."""
    kind = "float32" if way.name == "OpenNMT-py" else "float64"  # its softmax is in float32
    inputs = Inputs(replace(LINE, length=length, dtype=kind))
    try:
        made = way.make(inputs)
    except NotRun as reason:
        pytest.skip(str(reason))
    check(way, made, inputs)
    assert made.trains


@pytest.mark.parametrize("length", [9, 80])
def test_a_wrong_way_is_found_out(length):
    inputs = Inputs(replace(LINE, length=length))
    ways = {way.name: way for way in sequences.ways(LINE)}
    with pytest.raises(Wrong, match=r"relgraph chunked, distance: output is .* from the formula, at most 1e-10"):
        check(ways["relgraph chunked, distance"], ways[FLOOR].make(inputs), inputs)


def test_a_wrong_gradient_is_found_out():
    inputs = Inputs(LINE)
    floor = sequences.ways(LINE)[0]
    right = floor.make(inputs).call
    made = Made(lambda: right() + (inputs.qkv["value"] - inputs.qkv["value"].detach()), inputs.qkv)
    with pytest.raises(Wrong, match="SDPA, no relations: value is"):
        check(floor, made, inputs)


def test_flex_reads_the_label_of_the_distance(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    inputs = Inputs(replace(LINE, size=16, dtype="float32"))
    (way,) = [way for way in sequences.ways(inputs.setting) if way.compiles]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is not compiled
        made = way.make(inputs)
    assert not made.trains
    check(way, made, inputs)


def test_what_is_not_run_says_why(monkeypatch):
    def fails(error):
        def make(inputs):
            raise error

        return make

    none = Meaning("none", "none")
    ways = [
        sequences.ways(TINY)[0], Way("large", sequences.sdpa, lambda s: 1 << 40, none),
        Way("wrong", sequences.sdpa, sequences.linear, Meaning()),
        Way("full", fails(RuntimeError("can't allocate memory: 1 bytes")), lambda s: 1, none),
        Way("broken", fails(ValueError("no such instruction\nat line 7")), lambda s: 1, none),
    ]  # fmt: skip
    monkeypatch.setattr(run, "ways", lambda setting: ways)
    options = run.Options(2, 60.0, 1 << 30, math.inf, peaks=False)
    floor, *others = run.measure(TINY, options)
    assert floor["rounds"] == 2
    assert [row["not_run"].split(": output")[0] for row in others] == [
        "needs 1.02e+03 GB, the limit is 1 GB", "wrong values: wrong", "out of memory",
        "failed: ValueError: no such instruction",
    ]  # fmt: skip
    late = run.measure(TINY, replace(options, deadline=0.0, only="nothing"))
    assert [row.get("not_run") for row in late] == ["out of time"]


def test_figures():
    found = run.figures({1: (2.0, 8.0), 2: (4.0, 8.0)}, {1: (1.0, 2.0), 2: (1.0, 4.0)}, trains=True)
    assert found == {
        "rounds": 2,
        "forward": {"ms": [2.5, 3.0, 3.5], "times": [2.5, 3.0, 3.5]},
        "forward+backward": {"ms": [8.0, 8.0, 8.0], "times": [2.5, 3.0, 3.5]},
    }
    slow = {FLOOR: sequences.sdpa(inputs := Inputs(TINY)), "slow": sequences.sdpa(inputs)}
    taken = run.in_rounds(slow, inputs.grad, run.Options(6, 1e-9, 1, math.inf), "cpu")
    assert (taken[FLOOR]["rounds"], taken["slow"]["rounds"]) == (6, run.LEAST_ROUNDS)


def test_report_of_rounds():
    taken = {"a": [(1.0, 2.0), (2.0, 4.0), (1.0, 2.0)], "b": [(2.0, 8.0), (4.0, 16.0), (3.0, 8.0)]}
    first, second = measure.report(taken)
    assert first["forward ×"] == "1.00 (1.00–1.00)"
    assert (second["forward ms"], second["forward ×"]) == (3.0, "2.00 (2.00–2.50)")
    assert second["forward+backward ×"] == "4.00 (4.00–4.00)"


def test_peak_of_a_known_size():
    held = []
    assert measure.peak_mib(lambda: held.append(torch.ones(64 << 18))) == pytest.approx(64, abs=8)
    # memory that was freed earlier does not count
    assert measure.peak_mib(lambda: None) < 8


def test_the_page_shows_the_kept_results():
    page, kept = (KEPT.parents[3] / "benchmarks.md").read_text(), json.loads(KEPT.read_text())
    assert tables.table(kept, "forward+backward").split("\n\n")[1] in page
    assert tables.reasons(kept) in page


def test_a_quick_run_leaves_results_tables_and_a_plot(tmp_path):
    out = ["--out", str(tmp_path)]
    assert command.main(["--quick", "--only", "relgraph chunked, distance$", "--rounds", "1", *out]) == 0
    saved = json.loads((tmp_path / "results.json").read_text())
    assert {"torch", "hardware", "threads", "date", "relgraph"} <= saved["about"].keys()
    assert {row["way"] for row in saved["rows"]} == {FLOOR, "relgraph chunked, distance"}
    assert "| way | 128 | 256 |" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "length-training.png").stat().st_size > 10_000
