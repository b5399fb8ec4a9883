"""The report of a sweep: its figures follow from the logs, and its own results give it again."""

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
from examples.translation.report.bootstrap import corpus_bleu, sentence_statistics
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.sweep import DISTANCES, _checkpoints, models
from tests.examples.translation.cases import ROOT, TINY

TESTS = ("test", "test-11-13", "test-14-17", "test-18-24")
VARIANTS = {model.name: model.options for model in models()}


def write_run(folder, name, seed=0, bleu=20.0, nll=1.5):
    """A finished run of a model of the sweep, with figures made up from ``bleu`` and ``nll``."""
    options = cli._parser().parse_args(["train", "data", "run", *VARIANTS[name]])
    sizes = {"base": {"layers": 1}, "big": {"layers": 1}, "depth": {}}.get(name.split("-")[0], TINY)
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
    """The folder of the report on the whole sweep, without pictures."""
    return report_on(runs, runs.parent / "report")


def report_on(runs, out, *more):
    """Write a report without pictures and return its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "pictures_of", lambda _: {})
        assert cli.main(["report", str(runs), "--out", str(out), *map(str, more)]) == 0
    return out


def _tables(text):
    return re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)


def test_the_published_tables_follow_from_their_results(tmp_path):
    docs, tables = ROOT / "docs", {}
    for name in ("results", "french"):
        report_on(docs / "images" / "translation" / f"{name}.json", tmp_path / name)
        tables[name] = _tables((tmp_path / name / "tables.md").read_text())
    before, rest = (docs / "paper.md").read_text().split("## English to French\n")
    french, after = rest.split("\n## ", 1)
    other = ("| depth, k", "| positions | up to 26", "| row | over")  # the tables of copying and SCAN
    assert [table for table in _tables(before + after) if not table.startswith(other)] == tables["results"]
    positions, *_, differences = tables["french"]
    assert _tables(french) == [positions, differences]


def _rows(folder, section):
    """The cells of the table of a section, by the first cell of their row."""
    return {first: cells for first, *cells in _lines(folder, section)}


def _lines(folder, section):
    text = (folder / "tables.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)]


def _shown(values, form="{:.2f}"):
    return f"{form.format(mean(values))} ± {form.format(stdev(values))}"


def test_figures_are_means_and_sample_deviations_of_the_seeds(written):
    place = list(VARIANTS).index("relative-16")
    bleus = [bleu_of(place, seed) for seed in range(3)]
    chrf, perplexity = [bleu + 20 for bleu in bleus], [math.exp(2 - 0.05 * place + 0.01 * seed) for seed in range(3)]
    assert _shown(bleus) == "24.45 ± 0.51"
    compared = _rows(written, "Positions")
    names = ["none", "sinusoidal", "sinusoidal, shifted", "learned", "rotary", "ALiBi", "relative, k = 16"]
    assert list(compared) == ["positions", "---", *names, "relative, k = 16, tables per head", "both, k = 16"]
    shown = [_shown(bleus), _shown(chrf), _shown(perplexity), "1,234,567", "3"]
    assert compared["relative, k = 16"] == shown
    distances = _rows(written, "Clipping distance")
    assert list(distances) == ["k", "---", *("8 (ours)" if k == 8 else str(k) for k in DISTANCES)]
    assert distances["16"] == ["25.8", shown[0], shown[2], "3"]
    assert distances["8 (ours)"][0] == "–"
    assert _rows(written, "Models shaped like base and big").keys() == {"shape", "---", "base", "big"}
    depths = _lines(written, "Depth and clipping distance")[2:]
    assert [cells[:2] for cells in depths] == [[layers, k] for layers in "113" for k in ("1", "4", "16")]
    assert depths[2][2:4] == distances["16"][1:3]  # here models of the usual size have one layer
    longer = {measure: _rows(written, f"Longer sentences: {measure}") for measure in ("perplexity", "BLEU")}
    assert longer["BLEU"]["none"][1] == _shown([bleu_of(0, seed) - 2 for seed in range(3)])
    for rows in longer.values():
        assert {name for name, cells in rows.items() for cell in cells if "**" in cell} == {"both, k = 16"}
        assert all("**" in cell for cell in rows["both, k = 16"][:4])
    late = _rows(written, "Change of the validation loss in the last fifth of training")
    assert late["none"] == ["**−1.000** [−1.000, −1.000]", "3"]
    changes = _rows(written, "Perplexity of the longest sentences by clipping distance")
    assert changes["0"][1] == ""
    fall = mean(math.exp(2.9 + 0.01 * seed) * (math.exp(-0.15) - math.exp(-0.2)) for seed in range(3))
    assert changes["1"][1].startswith(f"**−{fall:.2f}**")


def test_differences_have_the_t_intervals_of_the_seeds(written):
    text, places = (
        (written / "tables.md").read_text(),
        [list(VARIANTS).index(name) for name in ("both-16", "relative-16")],
    )
    differences = [bleu_of(places[0], seed) - bleu_of(places[1], seed) for seed in range(3)]
    half = stats.t.ppf(0.975, 2) * stdev(differences) / math.sqrt(3)
    gain = mean(differences)
    shown = f"**+{gain:.2f}** [+{gain - half:.2f}, +{gain + half:.2f}] †"
    wanted = f"| both, k = 16 | relative, k = 16 | trained lengths | 3 | {shown} | < 0.001 | "
    (line,) = (line for line in text.splitlines() if line.startswith(wanted))
    assert half > 0.01
    assert line.endswith("| better |")
    assert "| big: relative, k = 8 | sinusoidal | trained lengths | 3 | **+2.0" in text


def test_a_shape_keeps_checkpoints_a_hundredth_of_the_training_apart():
    of = {model.name: model for model in models()}
    assert _checkpoints(of["none"], ["--steps", "2500"]) == ([], [])
    assert _checkpoints(of["base-sinusoidal"], ["--steps", "2500"]) == ([], ["--last", "1"])
    big = of["big-sinusoidal"]
    assert _checkpoints(big, ["--steps=2500"]) == (["--save-every", "25", "--keep", "20"], ["--last", "20"])
    assert _checkpoints(big, ["--steps", "6", "--warm-up", "2"])[1] == ["--last", "6"]
    assert _checkpoints(big, [])[0] == ["--save-every", "1000", "--keep", "20"]


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

    def test_it_is_stored_and_shown(self, folder):
        out = report_on(folder / "runs", folder / "out", "--data", folder / "data")
        (found,) = json.loads((out / "results.json").read_text())["bootstrap"]
        assert (found["one"], found["other"], found["test"]) == ("relative, k = 16", "sinusoidal", "test")
        assert found["value"] == pytest.approx(mean(self.bleus[2:]) - mean(self.bleus[:2]))
        assert (found["seeds"], found["kept"]) == (2, [2, 2])
        assert 0 < found["low"] < found["value"] < found["high"]
        shown = f"**+{found['value']:.2f}** [+{found['low']:.2f}, +{found['high']:.2f}] |"
        assert shown in (out / "tables.md").read_text()
        again = report_on(out / "results.json", folder / "again")
        assert (again / "tables.md").read_text() == (out / "tables.md").read_text()

    def test_references_of_other_tests_are_refused(self, folder, capsys):
        (folder / "data" / "test.tsv").write_text("x\tyes\n" * 20)
        arguments = ["report", folder / "runs", "--out", folder / "out", "--data", folder / "data"]
        assert cli.main(list(map(str, arguments))) == 2
        assert "test.tsv must be what relative-16-seed0 was measured on, with BLEU" in capsys.readouterr().err


def test_results_hold_curves_and_norms_of_the_tables(runs, written):
    record = json.loads((written / "results.json").read_text())
    entry = next(entry for entry in record["runs"] if entry["name"] == "relative-16-seed1")
    nll = 2 - 0.05 * list(VARIANTS).index("relative-16") + 0.01
    assert entry["valid"] == [[100, nll + 2], [200, nll + 1], [300, nll]]
    states = [torch.load(runs / f"relative-16-seed{seed}" / "average.pt")["model"] for seed in range(3)]
    rows = states[1]["transformer.decoder.layers.0.self_attn.tables.value.rows"]
    assert entry["norms"]["decoder.0.value"] == pytest.approx(rows.norm(dim=-1).tolist(), abs=1e-4)
    keys = [state["transformer.encoder.layers.0.self_attn.tables.key.rows"] for state in states]
    cosine = mean(torch.cosine_similarity(key[3], key[20], dim=0).item() for key in keys)
    assert record["similarity"]["key"][3][20] == pytest.approx(cosine, abs=1e-3)


def test_a_part_of_a_sweep_is_reported_with_pictures(tmp_path, capsys):
    write_run(tmp_path / "runs", "sinusoidal")
    write_run(tmp_path / "runs", "relative-4")
    (tmp_path / "runs" / "none-seed3").mkdir()
    arguments = ["report", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().err == f"unfinished: {tmp_path / 'runs' / 'none-seed3'}\n"
    assert _rows(tmp_path, "Positions").keys() == {"positions", "---", "sinusoidal"}
    shown = "| relative, k = 4 | sinusoidal | 18–24 words | 1 | +0.00 (one seed) |"
    assert shown in (tmp_path / "tables.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"curves.png", "lengths.png"}
    config = tmp_path / "runs" / "relative-4-seed0" / "config.json"
    config.write_text(config.read_text().replace('"smoothing": 0.1', '"smoothing": 0.2'))
    assert cli.main(arguments) == 2
    assert "sinusoidal-seed0 and relative-4-seed0 differ in ['smoothing']" in capsys.readouterr().err
