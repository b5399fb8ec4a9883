"""Tests the example that translates numbers: its names are right, and its command works and continues after Ctrl-C."""

import json

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

import translating_numbers as numbers
from matplotlib.pyplot import imread

from examples.translation.corpus import words

NAMES = [
    (1, "one", "eins"),
    (16, "sixteen", "sechzehn"),
    (21, "twenty one", "ein und zwanzig"),
    (101, "one hundred and one", "ein hundert eins"),
    (1001, "one thousand and one", "ein tausend eins"),
    (30_080, "thirty thousand and eighty", "dreißig tausend achtzig"),
    (101_000, "one hundred and one thousand", "ein hundert ein tausend"),
]


@pytest.mark.parametrize(("number", "english", "german"), NAMES)
def test_names(number, english, german):
    assert (numbers.english(number), numbers.german(number)) == (english, german)


@pytest.fixture(autouse=True, scope="module")
def _small():
    """Use a sixth of the corpus and a tiny model; restore the number of threads."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "NUMBERS", 2000)
        patch.setitem(numbers.PREPARE, "--held-out", 50)
        patch.setitem(numbers.MODEL, "--width", 16)
        yield
    torch.set_num_threads(threads)


def run(folder, *more):
    return numbers.main(["--quick", "--steps", "3", "--out", str(folder), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of an uninterrupted command."""
    folder = tmp_path_factory.mktemp("numbers") / "whole"
    assert run(folder) == 0
    return folder


def test_command_line_trains_both_rows_and_draws(finished):
    record = json.loads((finished / "results.json").read_text(encoding="utf-8"))
    assert [each["variant"] for each in record["runs"]] == ["sinusoidal", "relative"]
    for each in record["runs"]:
        assert [each["asked"][str(count)] for count in numbers.LONGER] == [50, 50, 50]
        assert sum(count for length, count in each["asked"].items() if int(length) <= numbers.TRAINED) == 50
        assert all(words(source) == int(count) for count, (source, _, _) in each["shown"].items())
    for name in ("results", "tables", "distances", "order"):
        assert imread(finished / f"{name}.png")[..., :3].std() > 0.05


def test_a_right_translation_is_right_to_the_last_word():
    found = [(("two", "zwei"), "zwei"), (("two hundred", "zwei hundert"), "zwei"), (("four", "vier"), "vier")]
    done = numbers.Run.of("relative", 0, found, 1.0)
    assert (done.asked, done.right) == ({1: 2, 2: 1}, {1: 2})
    assert (done.share([1]), done.share([1, 2])) == (1.0, pytest.approx(2 / 3))
