"""How sure a difference of means is: 95 % intervals over seeds, and over seeds and sentences by a paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from sacrebleu.metrics.bleu import BLEU
from scipy.stats import t
from torch import Tensor

from examples.translation.intervals import CONFIDENCE, interval

RESAMPLES = 5000
METRIC = BLEU()


@dataclass(frozen=True)
class Difference:
    """The difference of two means.

    Attributes:
        value: the first mean less the second.
        low: where its 95 % interval begins; None without an interval.
        high: where it ends.
        p: how likely chance alone gives as much; None without an interval.
        sentences: whether sentences were resampled too, not seeds only.
        some_kept: whether that was with the translations of some seeds, as others were not kept.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    sentences: bool = False
    some_kept: bool = False

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def over_seeds(values: Sequence[float]) -> Difference:
    """The mean of changes or differences, one for each seed, with Student's t interval; one value gives no interval."""
    value = mean(values)
    if len(values) < 2:
        return Difference(value)
    error, freedom = stdev(values) / math.sqrt(len(values)), len(values) - 1
    p = 2 * float(t.sf(abs(value) / error, freedom)) if error > 0 else float(value == 0)
    return Difference(value, *interval(values), p)


def sentence_statistics(translations: Sequence[str], references: Sequence[str]) -> Tensor:
    """What BLEU adds up over sentences, ``[N, 10]``, float64: two lengths, matches and n-grams by their length."""
    metric = BLEU(effective_order=True)  # without it every sentence prints a warning; the counts are the same
    rows = []
    for translation, reference in zip(translations, references, strict=True):
        score = metric.sentence_score(translation, [reference])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return torch.tensor(rows, dtype=torch.float64)


def corpus_bleu(totals: Sequence[float]) -> float:
    """BLEU from the sums of :func:`sentence_statistics`, as ``BLEU().corpus_score`` gives it."""
    lengths, counts = totals[:2], totals[2:]
    orders = METRIC.max_ngram_order
    score = METRIC.compute_bleu(
        correct=[int(number) for number in counts[:orders]],
        total=[int(number) for number in counts[orders:]],
        sys_len=int(lengths[0]),
        ref_len=int(lengths[1]),
        smooth_method=METRIC.smooth_method,
        smooth_value=METRIC.smooth_value,
        effective_order=METRIC.effective_order,
        max_ngram_order=orders,
    )
    return score.score


def resampled_bleu(statistics: Sequence[Tensor], resamples: int = RESAMPLES, seed: int = 0) -> Tensor:
    """BLEU of every run on as many sentences drawn anew with replacement, the same for all runs.

    Args:
        statistics: of each run, ``[N, 10]``.
        resamples: how often sentences are drawn.
        seed: of the draws.

    Returns:
        ``[resamples, runs]``.
    """
    sentences = len(statistics[0])
    draws = torch.Generator().manual_seed(seed)
    weights = torch.zeros(resamples, sentences, dtype=torch.float64)
    for row in weights:
        drawn = torch.randint(sentences, (sentences,), generator=draws)
        row += torch.bincount(drawn, minlength=sentences)
    totals = torch.stack([weights @ each for each in statistics], 1)
    return torch.tensor([[corpus_bleu(run) for run in resample] for resample in totals.tolist()], dtype=torch.float64)


def shift(on_all: Tensor, resampled: Tensor) -> Tensor:
    """How the mean over runs changes with the sentences, ``[resamples]``.

    Args:
        on_all: BLEU of each run on all sentences, ``[runs]``.
        resampled: from :func:`resampled_bleu`.
    """
    return (resampled - on_all).mean(1)


def bootstrapped(differences: Sequence[float], shifts: Tensor, seed: int = 0) -> Difference:
    """The difference of two rows' mean BLEU, by a paired bootstrap over sentences and over seeds.

    Of n seeds n - 1 are drawn with replacement, which makes the variance of their mean the right one for few seeds (Rao
    and Wu 1988). The interval is that of the percentiles. ``p`` is computed as in sacreBLEU's paired bootstrap test:
    the share of resamples whose absolute difference exceeds the mean of these by more than the difference found, which
    is one tail of a clear difference. With one seed this is that test.

    Args:
        differences: of the two rows on all sentences, one for each seed.
        shifts: ``[resamples]``, how the difference changes with the sentences: :func:`shift` of the first row less
            that of the second.
        seed: of the draws of seeds.
    """
    draws = torch.Generator().manual_seed(seed)
    value, seeds = mean(differences), len(differences)
    drawn = torch.randint(seeds, (len(shifts), max(1, seeds - 1)), generator=draws)
    found = torch.tensor(differences, dtype=torch.float64)[drawn].mean(1) + shifts
    tail = (1 - CONFIDENCE) / 2
    low, high = found.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    beyond = int((found.abs() - found.abs().mean() > abs(value)).sum())
    return Difference(value, low, high, (beyond + 1) / (len(found) + 1), sentences=True)
