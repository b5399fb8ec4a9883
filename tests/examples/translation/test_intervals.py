"""Tests the intervals of the report: BLEU from sentence statistics, the paired bootstrap, and those over seeds."""

import random
from statistics import stdev

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("scipy")

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats

from examples.translation.bootstrap import bootstrapped, corpus_bleu, resampled_bleu, sentence_statistics
from examples.translation.report import over_seeds

WORDS = ["the", "a", "cat", "dog", "sees", "likes", "red", "blue", "old", "house", ",", ".", "!"]


def _corpus(sentences=120):
    draws = random.Random(0)
    return [" ".join(draws.choices(WORDS, k=draws.randint(1, 12))) for _ in range(sentences)]


def _worse(lines, share, seed):
    """The lines with this share of their words replaced by others."""
    draws = random.Random(seed)
    return [
        " ".join(draws.choice(WORDS) if draws.random() < share else word for word in line.split()) for line in lines
    ]


def _measured(lines, resamples=2000):
    """BLEU of a system, and how it shifts with the sentences."""
    statistics = sentence_statistics(lines, _corpus())
    return corpus_bleu(statistics.sum(0).tolist()), resampled_bleu([statistics], resamples)[:, 0]


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_sums_of_sentence_statistics_give_corpus_bleu_exactly(share):
    references = _corpus()
    lines = [*_worse(references, share, 1)[:-2], "", "the"]
    statistics = sentence_statistics(lines, references)
    assert statistics.shape == (120, 10)
    assert corpus_bleu(statistics.sum(0).tolist()) == BLEU().corpus_score(lines, [references]).score


@pytest.mark.parametrize("share", [0.215, 0.3])
def test_with_one_seed_it_is_sacrebleus_paired_bootstrap(share):
    references, first = _corpus(), _worse(_corpus(), 0.2, 1)
    second = _worse(references, share, 2)
    (bleu, moves), (other, others_moves) = _measured(first), _measured(second)
    found = bootstrapped([bleu - other], moves - others_moves)
    _, scores = PairedTest([("second", second), ("first", first)], {"BLEU": BLEU()}, [references], "bs", 2000)()
    assert found["value"] == pytest.approx(scores["BLEU"][1].score - scores["BLEU"][0].score, abs=1e-9)
    wanted = scores["BLEU"][1].p_value
    noise = (2 * max(wanted, 0.01) * (1 - wanted) / 2000) ** 0.5
    assert found["p"] == pytest.approx(wanted, abs=4 * noise)


def test_seeds_widen_the_interval_as_the_variance_of_their_mean():
    differences, none = [0.0, 1.0, 2.5], torch.zeros(200_000, dtype=torch.float64)
    found = bootstrapped(differences, none)
    assert (found["value"], found["low"], found["high"]) == pytest.approx((3.5 / 3, 0.0, 2.5))
    noise = torch.randn(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.1
    many = [float(value) for value in torch.linspace(-2, 2, 9)]
    found = bootstrapped(many, noise)
    deviation = (stdev(many) ** 2 / 9 + 0.1**2) ** 0.5
    assert (found["low"], found["high"]) == pytest.approx((-1.96 * deviation, 1.96 * deviation), rel=0.02)


def test_intervals_over_seeds_are_students():
    found = over_seeds([-1.0, 0.0, 1.0, -1.0, 0.0])
    half = 2.7764451 * (0.7 / 5) ** 0.5  # the t distribution's 97.5 % point for 4 degrees of freedom
    assert (found["value"], found["low"], found["high"]) == pytest.approx((-0.2, -0.2 - half, -0.2 + half))
    assert over_seeds([-1.0, -1.5, -1.0])["p"] == pytest.approx(2 * stats.t.sf(7, 2))
    assert over_seeds([2.0, 2.0])["p"] == 0.0
