"""The report of a sweep: its figures are those of the logs, and it can be written again from its own results."""

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

from examples.translation import cli, report
from examples.translation.model import Translator
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import DISTANCES, models
from tests.examples.translation.cases import TINY

TESTS = ("test", "test-11-13", "test-14-17", "test-18-24")
VARIANTS = {model.name: model.options for model in models()}


def write_run(folder, name, seed=0, bleu=20.0, nll=1.5):
    """A finished run of a model of the sweep, with figures made up from ``bleu`` and ``nll``."""
    options = cli._parser().parse_args(["train", "data", "run", *VARIANTS[name]])
    model = ModelSettings(**{**cli._given(options, ModelSettings), **TINY})
    training = TrainingSettings(steps=300, seed=seed)
    run = folder / f"{name}-seed{seed}"
    run.mkdir(parents=True)
    config = {"model": asdict(model), "training": asdict(training), "vocabulary": 4000, "pairs": 123456}
    config |= {"device": "cpu", "parameters": 1234567, "versions": {"python": "3.11.7", "torch": "2.13.0"}}
    (run / "config.json").write_text(json.dumps(config))
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
    (run / "results.json").write_text(json.dumps(results))
    rows = ["step,split,loss,nll,learning_rate,tokens_per_second,seconds"]
    for step, value in {100: nll + 2, 200: nll + 1, 300: nll}.items():
        rows += [f"{step},train,3.5,,0.001,{1000 + step + seed},9.5", f"{step},valid,,{value},,,"]
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    if model.positions in ("relative", "both") and model.key_table and model.value_table:
        torch.manual_seed(seed)
        torch.save({"model": Translator(model, 300).state_dict()}, run / "average.pt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of every model."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for seed in range(3):
        for place, name in enumerate(VARIANTS):
            write_run(folder, name, seed, bleu=20 + place + 0.25 * seed**2, nll=2 - 0.05 * place + 0.01 * seed)
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
    page, place = written[0].read_text(), list(VARIANTS).index("relative-16")
    bleus = [20 + place + 0.25 * seed**2 for seed in range(3)]
    chrf, perplexity = [bleu + 20 for bleu in bleus], [math.exp(2 - 0.05 * place + 0.01 * seed) for seed in range(3)]
    assert _shown(bleus) == f"{20 + place + 1.25 / 3:.2f} ± 0.52"
    compared = _rows(page, "Positions")
    assert list(compared) == ["positions", "---", "none", "sinusoidal", "relative, k = 16", "both, k = 16"]
    shown = [_shown(bleus), _shown(chrf), _shown(perplexity), "1,201 ± 1", "1,234,567", "3"]
    assert compared["relative, k = 16"] == shown
    assert "Left out" not in page, "the sweep trains every row"
    distances = _rows(page, "Clipping distance")
    assert list(distances) == ["k", "---", *map(str, DISTANCES)]
    assert distances["16"] == [shown[0], shown[2], "3"]
    longer = _rows(page, "Sentences longer than any in training")
    assert longer["none"][5] == _shown([20 - 2, 20.25 - 2, 21 - 2])
    bold = {(name, column) for name, cells in longer.items() for column, cell in enumerate(cells) if "**" in cell}
    assert bold == {("both, k = 16", column) for column in range(8)}
    spread = stdev([0, 0.25, 1]) * math.sqrt(2)
    assert f"*both, k = 16* less *relative, k = 16*, trained lengths: +9.00 BLEU ± {spread:.2f}, beyond" in page


def test_results_write_the_same_page_and_pictures_which_it_links(written, tmp_path):
    page, images = written
    again, folder = tmp_path / "docs" / "page.md", tmp_path / "docs" / "images" / "sweep"
    report.write_report(images / "results.json", again, folder)
    assert again.read_bytes() == page.read_bytes()
    assert {path.name for path in folder.iterdir()} == {path.name for path in images.iterdir()}
    for path in folder.iterdir():
        assert path.read_bytes() == (images / path.name).read_bytes()
    links = re.findall(r"!\[[^]]+\]\(images/sweep/([^)]+)\)", page.read_text())
    assert sorted([*links, "results.json"]) == sorted(path.name for path in images.iterdir())


def test_results_hold_curves_speeds_and_norms_of_the_tables(runs, written):
    record = json.loads((written[1] / "results.json").read_text())
    entry = next(entry for entry in record["runs"] if entry["name"] == "relative-16-seed1")
    nll = 2 - 0.05 * list(VARIANTS).index("relative-16") + 0.01
    assert entry["valid"] == [[100, nll + 2], [200, nll + 1], [300, nll]]
    assert entry["tokens_per_second"] == 1201
    states = [torch.load(runs / f"relative-16-seed{seed}" / "average.pt")["model"] for seed in range(3)]
    rows = states[1]["transformer.decoder.layers.0.self_attn.tables.value.rows"]
    assert entry["norms"]["decoder.0.value"] == pytest.approx(rows.norm(dim=-1).tolist(), abs=1e-4)
    keys = [state["transformer.encoder.layers.0.self_attn.tables.key.rows"] for state in states]
    cosine = mean(torch.cosine_similarity(key[3], key[20], dim=0).item() for key in keys)
    assert record["similarity"]["key"][3][20] == pytest.approx(cosine, abs=1e-3)


def test_the_command_leaves_out_what_has_no_finished_run(tmp_path, capsys):
    write_run(tmp_path / "runs", "sinusoidal")
    write_run(tmp_path / "runs", "relative-4")
    (tmp_path / "runs" / "none-seed3").mkdir()
    out = tmp_path / "page.md"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(out), "--images", str(tmp_path / "images")]) == 0
    assert capsys.readouterr().err == f"unfinished: {tmp_path / 'runs' / 'none-seed3'}\n"
    page = out.read_text()
    assert _rows(page, "Positions").keys() == {"positions", "---", "sinusoidal"}
    assert "Left out, without a finished run: none; relative, k = 16; both, k = 16." in page
    assert {path.name for path in (tmp_path / "images").glob("*.png")} == {"curves.png", "lengths.png"}
