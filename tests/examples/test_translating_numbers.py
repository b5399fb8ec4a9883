"""The example that translates numbers: its names are right, its command line works, and what Ctrl-C stops goes on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import translating_numbers as numbers
from matplotlib.pyplot import imread

from examples.translation.corpus import read_corpus, words
from examples.translation.model import Translator
from examples.translation.settings import ModelSettings
from examples.translation.training import Training

NAMES = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (11, "eleven", "elf"),
    (12, "twelve", "zwölf"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (20, "twenty", "zwanzig"),
    (21, "twenty one", "ein und zwanzig"),
    (66, "sixty six", "sechs und sechzig"),
    (70, "seventy", "siebzig"),
    (100, "one hundred", "ein hundert"),
    (101, "one hundred and one", "ein hundert eins"),
    (111, "one hundred and eleven", "ein hundert elf"),
    (312, "three hundred and twelve", "drei hundert zwölf"),
    (1000, "one thousand", "ein tausend"),
    (1001, "one thousand and one", "ein tausend eins"),
    (1100, "one thousand one hundred", "ein tausend ein hundert"),
    (21_000, "twenty one thousand", "ein und zwanzig tausend"),
    (30_080, "thirty thousand and eighty", "dreißig tausend achtzig"),
    (101_000, "one hundred and one thousand", "ein hundert ein tausend"),
    (
        999_999,
        "nine hundred and ninety nine thousand nine hundred and ninety nine",
        "neun hundert neun und neunzig tausend neun hundert neun und neunzig",
    ),
]


@pytest.mark.parametrize(("number", "english", "german"), NAMES)
def test_names(number, english, german):
    assert (numbers.english(number), numbers.german(number)) == (english, german)


def _value(name, small, tens, hundred, thousand):
    """A number from its name; ones and tens add up in either order."""
    total = part = 0
    for word in name.split():
        if word == hundred:
            part *= 100
        elif word == thousand:
            total, part = 1000 * part, 0
        elif word in small:
            part += small.index(word)
        elif word in tens:
            part += 10 * (2 + tens.index(word))
        else:
            assert word in ("and", "und")
    return total + part


def test_every_name_says_its_number():
    rng = random.Random(0)
    for number in [*range(1100), *(rng.randrange(1_000_000) for _ in range(2000))]:
        name = numbers.german(number)
        german = f"{name[:-1]}" if name.endswith("eins") else name
        assert _value(numbers.english(number), numbers.ENGLISH, numbers.ENGLISH_TENS, "hundred", "thousand") == number
        assert _value(german, numbers.GERMAN, numbers.GERMAN_TENS, "hundert", "tausend") == number


def test_numbers_are_different_and_of_every_length():
    drawn = numbers.numbers(2000, 0)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 2000
    assert 0 <= drawn[0] < drawn[-1] < 1_000_000
    assert {words(numbers.english(number)) for number in drawn} == set(range(1, 12))
    assert drawn == numbers.numbers(2000, 0) != numbers.numbers(2000, 1)


@pytest.fixture(autouse=True, scope="module")
def _small():
    """A sixth of the corpus and a tiny model; the number of threads is put back."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "NUMBERS", 2000)
        patch.setitem(numbers.PREPARE, "--held-out", 50)
        patch.setitem(numbers.MODEL, "--width", 16)
        yield
    torch.set_num_threads(threads)


def run(folder, *more):
    return numbers.main(["--quick", "--steps", "3", "--out", str(folder), *more])


def results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def without_times(record):
    return [{name: value for name, value in each.items() if name != "seconds"} for each in record["runs"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a command that was not broken off."""
    folder = tmp_path_factory.mktemp("numbers") / "whole"
    assert run(folder) == 0
    return folder


def test_command_line_trains_both_rows_and_draws(finished):
    record = results(finished)
    assert record.keys() == {"python", "torch", "relgraph", "steps", "runs"}
    assert [each["variant"] for each in record["runs"]] == ["sinusoidal", "relative"]
    for each in record["runs"]:
        assert list(each["losses"]) == ["3"]
        assert [each["asked"][str(count)] for count in numbers.LONGER] == [50, 50, 50]
        assert sum(count for length, count in each["asked"].items() if int(length) <= numbers.TRAINED) == 50
        assert all(words(source) == int(count) for count, (source, _, _) in each["shown"].items())
    for name in ("results", "tables", "distances", "order"):
        assert imread(finished / f"{name}.png")[..., :3].std() > 0.05


def test_no_tested_number_is_trained_on(finished):
    tests = {pair for path in (finished / "data").glob("test*.tsv") for pair in read_corpus([path])}
    valid = set(read_corpus([finished / "data" / "valid.tsv"]))
    corpus = set(read_corpus([finished / "corpus.tsv"]))
    short = {pair for pair in corpus if words(pair[0]) <= numbers.TRAINED}
    trained = json.loads((finished / "data" / "sizes.json").read_text())["train"]
    assert tests | valid <= corpus
    assert tests.isdisjoint(valid)
    assert trained == len(short - tests - valid) == len(short) - 100


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(finished, tmp_path, monkeypatch, capsys):
    update = Training.update

    def stopped(self, asked=False):
        if self.run.name == "relative-0" and self.position.step == 0:  # noted in this step, obeyed after the next
            signal.raise_signal(signal.SIGINT)
        return update(self, asked)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "update", stopped)
        assert run(tmp_path) == 130
    printed = capsys.readouterr().out
    assert f"stopped: 1 of 2 runs are kept in {tmp_path / 'results.json'}" in printed
    assert f"{tmp_path / 'data'}: writes vocabulary.json, train.pt, valid.pt, valid.tsv, test.tsv" in printed
    assert f"{tmp_path / 'relative-0'}: writes config.json, metrics.csv, and every 20 steps latest.pt" in printed
    assert "\nsinusoidal " in printed
    assert "\nrelative " not in printed
    assert [each["variant"] for each in results(tmp_path)["runs"]] == ["sinusoidal"]
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 runs stand in" in printed
    assert "relative-0: going on after step 2," in printed
    assert without_times(results(tmp_path)) == without_times(results(finished))


def test_other_settings_are_refused_and_fresh_begins_anew(finished, capsys):
    with pytest.raises(SystemExit, match="2"):
        numbers.main(["--steps", "2", "--seeds", "1", "--out", str(finished)])
    assert "begin anew by --fresh" in capsys.readouterr().err
    assert run(finished, "--fresh") == 0
    assert capsys.readouterr().out.count("a new training") == 2


def test_a_command_that_fails_ends_the_example(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        numbers.command("average", tmp_path)
    assert "must hold the models of a training" in capsys.readouterr().err


def test_attention_to_the_source_sums_to_one():
    model = Translator(ModelSettings(width=16, heads=2, layers=1, hidden=16), 300).eval()
    weights = numbers.looks_at(model, [5, 6, 7, 2], [1, 8, 9])
    assert weights.shape == (3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))


def _run(variant, seed, right, found="zwei"):
    asked, right = dict.fromkeys((2, 9, 10, 11), 10), dict.fromkeys((2, 9, 10, 11), right)
    return numbers.Run(variant, seed, asked, right, {}, {9: ["one", "eins", found]}, 2.0)


def test_report_shows_mean_and_spread():
    table = numbers.report([_run("relative", seed, right) for seed, right in enumerate((5, 6, 7))])
    assert table.count("60.0 ± 10.0") == 4
    assert "relative" in table


def test_translations_show_what_was_wanted_and_found():
    assert "≠ zwei" in numbers.translations(_run("relative", 0, 5), [9])
    assert "= found" in numbers.translations(_run("relative", 0, 5, "eins"), [9])


def test_it_runs_from_any_folder(tmp_path):
    command = [sys.executable, str(numbers.__file__), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
