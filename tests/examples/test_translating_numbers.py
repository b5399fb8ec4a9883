"""Tests the example that translates numbers: its names are right, and its command trains and tests."""

import json

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

import run as runner
import translating_numbers as page
from experiments import translating_numbers as numbers
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
    assert (page.english(number), page.german(number)) == (english, german)


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


def test_command_line_trains_and_tests_both_rows(tmp_path):
    assert runner.main(["translating_numbers", "--quick", "--steps", "3", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [each["variant"] for each in record["runs"]] == ["sinusoidal", "relative"]
    for each in record["runs"]:
        assert [each["asked"][str(count)] for count in numbers.LONGER] == [50, 50, 50]
        assert sum(count for length, count in each["asked"].items() if int(length) <= numbers.TRAINED) == 50
        assert all(words(source) == int(count) for count, (source, _, _) in each["shown"].items())
    assert imread(tmp_path / "results.png")[..., :3].std() > 0.05


def test_rows_of_numbers_are_names():
    names = [f"{page.english(number)} {page.german(number)}" for number in page.numbers(500, 0)]
    rows = [[page.WORDS[at - 2] for at in row.tolist() if at > page.END] for row in page.ids(names)]
    assert [" ".join(row) for row in rows] == names


def test_a_right_translation_is_right_to_the_last_word():
    found = [(("two", "zwei"), "zwei"), (("two hundred", "zwei hundert"), "zwei"), (("four", "vier"), "vier")]
    done = numbers.Run.of("relative", 0, found, 1.0)
    assert (done.asked, done.right) == ({1: 2, 2: 1}, {1: 2})
    assert (done.share([1]), done.share([1, 2])) == (1.0, pytest.approx(2 / 3))
