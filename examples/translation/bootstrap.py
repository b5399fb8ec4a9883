"""The paired bootstrap of differences in BLEU, over sentences and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from examples.translation.intervals import CONFIDENCE

RESAMPLES = 5000
METRIC = BLEU()


def sentence_statistics(translations: Sequence[str], references: Sequence[str]) -> Tensor:
    """What BLEU adds up over sentences, ``[N, 10]``, float64: two lengths, matches and n-grams by their length."""
    metric = BLEU(effective_order=True)  # without it every sentence prints a warning; the counts are the same
    scores = [metric.sentence_score(one, [other]) for one, other in zip(translations, references, strict=True)]
    rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
    return torch.tensor(rows, dtype=torch.float64)


def corpus_bleu(totals: Sequence[float]) -> float:
    """BLEU from the sums of :func:`sentence_statistics`, as ``BLEU().corpus_score`` gives it."""
    sys_len, ref_len, *counts = map(int, totals)
    orders = METRIC.max_ngram_order
    score = METRIC.compute_bleu(
        counts[:orders], counts[orders:], sys_len, ref_len, METRIC.smooth_method, METRIC.smooth_value
    )
    return score.score


def resampled_bleu(statistics: Sequence[Tensor], resamples: int = RESAMPLES, seed: int = 0) -> Tensor:
    """How BLEU of every run changes on as many sentences drawn with replacement, the same for all runs.

    Args:
        statistics: of each run, ``[N, 10]``.
        resamples: how often sentences are drawn.
        seed: of the draws.

    Returns:
        ``[resamples, runs]``.
    """
    sentences = len(statistics[0])
    draws = torch.Generator().manual_seed(seed)
    weights = torch.zeros(resamples + 1, sentences, dtype=torch.float64)
    weights[0] = 1  # all sentences
    for row in weights[1:]:
        chosen = torch.randint(sentences, (sentences,), generator=draws)
        row += torch.bincount(chosen, minlength=sentences)
    totals = torch.stack([weights @ each for each in statistics], 1)  # [resamples + 1, runs, 10]
    bleu = torch.tensor([[corpus_bleu(run) for run in resample] for resample in totals.tolist()], dtype=torch.float64)
    return bleu[1:] - bleu[0]


def bootstrapped(differences: Sequence[float], shifts: Tensor, seed: int = 0) -> dict[str, float]:
    """The difference of two rows' mean BLEU, by a paired bootstrap over sentences and over seeds.

    Of n seeds n - 1 are drawn with replacement, which makes the variance of their mean the right one for few seeds (Rao
    and Wu 1988). The interval is that of the percentiles. ``p`` is computed as in sacreBLEU's paired bootstrap test:
    the share of resamples whose absolute difference exceeds the mean of these by more than the difference found, which
    is one tail of a clear difference. With one seed this is that test.

    Args:
        differences: of the two rows on all sentences, one for each seed.
        shifts: ``[resamples]``, how the difference changes with the sentences.
        seed: of the draws of seeds.
    """
    draws = torch.Generator().manual_seed(seed)
    value, seeds = mean(differences), len(differences)
    chosen = torch.randint(seeds, (len(shifts), max(1, seeds - 1)), generator=draws)
    found = torch.tensor(differences, dtype=torch.float64)[chosen].mean(1) + shifts
    tail = (1 - CONFIDENCE) / 2
    low, high = found.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    beyond = int((found.abs() - found.abs().mean() > abs(value)).sum())
    return {"value": value, "low": low, "high": high, "p": (beyond + 1) / (len(found) + 1)}
