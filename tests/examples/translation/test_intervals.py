"""Intervals of the report: BLEU from sentence statistics, the paired bootstrap, and those over seeds."""

import random

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("scipy")

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from examples.translation.report.intervals import (
    Row,
    bootstrapped,
    change_over_seeds,
    corpus_bleu,
    difference_over_seeds,
    resampled_bleu,
    sentence_statistics,
)

WORDS = ["the", "a", "cat", "dog", "sees", "likes", "red", "blue", "old", "house", ",", ".", "!"]


def _corpus(sentences=120):
    draws = random.Random(0)
    return [" ".join(draws.choices(WORDS, k=draws.randint(1, 12))) for _ in range(sentences)]


def _worse(lines, share, seed):
    """The lines with so many of their words replaced by others."""
    draws = random.Random(seed)
    return [
        " ".join(draws.choice(WORDS) if draws.random() < share else word for word in line.split()) for line in lines
    ]


def _row(*systems, resamples=2000):
    """A row of systems with one reference corpus."""
    statistics = [sentence_statistics(lines, _corpus()) for lines in systems]
    bleus = [corpus_bleu(each.sum(0).tolist()) for each in statistics]
    return Row.of(bleus, torch.tensor(bleus, dtype=torch.float64), resampled_bleu(statistics, resamples))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_sums_of_sentence_statistics_give_corpus_bleu_exactly(share):
    references = _corpus()
    lines = [*_worse(references, share, 1)[:-2], "", "the"]
    statistics = sentence_statistics(lines, references)
    assert statistics.shape == (120, 10)
    assert corpus_bleu(statistics.sum(0).tolist()) == BLEU().corpus_score(lines, [references]).score


@pytest.mark.parametrize("share", [0.2, 0.215, 0.23, 0.3])
def test_with_one_seed_it_is_sacrebleus_paired_bootstrap(share):
    references, first = _corpus(), _worse(_corpus(), 0.2, 1)
    second = _worse(references, share, 2)
    found = bootstrapped(_row(first), _row(second))
    _, scores = PairedTest([("second", second), ("first", first)], {"BLEU": BLEU()}, [references], "bs", 2000)()
    assert found.value == pytest.approx(scores["BLEU"][1].score - scores["BLEU"][0].score, abs=1e-9)
    wanted = scores["BLEU"][1].p_value
    noise = (2 * max(wanted, 0.01) * (1 - wanted) / 2000) ** 0.5
    assert found.p == pytest.approx(wanted, abs=4 * noise)


def test_a_row_beside_itself_differs_by_nothing_and_sentences_are_drawn_alike():
    row = _row(_worse(_corpus(), 0.2, 1))
    found = bootstrapped(row, row)
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_seeds_widen_the_interval_as_the_variance_of_their_mean():
    seeds, none = (20.0, 21.0, 22.5), torch.zeros(200_000, dtype=torch.float64)
    drawn = Row(seeds, none).drawn(torch.Generator().manual_seed(0))
    assert float(drawn.var()) == pytest.approx(float(torch.tensor(seeds).var()) / 3, rel=0.02)
    one, other = Row(seeds, none), Row((20.0,), none)
    found = bootstrapped(one, other)
    assert found.value == pytest.approx(63.5 / 3 - 20)
    assert (found.low, found.high) == pytest.approx((0.0, 2.5))


def test_seeds_without_translations_count_and_sentences_are_the_others():
    kept = _row(_worse(_corpus(), 0.2, 1))
    more = Row((*kept.seeds, kept.seeds[0] + 3, kept.seeds[0] - 3), kept.shift)
    other = _row(_worse(_corpus(), 0.3, 2))
    narrow, wide = bootstrapped(kept, other), bootstrapped(more, other)
    assert wide.value == pytest.approx(narrow.value)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_intervals_over_seeds_are_students():
    found = difference_over_seeds([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])
    half = 2.7764451 * (2 / 3) ** 0.5  # the t distribution's 97.5 % point of 4 degrees of freedom
    assert (found.value, found.low, found.high) == pytest.approx((-4, -4 - half, -4 + half))
    assert (found.sign, found.sentences) == (-1, False)
    assert difference_over_seeds([1.0], [5.0, 6.0]).low is None
    assert difference_over_seeds([2.0, 2.0], [1.0, 1.0]).sign == 1
    change = change_over_seeds([-1.0, 0.0, 1.0, -1.0, 0.0])
    half = 2.7764451 * (0.7 / 5) ** 0.5
    assert (change.value, change.low, change.high, change.sign) == pytest.approx((-0.2, -0.2 - half, -0.2 + half, 0))
