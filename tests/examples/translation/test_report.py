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

from scipy import stats

from examples.translation import cli, report
from examples.translation.model import Translator
from examples.translation.report.intervals import corpus_bleu, sentence_statistics
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import DISTANCES, SHAPES, _checkpoints, models
from tests.examples.translation.cases import ROOT, TINY

TESTS = ("test", "test-11-13", "test-14-17", "test-18-24")
VARIANTS = {model.name: model.options for model in models()}


def write_run(folder, name, seed=0, bleu=20.0, nll=1.5):
    """A finished run of a model of the sweep, with figures made up from ``bleu`` and ``nll``."""
    options = cli._parser().parse_args(["train", "data", "run", *VARIANTS[name]])
    sizes = TINY if name.split("-")[0] not in SHAPES else {"layers": 1}
    model = ModelSettings(**{**cli._given(options, ModelSettings), **sizes})
    training = TrainingSettings(**{**cli._given(options, TrainingSettings), "steps": 300, "seed": seed})
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
    if sizes is TINY and model.positions in ("relative", "both") and model.key_table and model.value_table:
        torch.manual_seed(seed)
        torch.save({"model": Translator(model, 300).state_dict()}, run / "average.pt")


def bleu_of(place, seed):
    """BLEU of a run of the sweep: by its model's place, with a share of the seed and some noise."""
    return 20 + 2 * place + 0.25 * seed**2 + 0.05 * (3 * place * seed % 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of every model."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for seed in range(3):
        for place, name in enumerate(VARIANTS):
            write_run(folder, name, seed, bleu=bleu_of(place, seed), nll=2 - 0.05 * place + 0.01 * seed)
    return folder


@pytest.fixture(scope="module")
def written(runs):
    """Page and image folder of the whole sweep, without its pictures."""
    page, images = runs.parent / "docs" / "page.md", runs.parent / "docs" / "images" / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "save_picture", lambda *_: None)
        report.write_report(runs, page, images)
    return page, images


def test_the_published_page_follows_from_its_results(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "save_picture", lambda *_: None)
    results, page = ROOT / "docs" / "images" / "translation" / "results.json", tmp_path / "paper.md"
    report.write_report(results, page, tmp_path / "images" / "translation")
    assert page.read_text() == (ROOT / "docs" / "paper.md").read_text()


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
    bleus = [bleu_of(place, seed) for seed in range(3)]
    chrf, perplexity = [bleu + 20 for bleu in bleus], [math.exp(2 - 0.05 * place + 0.01 * seed) for seed in range(3)]
    assert _shown(bleus) == "24.45 ± 0.51"
    compared = _rows(page, "Positions")
    names = ["none", "sinusoidal", "learned", "relative, k = 16", "both, k = 16"]
    assert list(compared) == ["positions", "---", *names, "shape", "base", "big"]
    shown = [_shown(bleus), _shown(chrf), _shown(perplexity), "1,201 ± 1", "1,234,567", "3"]
    assert compared["relative, k = 16"] == shown
    assert "Left out" not in page, "the sweep trains every row"
    distances = _rows(page, "Clipping distance")
    assert list(distances) == ["k", "---", *("8 (ours)" if k == 8 else str(k) for k in DISTANCES)]
    assert distances["16"] == [shown[0], shown[2], "3"]
    longer = _rows(page, "Sentences longer than any in training")
    assert longer["none"][6] == _shown([bleu_of(0, seed) - 2 for seed in range(3)])
    assert longer["none"][4] == longer["none"][9] == "3"
    bold = {(name, column) for name, cells in longer.items() for column, cell in enumerate(cells) if "**" in cell}
    assert bold == {("both, k = 16", column) for column in (0, 1, 2, 3, 5, 6, 7, 8)}


def test_differences_have_the_t_intervals_of_the_seeds(written):
    page, places = written[0].read_text(), [list(VARIANTS).index(name) for name in ("both-16", "relative-16")]
    differences = [bleu_of(places[0], seed) - bleu_of(places[1], seed) for seed in range(3)]
    half = stats.t.ppf(0.975, 2) * stdev(differences) / math.sqrt(3)
    gain = mean(differences)
    shown = f"**+{gain:.2f}** [+{gain - half:.2f}, +{gain + half:.2f}] †"
    wanted = f"| both, k = 16 | relative, k = 16 | trained lengths | 3 | {shown} | < 0.001 | "
    (line,) = (line for line in page.splitlines() if line.startswith(wanted))
    assert half > 0.01
    assert line.endswith("| better |")
    assert "| big: relative, k = 8 | sinusoidal | trained lengths | 3 | **+2.0" in page


def test_a_shape_keeps_checkpoints_a_hundredth_of_the_training_apart():
    of = {model.name: model for model in models()}
    assert _checkpoints(of["none"], ["--steps", "2500"]) == ([], [])
    assert _checkpoints(of["base-sinusoidal"], ["--steps", "2500"]) == ([], ["--last", "1"])
    big = of["big-sinusoidal"]
    assert _checkpoints(big, ["--steps=2500"]) == (["--save-every", "25", "--keep", "20"], ["--last", "20"])
    assert _checkpoints(big, ["--steps", "6", "--warm-up", "2"])[1] == ["--last", "6"]
    assert _checkpoints(big, [])[0] == ["--save-every", "1000", "--keep", "20"]


class TestEarlierRuns:
    """Runs of an earlier record, and of another time, beside those of a folder."""

    def test_those_of_the_folder_replace_them_and_the_others_stay(self, written, tmp_path):
        write_run(tmp_path / "runs", "sinusoidal", 1, bleu=50.0)
        write_run(tmp_path / "runs", "sinusoidal", 3, bleu=60.0)
        earlier = written[1] / "results.json"
        report.write_report([tmp_path / "runs", earlier], tmp_path / "page.md", tmp_path / "images")
        compared = _rows((tmp_path / "page.md").read_text(), "Positions")
        bleus = [bleu_of(1, 0), 50.0, bleu_of(1, 2), 60.0]
        assert (compared["sinusoidal"][0], compared["sinusoidal"][-1]) == (_shown(bleus), "4")
        assert compared["none"] == _rows(written[0].read_text(), "Positions")["none"]
        page = (tmp_path / "page.md").read_text()
        assert "runs/pairs --seeds 4 \\\n    --only sinusoidal \\\n" in page
        assert "We trained each model with 3 to 4 seeds" in page
        # of seed 3, which only one of both rows has, the difference knows nothing
        gain = mean([bleu_of(2, 0) - bleus[0], bleu_of(2, 1) - bleus[1], bleu_of(2, 2) - bleus[2]])
        assert f"| relative, k = 16 | sinusoidal | trained lengths | 3 | −{-gain:.2f} [" in page


class TestBootstrap:
    """Intervals of BLEU from the translations, with the references of the data."""

    REFERENCES = ("a red dog sees the cat", "the house is old and blue", "a child likes the new ball here", "yes") * 5

    def _write(self, folder, name, seed, wrong):
        """A run that translates so many of the sentences wrongly, with its translations."""
        lines = [*("a dog sees a cat or so" for _ in range(wrong)), *self.REFERENCES[wrong:]]
        bleu = corpus_bleu(sentence_statistics(lines, self.REFERENCES).sum(0).tolist())
        write_run(folder / "runs", name, seed, bleu=bleu)
        run = folder / "runs" / f"{name}-seed{seed}"
        results = json.loads((run / "results.json").read_text())
        results["tests"] = {"test": results["tests"]["test"]}
        (run / "results.json").write_text(json.dumps(results))
        (run / "test.translated.txt").write_text("".join(f"{line}\n" for line in lines))
        return bleu

    @pytest.fixture
    def folder(self, tmp_path):
        self.bleus = [self._write(tmp_path, "sinusoidal", seed, 8 + seed) for seed in range(2)]
        self.bleus += [self._write(tmp_path, "relative-16", seed, 3 + seed) for seed in range(2)]
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "test.tsv").write_text("".join(f"x\t{line}\n" for line in self.REFERENCES))
        return tmp_path

    def test_it_is_stored_shown_and_kept_as_long_as_it_is_of_these_runs(self, folder):
        images, page = folder / "images", folder / "page.md"
        report.write_report(folder / "runs", page, images, data=folder / "data")
        (found,) = json.loads((images / "results.json").read_text())["bootstrap"]
        assert (found["one"], found["other"], found["test"]) == ("relative, k = 16", "sinusoidal", "test")
        assert found["value"] == pytest.approx(mean(self.bleus[2:]) - mean(self.bleus[:2]))
        assert (found["seeds"], found["kept"]) == (2, [2, 2])
        assert 0 < found["low"] < found["value"] < found["high"]
        shown = f"**+{found['value']:.2f}** [+{found['low']:.2f}, +{found['high']:.2f}] |"
        assert shown in page.read_text()
        assert "paired bootstrap" in page.read_text()
        before = page.read_text()
        report.write_report(images / "results.json", page, images)
        assert page.read_text() == before
        write_run(folder / "more", "sinusoidal", 1, bleu=1.0)
        run = folder / "more" / "sinusoidal-seed1"
        results = json.loads((run / "results.json").read_text())
        (run / "results.json").write_text(json.dumps({**results, "tests": {"test": results["tests"]["test"]}}))
        report.write_report([folder / "more", images / "results.json"], page, images)
        assert "paired bootstrap" not in page.read_text()
        assert json.loads((images / "results.json").read_text())["bootstrap"] == []


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
    assert "Left out because no run has finished: none; learned; relative, k = 16; both, k = 16." in page
    assert "| relative, k = 4 | sinusoidal | 18–24 words | 1 | +0.00 (one seed) |" in page
    assert {path.name for path in (tmp_path / "images").glob("*.png")} == {"curves.png", "lengths.png"}
