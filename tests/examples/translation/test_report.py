"""The report of some runs: its figures follow from their records, and its own results give it again."""

import json
import math
import re
from dataclasses import asdict
from statistics import mean, stdev

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from scipy import stats

from examples.translation import cli, pictures
from examples.translation.bootstrap import corpus_bleu, sentence_statistics
from examples.translation.model import Translator
from examples.translation.settings import ModelSettings, TrainingSettings
from tests.examples.translation.cases import ROOT, TINY

TESTS = ("test", "test-11-13", "test-14-17", "test-18-24")
REFERENCES = ("a red dog sees the cat", "the house is old and blue", "a child likes the new ball here", "yes") * 5
ROWS = {
    "none": {"positions": "none"},
    "sinusoidal": {"positions": "sinusoidal"},
    "sinusoidal, shifted": {"positions": "shifted"},
    "relative, k = 4": {"max_distance": 4},
    "relative, k = 16": {},
    "relative, k = 16, value table only": {"key_table": False},
    "relative, k = 16, tables per head": {"per_head": True},
    "both, k = 16": {"positions": "both"},
    "base: sinusoidal": {"positions": "sinusoidal", "width": 128, "hidden": 256, "layers": 2},
    "base: relative, k = 16": {"width": 128, "hidden": 256, "layers": 2, "per_head": True},
    "depth 1: relative, k = 1": {"max_distance": 1, "width": 128, "hidden": 512},
    "depth 1: relative, k = 16": {"width": 128, "hidden": 512},
}


def wrong(place, seed):
    """How many sentences a run translates wrongly: fewer in later rows."""
    return 15 - place + seed


def write_run(folder, place, seed, **training):
    """A finished run of a row, with the translations of its seed; figures of longer sentences are made up."""
    settings = ModelSettings(**{**TINY, **[*ROWS.values()][place]})
    lines = ["a dog sees a cat or so"] * wrong(place, seed) + [*REFERENCES[wrong(place, seed) :]]
    statistics = sentence_statistics(lines, REFERENCES)
    nll = 2 - 0.05 * place + 0.01 * seed
    tests = {
        test: {
            "sentences": 20,
            "tokens": 150,
            "perplexity": math.exp(nll + 0.3 * number),
            "bleu": corpus_bleu(statistics.sum(0).tolist()) - 2 * number,
            "chrf": 40.0,
            "signature": "nrefs:1|version:2.6.0",
        }
        for number, test in enumerate(TESTS)
    }
    run = folder / f"{place}-seed{seed}"
    run.mkdir(parents=True)
    chosen = asdict(TrainingSettings(steps=300, seed=seed, **training))
    config = {"model": asdict(settings), "training": chosen, "parameters": 1234567}
    results = {"config": config, "averaged_steps": [200, 300], "search": {"beam": 4}, "tests": tests}
    (run / "results.json").write_text(json.dumps(results))
    rows = ["step,split,loss,nll,learning_rate,tokens_per_second"]
    for step, value in {100: nll + 2, 200: nll + 1, 300: nll}.items():
        rows += [f"{step},train,3.5,3.25,0.001,1000", f"{step},valid,,{value},,"]
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    torch.save(dict.fromkeys(TESTS, statistics), run / "statistics.pt")
    if [*ROWS][place] == "relative, k = 16":
        torch.manual_seed(seed)
        vocabulary = json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}})
        state = Translator(settings, 3).state_dict()
        torch.save({"model": state, "settings": asdict(settings), "vocabulary": vocabulary}, run / "model.pt")


def report_on(runs, out):
    """Write a report and return its text, record and tables."""
    assert cli.main(["report", str(runs), "--out", str(out)]) == 0
    text = (out / "report.md").read_text()
    sections = dict(part.split("\n", 1) for part in text.split("## ")[1:])
    lines = {
        title: [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)]
        for title, section in sections.items()
    }
    return text, json.loads((out / "results.json").read_text()), lines


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of every row."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        for place in range(len(ROWS)):
            write_run(folder, place, seed)
    return folder


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("examples.translation.report.resampled_bleu", few)
        return report_on(runs, tmp_path_factory.mktemp("report"))


def few(statistics):
    """The resamples of the report, but fewer."""
    from examples.translation.bootstrap import resampled_bleu

    return resampled_bleu(statistics, 200)


def _tables(text):
    return re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)


def test_the_published_tables_follow_from_their_results(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw", lambda *_: [])
    docs, tables = ROOT / "docs", {}
    for name in ("results", "french"):
        text, *_ = report_on(docs / "images" / "translation" / f"{name}.json", tmp_path / name)
        tables[name] = _tables(text)
    before, rest = (docs / "paper.md").read_text().split("## English to French\n")
    french, after = rest.split("\n## ", 1)
    other = ("| depth, k", "| positions | up to 26", "| row | over")  # the tables of copying and SCAN
    assert [table for table in _tables(before + after) if not table.startswith(other)] == tables["results"]
    positions, *_, differences, _ = tables["french"]
    assert _tables(french) == [positions, differences]


def _shown(values):
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def test_figures_are_means_and_sample_deviations_of_the_seeds(written):
    _, record, tables = written
    runs = {run["name"]: run for run in record["runs"]}
    place = [*ROWS].index("relative, k = 16")

    def shown(place, measure, test="test"):
        return _shown([runs[f"{place}-seed{seed}"]["tests"][test][measure] for seed in range(3)])

    positions = {first: cells for first, *cells in tables["Positions"]}
    assert list(positions)[2:] == [
        "none", "sinusoidal", "sinusoidal, shifted", "relative, k = 16", "relative, k = 16, tables per head",
        "both, k = 16",
    ]  # fmt: skip
    cells = [shown(place, "bleu"), "40.00 ± 0.00", shown(place, "perplexity"), "1,234,567", "3"]
    assert positions["relative, k = 16"] == cells
    assert [row[0] for row in tables["Clipping distance"][2:]] == ["4", "16"]
    assert tables["Clipping distance"][3] == ["16", "25.8", cells[0], cells[2], "3"]
    shapes = tables["Models shaped like base and big"][2:]
    assert [row[:3] for row in shapes] == [["base", "sinusoidal", "26.5"], ["base", "relative, k = 16", "26.8"]]
    assert [row[:2] for row in tables["Depth and clipping distance"][2:]] == [
        ["1", "1"],
        ["1", "16"],
        ["2", "4"],
        ["2", "16"],
    ]
    assert [row[:3] for row in tables["Key and value tables"][2:]] == [
        ["yes", "yes", "25.8"], ["no", "yes", "25.3"], ["no", "no", "12.5"],
    ]  # fmt: skip
    for measure in ("perplexity", "BLEU"):
        longer = {first: cells for first, *cells in tables[f"Longer sentences: {measure}"]}
        assert longer["positions"] == ["trained lengths", "11–13 words", "14–17 words", "18–24 words", "seeds"]
        assert longer["none"][3] == shown(0, measure.lower(), "test-18-24")
    late = tables["Change of the validation loss in the last fifth of training"]
    assert late[2] == ["none", "**−1.000** [−1.000, −1.000]", "3"]
    changes = tables["Perplexity of the longest sentences by clipping distance"]
    fall = mean(math.exp(2.9 + 0.01 * seed) * (math.exp(-0.15) - math.exp(-0.2)) for seed in range(3))
    assert [row[0] for row in changes[2:]] == ["4", "16"]
    assert changes[3][2].startswith(f"**−{fall:.2f}**")


def test_differences_are_paired_by_seeds_and_bootstrapped(written, tmp_path):
    text, record, tables = written
    claim = {"one": "relative, k = 16", "other": "sinusoidal", "test": "test"}
    (found,) = [one for one in record["bootstrap"] if claim.items() <= one.items()]
    perplexities, bleus = (
        [
            [run["tests"]["test"][measure] for run in record["runs"] if run["name"].startswith(f"{place}-")]
            for place in map([*ROWS].index, (claim["one"], claim["other"]))
        ]
        for measure in ("perplexity", "bleu")
    )
    assert found["value"] == pytest.approx(mean(bleus[0]) - mean(bleus[1]))
    assert 0 < found["low"] < found["value"] < found["high"]
    differences = [one - other for one, other in zip(*perplexities, strict=True)]
    half = stats.t.ppf(0.975, 2) * stdev(differences) / math.sqrt(3)
    gain = mean(differences)
    line = next(row for row in tables["Differences"] if row[:3] == [claim["one"], claim["other"], "trained lengths"])
    assert line[3:] == [
        "3", f"**+{found['value']:.2f}** [+{found['low']:.2f}, +{found['high']:.2f}]", f"{found['p']:.3f}",
        f"**−{-gain:.2f}** [−{half - gain:.2f}, −{-half - gain:.2f}]", "better",
    ]  # fmt: skip
    assert ["base: relative, k = 16", "sinusoidal", "18–24 words"] in [row[:3] for row in tables["Differences"]]
    assert ["depth 1: relative, k = 1", "relative, k = 16", "trained lengths"] in [
        row[:3] for row in tables["Differences"]
    ]
    # the report's own results give it again; without stored intervals of BLEU they are Student's
    (tmp_path / "again.json").write_text(json.dumps(record))
    assert report_on(tmp_path / "again.json", tmp_path / "again")[0] == text
    (tmp_path / "bare.json").write_text(json.dumps({**record, "bootstrap": []}))
    (line,) = [
        row for row in report_on(tmp_path / "bare.json", tmp_path / "bare")[2]["Differences"] if row[:3] == line[:3]
    ]
    differences = [one - other for one, other in zip(*bleus, strict=True)]
    half = stats.t.ppf(0.975, 2) * stdev(differences) / math.sqrt(3)
    assert line[4].endswith(f"[+{mean(differences) - half:.2f}, +{mean(differences) + half:.2f}] †")


def test_results_hold_curves_and_norms_of_the_tables(runs, written):
    _, record, _ = written
    place = [*ROWS].index("relative, k = 16")
    entry = next(entry for entry in record["runs"] if entry["name"] == f"{place}-seed1")
    nll = 2 - 0.05 * place + 0.01
    assert entry["valid"] == [[100, nll + 2], [200, nll + 1], [300, nll]]
    states = [torch.load(runs / f"{place}-seed{seed}" / "model.pt")["model"] for seed in range(3)]
    rows = states[1]["transformer.decoder.layers.0.self_attn.tables.value.rows"]
    assert entry["norms"]["decoder.0.value"] == pytest.approx(rows.norm(dim=-1).tolist(), abs=1e-4)
    keys = [state["transformer.encoder.layers.0.self_attn.tables.key.rows"] for state in states]
    cosine = mean(torch.cosine_similarity(key[3], key[20], dim=0).item() for key in keys)
    assert record["similarity"]["key"][3][20] == pytest.approx(cosine, abs=1e-3)


def test_single_runs_are_shown_with_pictures_and_others_refused(tmp_path, capsys):
    for row in ("sinusoidal", "relative, k = 4"):
        write_run(tmp_path / "runs", [*ROWS].index(row), 0)
    _, _, tables = report_on(tmp_path / "runs", tmp_path)
    assert [row[0] for row in tables["Positions"][2:]] == ["sinusoidal"]
    assert "Differences" not in tables
    assert {path.name for path in tmp_path.glob("*.png")} == {"curves.png", "lengths.png"}
    write_run(tmp_path / "runs", 0, 0, smoothing=0.2)
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path)]) == 2
    assert "0-seed0 and 1-seed0 must differ in nothing but positions and seed" in capsys.readouterr().err
