"""How sure a difference of means is: 95 % intervals over seeds, and over seeds and sentences by a paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev, variance

import torch
from sacrebleu.metrics.bleu import BLEU
from scipy.stats import t
from torch import Tensor

CONFIDENCE = 0.95
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


def difference_over_seeds(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Welch's t interval and test: the seeds of both are independent, and may spread unequally.

    One value on either side gives no interval.
    """
    value = mean(one) - mean(other)
    if min(len(one), len(other)) < 2:
        return Difference(value)
    squares = [variance(row) / len(row) for row in (one, other)]
    weights = [square**2 / (len(row) - 1) for square, row in zip(squares, (one, other), strict=True)]
    freedom = sum(squares) ** 2 / sum(weights) if sum(weights) > 0 else len(one) + len(other) - 2
    return _student(value, math.sqrt(sum(squares)), freedom)


def change_over_seeds(changes: Sequence[float]) -> Difference:
    """The mean of changes, one for each seed, with its t interval; one change gives none."""
    if len(changes) < 2:
        return Difference(mean(changes))
    return _student(mean(changes), stdev(changes) / math.sqrt(len(changes)), len(changes) - 1)


def _student(value: float, error: float, freedom: float) -> Difference:
    """The t interval of a value with a standard error, and its two-sided p."""
    half = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    p = 2 * float(t.sf(abs(value) / error, freedom)) if error > 0 else float(value == 0)
    return Difference(value, value - half, value + half, p)


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


@dataclass(frozen=True)
class Row:
    """BLEU of a row's seeds, and what resampling sentences does to it.

    Attributes:
        seeds: BLEU of each seed on all sentences.
        shift: ``[resamples]``, how the mean over the seeds whose translations were kept changes with the sentences.
    """

    seeds: tuple[float, ...]
    shift: Tensor

    @classmethod
    def of(cls, seeds: Sequence[float], kept: Tensor, resampled: Tensor) -> Row:
        """From BLEU of the seeds whose translations were kept, on all sentences, ``[K]``, and resampled, ``[R, K]``."""
        return cls(tuple(seeds), (resampled - kept).mean(1))

    def drawn(self, draws: torch.Generator) -> Tensor:
        """The mean over seeds, ``[resamples]``, as sentences and seeds are drawn.

        Of n seeds n - 1 are drawn with replacement, which makes the variance of their mean the right one for few seeds
        (Rao and Wu 1988).
        """
        bleu = torch.tensor(self.seeds, dtype=torch.float64)
        seeds = len(bleu)
        drawn = torch.randint(seeds, (len(self.shift), max(1, seeds - 1)), generator=draws)
        return bleu[drawn].mean(1) + self.shift


def bootstrapped(one: Row, other: Row, seed: int = 0) -> Difference:
    """The difference of two rows' mean BLEU, by a paired bootstrap over sentences and over the seeds of each row.

    The interval is that of the percentiles. ``p`` is computed as in sacreBLEU's paired bootstrap test: the share of
    resamples whose absolute difference exceeds the mean of these by more than the difference found. With one seed in
    each row this is that test.

    Args:
        one: the first row.
        other: the second, with the same draws of sentences.
        seed: of the draws of seeds.
    """
    draws = torch.Generator().manual_seed(seed)
    value = mean(one.seeds) - mean(other.seeds)
    found = one.drawn(draws) - other.drawn(draws)
    tail = (1 - CONFIDENCE) / 2
    low, high = found.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    beyond = int((found.abs() - found.abs().mean() > abs(value)).sum())
    return Difference(value, low, high, (beyond + 1) / (len(found) + 1), sentences=True)
