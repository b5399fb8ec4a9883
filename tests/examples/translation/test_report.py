"""The report of a sweep: its figures are those of the logs, and it can be written again from its own results."""

import json
import math
import re
from dataclasses import asdict
from statistics import mean, stdev

import pytest
import torch

import relgraph as rg

pytest.importorskip("matplotlib")
pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import report
from examples.translation.report import page as report_page
from examples.translation.report import results
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import DISTANCES

TESTS = ("test", "test-11-13", "test-14-17", "test-18-24")
VARIANTS = {
    "none": {"positions": "none"},
    "sinusoidal": {"positions": "sinusoidal"},
    **{f"relative-{k}": {"positions": "relative", "max_distance": k} for k in DISTANCES},
    "key-16": {"positions": "relative", "value_table": False},
    "value-16": {"positions": "relative", "key_table": False},
    "both-16": {"positions": "both"},
}
SMALL = {"width": 16, "heads": 2, "layers": 1, "hidden": 16}


def _state(model, seed):
    """A translator's state dict, with the parts that a report reads."""
    torch.manual_seed(seed)
    transformer = rg.RelationTransformer(
        model.width,
        model.heads,
        model.layers,
        model.layers,
        model.hidden,
        positions=model.positions,
        max_distance=model.max_distance,
        per_head=model.per_head,
    )
    return {f"transformer.{name}": value for name, value in transformer.state_dict().items()}


def write_run(folder, name, seed=0, bleu=20.0, nll=1.5, curve=None, tables=True, **changes):
    """A finished run, with figures made up from ``bleu`` and ``nll``."""
    model = ModelSettings(**{**SMALL, **VARIANTS[name], **changes.pop("model", {})})
    training = TrainingSettings(**{"steps": 300, "seed": seed, **changes.pop("training", {})})
    run = folder / f"{name}-seed{seed}"
    run.mkdir(parents=True)
    config = {
        "model": asdict(model),
        "training": asdict(training),
        "vocabulary": 4000,
        "pairs": 123456,
        "device": "cpu",
        "parameters": 1234567,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "relgraph": "0.1.0"},
    }
    (run / "config.json").write_text(json.dumps(config | changes.pop("config", {})))
    tests = {
        test: {
            "sentences": 1500,
            "tokens": 15000 + place,
            "nll": nll + 0.3 * place,
            "perplexity": math.exp(nll + 0.3 * place),
            "bleu": bleu - 2 * place,
            "chrf": bleu + 20 - place,
            "signature": "nrefs:1|version:2.6.0",
        }
        for place, test in enumerate(TESTS)
    }
    results = {"averaged_steps": [200, 300], "search": {"beam": 4, "length_penalty": 0.6}, "tests": tests}
    (run / "results.json").write_text(json.dumps(results | changes.pop("results", {})))
    rows = ["step,split,loss,nll,learning_rate,tokens_per_second,seconds"]
    for step, value in (curve or {100: nll + 2, 200: nll + 1, 300: nll}).items():
        rows += [f"{step},train,3.5,,0.001,{1000 + step + seed},9.5", f"{step},valid,,{value},,,"]
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    if tables and model.positions in ("relative", "both") and model.key_table and model.value_table:
        torch.save({"model": _state(model, seed)}, run / "average.pt")
    assert not changes
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of every model, and one that is not finished."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for seed in range(3):
        for place, name in enumerate(VARIANTS):
            write_run(folder, name, seed, bleu=20 + place + 0.25 * seed**2, nll=2 - 0.05 * place + 0.01 * seed)
    (folder / "none-seed3").mkdir()
    (folder / "none-seed0.txt").write_text("what a run printed")
    return folder


@pytest.fixture(scope="module")
def written(runs):
    """Page and image folder of the whole sweep."""
    page, images = runs.parent / "docs" / "page.md", runs.parent / "docs" / "images" / "sweep"
    report.write_report(runs, page, images)
    return page, images


def _rows(page, section):
    """The cells of the tables of a section, by the first cell of their row; a later table's after an earlier's."""
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        first, *cells = line.split(" | ")
        found.setdefault(first, []).extend(cells)
    return found


def _shown(values, form="{:.2f}"):
    return f"{form.format(mean(values))} ± {form.format(stdev(values))}"


def test_figures_are_means_and_sample_deviations_of_the_seeds(written):
    page = written[0].read_text()
    bleus = [22.0, 22.25, 23.0]
    nlls = [1.9, 1.91, 1.92]
    chrf, perplexity = [bleu + 20 for bleu in bleus], [math.exp(nll) for nll in nlls]
    assert list(VARIANTS).index("relative-0") == 2
    assert _shown(bleus) == "22.42 ± 0.52"
    assert _rows(page, "Clipping distance")["0"] == [_shown(bleus), _shown(perplexity), "3"]
    place = list(VARIANTS).index("relative-16")
    bleus = [20 + place + 0.25 * seed**2 for seed in range(3)]
    chrf = [bleu + 20 for bleu in bleus]
    perplexity = [math.exp(2 - 0.05 * place + 0.01 * seed) for seed in range(3)]
    compared = _rows(page, "Positions")
    assert list(compared) == ["positions", "---", "none", "sinusoidal", "relative, k = 16", "both, k = 16"]
    assert compared["relative, k = 16"] == [
        _shown(bleus),
        _shown(chrf),
        _shown(perplexity),
        "1,201 ± 1",
        "1,234,567",
        "3",
    ]


def test_tables_hold_every_model(written):
    page = written[0].read_text()
    assert list(_rows(page, "Clipping distance")) == ["k", "---", *map(str, DISTANCES)]
    text = page.split("## Key and value tables")[1]
    flags = re.findall(r"^\| (yes|no) \| (yes|no) \| ([\d.]+)", text, re.MULTILINE)
    third = 1.25 / 3
    expected = [("yes", "yes", 27), ("yes", "no", 29), ("no", "yes", 30), ("no", "no", 20)]
    assert flags == [(key, value, f"{bleu + third:.2f}") for key, value, bleu in expected]
    rows = _rows(page, "Sentences longer than any in training")
    names = [*(f"relative, k = {k}" for k in DISTANCES), *(f"relative, k = 16, {k} table only" for k in results.KINDS)]
    assert list(rows)[2:] == ["none", "sinusoidal", "both, k = 16", *names]
    assert rows["positions"] == ["trained lengths", "11–13 words", "14–17 words", "18–24 words"] * 2
    assert rows["none"][5] == _shown([20 - 2, 20.25 - 2, 21 - 2])
    assert "Left out" not in page


def test_settings_and_commands_come_from_the_configurations(written):
    page = written[0].read_text()
    assert "translate Tatoeba English-German" in page
    assert "of 1 layer each, width 16, 2 heads, feed-forward width 16, dropout 0.1" in page
    assert "300 steps of at most 4,096 tokens" in page
    assert "python 3.11.7, torch 2.13.0, relgraph 0.1.0" in page
    assert "1,500 sentences with 15,003 subwords" in page
    assert "--vocabulary-size 4000 " in page
    assert "--max-words 10 --unseen 11-13 14-17 18-24\n" in page
    assert "--seeds 3 \\\n    -- --width 16 --heads 2 --layers 1 --hidden 16 --steps 300\n" in page
    assert ">>>" not in page


def test_differences_carry_the_spread_of_both(written):
    page = written[0].read_text()
    spread = stdev([0, 0.25, 1]) * math.sqrt(2)
    assert spread > 0.7
    assert (
        f"*both, k = 16* less *relative, k = 16*, trained lengths: +4.00 BLEU ± {spread:.2f}, beyond the spread" in page
    )
    assert f"*relative, k = 8* less *relative, k = 16*, trained lengths: −1.00 BLEU ± {spread:.2f}, beyond" in page
    last = {k: [math.exp(2.9 - 0.05 * (2 + i) + 0.01 * s) for s in range(3)] for i, k in enumerate(DISTANCES)}
    change = mean(last[64]) - mean(last[16])
    spread = math.hypot(stdev(last[64]), stdev(last[16]))
    assert f"from k = 16 to 64 −{-change:.2f} ± {spread:.2f}, beyond the spread" in page
    assert f"The lowest mean is that of k = 64, {_shown(last[64])}." in page


def test_a_difference_within_the_spread_is_said_to_be():
    one, other = results.Spread((1.0, 2.0)), results.Spread((1.5, 2.5))
    assert report_page._difference(one, other, "BLEU") == "−0.50 BLEU ± 1.00, within the spread"
    assert report_page._difference(one, results.Spread((0.0,))) == "+1.50 (one seed, no spread)"


@pytest.mark.parametrize(
    ("column", "best", "leader"),
    [
        ([(1.0, 1.2), (2.0, 2.2)], min, 0),
        ([(1.0, 1.2), (2.0, 2.2)], max, 1),
        ([(1.0, 1.2), (1.05, 1.25)], min, None),
        ([(1.0, 1.2), (2.0, 4.0), (9.0, 9.0)], min, 0),
        ([(1.0, 1.0), (2.0, 6.0)], min, 0),
        ([(1.0, 1.0), (1.0, 6.0)], min, None),
        ([(1.0, 1.0), (1.0, 1.0)], min, None),
        ([(1.0,), (2.0, 2.0)], min, None),
        ([(1.0, 1.2)], min, None),
        ([(1.0, 1.2), (math.inf, math.inf)], min, None),
    ],
)
def test_bold_is_a_lead_beyond_the_larger_spread(column, best, leader):
    assert report_page._clear_best([results.Spread(values) for values in column], best) == leader


def test_the_best_of_a_column_is_bold(written):
    rows = _rows(written[0].read_text(), "Sentences longer than any in training")
    bold = {(name, column) for name, cells in rows.items() for column, cell in enumerate(cells) if "**" in cell}
    assert bold == {("both, k = 16", column) for column in range(8)}


def test_results_write_the_same_page_and_pictures(written, tmp_path):
    page, images = written
    again, folder = tmp_path / "docs" / "page.md", tmp_path / "docs" / "images" / "sweep"
    report.write_report(images / "results.json", again, folder)
    assert again.read_bytes() == page.read_bytes()
    assert {path.name for path in folder.iterdir()} == {path.name for path in images.iterdir()}
    for path in folder.iterdir():
        assert path.read_bytes() == (images / path.name).read_bytes()


def test_pictures_are_linked_from_the_page_and_small(written):
    page, images = written
    links = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", page.read_text())
    assert [link for _, link in links] == [
        f"images/sweep/{name}.png" for name in ("lengths", "curves", "tables-16", "tables-64", "similarity")
    ]
    for _, link in links:
        data = (page.parent / link).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 100_000
    assert "(images/sweep/results.json)" in page.read_text()
    assert not list(images.glob(".*"))


def test_results_hold_curves_speeds_and_norms_of_the_tables(runs, written):
    record = json.loads((written[1] / "results.json").read_text())
    entry = next(entry for entry in record["runs"] if entry["name"] == "relative-16-seed1")
    nll = 2 - 0.05 * list(VARIANTS).index("relative-16") + 0.01
    assert entry["valid"] == [[100, nll + 2], [200, nll + 1], [300, nll]]
    assert entry["tokens_per_second"] == 1201
    state = torch.load(runs / "relative-16-seed1" / "average.pt")["model"]
    rows = state["transformer.decoder.layers.0.self_attn.tables.value.rows"]
    assert entry["norms"].keys() == {"encoder.0.key", "encoder.0.value", "decoder.0.key", "decoder.0.value"}
    assert entry["norms"]["decoder.0.value"] == pytest.approx(rows.norm(dim=-1).tolist(), abs=1e-4)
    keys = [
        torch.load(runs / f"relative-16-seed{seed}" / "average.pt")["model"][
            "transformer.encoder.layers.0.self_attn.tables.key.rows"
        ]
        for seed in range(3)
    ]
    cosine = mean(torch.cosine_similarity(each[3], each[20], dim=0).item() for each in keys)
    assert record["similarity"]["key"][3][20] == pytest.approx(cosine, abs=1e-3)
    assert {entry["name"] for entry in record["runs"] if "norms" in entry} == {
        f"relative-{k}-seed{seed}" for k in (16, 64) for seed in range(3)
    }


def test_rows_of_heads_are_averaged(tmp_path):
    run = write_run(tmp_path, "relative-16", model={"per_head": True})
    report.write_report(tmp_path, tmp_path / "page.md", tmp_path)
    rows = torch.load(run / "average.pt")["model"]["transformer.encoder.layers.0.self_attn.tables.key.rows"]
    assert rows.shape == (2, 33, 8)
    (entry,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert entry["norms"]["encoder.0.key"] == pytest.approx(rows.norm(dim=-1).mean(0).tolist(), abs=1e-4)


def test_unfinished_runs_are_named(runs, tmp_path, capsys):
    report.write_report(runs, tmp_path / "page.md", None)
    assert capsys.readouterr().err == f"unfinished: {runs / 'none-seed3'}\n"


def test_missing_models_are_left_out_with_a_sentence(tmp_path):
    write_run(tmp_path / "runs", "sinusoidal", 0, bleu=20.0)
    write_run(tmp_path / "runs", "relative-4", 0, bleu=21.0)
    report.write_report(tmp_path / "runs", tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "Each was trained with one seed; " in page
    assert _rows(page, "Positions").keys() == {"positions", "---", "sinusoidal"}
    assert _rows(page, "Positions")["sinusoidal"][0] == "20.00"
    assert "Left out, without a finished run: none; relative, k = 16; both, k = 16." in page
    assert _rows(page, "Clipping distance").keys() == {"k", "---", "4"}
    assert _rows(page, "Key and value tables") == {}
    assert "**" not in page
    assert "No picture: no finished run of relative, k = 16 or k = 64, has its averaged model." in page
    assert "Comparisons with models that have no finished run are left out." in page
    assert {path.name for path in tmp_path.glob("*.png")} == {"curves.png", "lengths.png"}


def test_a_distance_beyond_the_papers_has_a_row(tmp_path):
    write_run(tmp_path, "relative-16", model={"max_distance": 5})
    report.write_report(tmp_path, tmp_path / "page.md", None)
    assert _rows((tmp_path / "page.md").read_text(), "Clipping distance").keys() == {"k", "---", "5"}


def test_a_model_of_no_other_table_is_among_the_unseen_lengths(tmp_path):
    write_run(tmp_path, "both-16", model={"max_distance": 5})
    report.write_report(tmp_path, tmp_path / "page.md", None)
    rows = _rows((tmp_path / "page.md").read_text(), "Sentences longer than any in training")
    assert rows.keys() == {"positions", "---", "both, k = 5"}


def test_relative_positions_without_tables_are_none(tmp_path):
    write_run(tmp_path, "relative-16", tables=False, model={"key_table": False, "value_table": False})
    report.write_report(tmp_path, tmp_path / "page.md", None)
    assert _rows((tmp_path / "page.md").read_text(), "Positions").keys() == {"positions", "---", "none"}


def test_a_page_without_pictures_has_no_links(runs, tmp_path):
    report.write_report(runs, tmp_path / "page.md", None)
    page = (tmp_path / "page.md").read_text()
    assert "![" not in page
    assert "## Learning curves" not in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_only_trained_lengths(tmp_path):
    run = write_run(tmp_path, "none")
    results = json.loads((run / "results.json").read_text())
    results["tests"] = {"test": results["tests"]["test"]}
    (run / "results.json").write_text(json.dumps(results))
    report.write_report(tmp_path, tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "No test set of longer sentences was measured." in page
    assert "--unseen" not in page
    assert not (tmp_path / "lengths.png").exists()


def test_the_name_of_the_data_and_the_note_are_kept(tmp_path):
    write_run(tmp_path / "runs", "none")
    report.write_report(
        tmp_path / "runs", tmp_path / "page.md", tmp_path, data_name="Morse code", note="Chosen by hand."
    )
    report.write_report(tmp_path / "results.json", tmp_path / "again.md", tmp_path)
    again = (tmp_path / "again.md").read_text()
    assert "translate Morse code, alike" in again
    assert "\n\nChosen by hand.\n\n" in again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"width": 32}}, r"runs must have equal settings of the model, but .* differ in \['width'\]"),
        ({"training": {"steps": 301}}, r"equal settings of the training, .* differ in \['steps'\]"),
        ({"results": {"search": {"beam": 1, "length_penalty": 0.6}}}, r"settings of the search, .*\['beam'\]"),
        ({"config": {"vocabulary": 5000}}, r"runs must have equal data, .*\['vocabulary'\]"),
        ({"results": {"tests": {}}}, r"runs must have equal tests, .*'test-11-13'"),
    ],
)
def test_runs_that_do_not_compare(tmp_path, changes, message):
    write_run(tmp_path, "none")
    write_run(tmp_path, "sinusoidal", **changes)
    with pytest.raises(ValueError, match=message):
        report.write_report(tmp_path, tmp_path / "page.md", tmp_path)
    assert not (tmp_path / "page.md").exists()
    assert not (tmp_path / "results.json").exists()


def test_the_same_run_twice(tmp_path):
    write_run(tmp_path, "none").rename(tmp_path / "copy")
    write_run(tmp_path, "none")
    with pytest.raises(ValueError, match="runs must differ, but copy and none-seed0 have equal settings"):
        report.write_report(tmp_path, tmp_path / "page.md", None)


def test_no_runs(tmp_path):
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))} must hold at least one finished run"):
        report.write_report(tmp_path, tmp_path / "page.md", None)
    with pytest.raises(ValueError, match=r"runs must be a folder of runs or a results.json .*, got .*nowhere"):
        report.write_report(tmp_path / "nowhere", tmp_path / "page.md", None)


def test_files_of_another_kind(tmp_path):
    run = write_run(tmp_path, "relative-16")
    with pytest.raises(ValueError, match=r"results.json must be a results.json that report wrote"):
        report.write_report(run / "results.json", tmp_path / "page.md", None)
    torch.save({"model": _state(ModelSettings(**SMALL, max_distance=3), 0)}, run / "average.pt")
    with pytest.raises(ValueError, match=r"average.pt: .*tables.key.rows must have 33 rows, got 7"):
        report.write_report(tmp_path, tmp_path / "page.md", None)
    torch.save({"model": {}}, run / "average.pt")
    with pytest.raises(ValueError, match=r"average.pt must hold tables of relations, found none"):
        report.write_report(tmp_path, tmp_path / "page.md", None)
    torch.save([1], run / "average.pt")
    with pytest.raises(ValueError, match=r"average.pt must be a model written by"):
        report.write_report(tmp_path, tmp_path / "page.md", None)
    (run / "average.pt").unlink()
    (run / "metrics.csv").write_text("step,split,loss,nll,learning_rate,tokens_per_second,seconds\n")
    with pytest.raises(ValueError, match=r"metrics.csv must have rows of the splits train and valid"):
        report.write_report(tmp_path, tmp_path / "page.md", None)


def test_a_measured_test_set_is_needed(tmp_path):
    write_run(tmp_path, "none", results={"tests": {}})
    with pytest.raises(ValueError, match=r"runs must have been measured on a test set named test, got \[\]"):
        report.write_report(tmp_path, tmp_path / "page.md", None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.234, "1.23"), (999.0, "999.00"), (12345.6, "12,346"), (1e30, "1e+30"), (math.inf, "inf")],
)
def test_figures(value, shown):
    assert results.as_figure(value) == shown


def test_the_command(runs, tmp_path, capsys):
    import argparse

    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    out, images = tmp_path / "page.md", tmp_path / "images"
    report.run(parser.parse_args([str(runs), "--out", str(out), "--images", str(images), "--data-name", "Numbers"]))
    assert capsys.readouterr().out.startswith(f"{out}: the page")
    assert "translate Numbers, alike" in out.read_text()
    defaults = parser.parse_args(["runs"])
    assert defaults.out.as_posix() == "docs/paper.md"
    assert defaults.images.as_posix() == "docs/images/translation"
