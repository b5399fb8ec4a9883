"""The paired bootstrap of differences in BLEU, over seeds and sentences, from the translations that runs wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor

from examples.translation.corpus import read_test
from examples.translation.intervals import CONFIDENCE
from examples.translation.report.figures import Difference
from examples.translation.report.results import Claim, Run, Sweep

RESAMPLES = 5000
METRIC = BLEU()


def bootstrap_claims(record: dict[str, Any], folder: Path, data: Path) -> list[dict[str, Any]]:
    """The paired bootstrap of every claim on BLEU for which both rows have the translations of a run or more.

    Where those of some seeds are missing, the sentences' share in the interval is that of the others.

    Args:
        record: of the runs in ``folder``.
        folder: the runs, with their translations.
        data: the folder of ``prepare``, with the tests that the runs were measured on.
    """
    return [
        found
        for sweep in Sweep.all_of(record)
        for test in sweep.tests
        for found in _of_test(sweep, [claim for claim in sweep.claims() if claim[2] == test], test, folder, data)
    ]


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
    """BLEU of every run on as many sentences drawn with replacement, the same for all runs.

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
        chosen = torch.randint(sentences, (sentences,), generator=draws)
        row += torch.bincount(chosen, minlength=sentences)
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
    chosen = torch.randint(seeds, (len(shifts), max(1, seeds - 1)), generator=draws)
    found = torch.tensor(differences, dtype=torch.float64)[chosen].mean(1) + shifts
    tail = (1 - CONFIDENCE) / 2
    low, high = found.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    beyond = int((found.abs() - found.abs().mean() > abs(value)).sum())
    return Difference(value, low, high, (beyond + 1) / (len(found) + 1), sentences=True)


def _of_test(sweep: Sweep, claims: Sequence[Claim], test: str, folder: Path, data: Path) -> list[dict[str, Any]]:
    """The bootstrap of the claims on one test set."""
    variants = dict.fromkeys(variant for claim in claims for variant in claim[:2])
    entries = [entry for variant in variants for entry in sweep.groups[variant]]
    paths = [folder / entry["name"] / f"{test}.translated.txt" for entry in entries]
    stored = [(entry, path) for entry, path in zip(entries, paths, strict=True) if path.exists()]
    if not stored:
        return []
    references = [target for _, target in read_test([data / f"{test}.tsv"])]
    statistics = [_statistics(path, references) for _, path in stored]
    bleus = torch.tensor([corpus_bleu(each.sum(0).tolist()) for each in statistics], dtype=torch.float64)
    for (entry, _), bleu in zip(stored, bleus.tolist(), strict=True):
        _check_same_bleu(entry, test, bleu, data)
    resampled = resampled_bleu(statistics)
    columns = {entry["name"]: column for column, (entry, _) in enumerate(stored)}
    found = []
    for one, other, _ in claims:
        rows = sweep.runs_of_shared_seeds(one, other)
        own = [[columns[entry["name"]] for entry in row if entry["name"] in columns] for row in rows]
        if all(own):
            first, second = (shift(bleus[some], resampled[:, some]) for some in own)
            result = bootstrapped(sweep.differences(one, other, test, "bleu"), first - second)
            found.append(
                {
                    "shape": sweep.shape,
                    "one": one.name,
                    "other": other.name,
                    "test": test,
                    "seeds": len(rows[0]),
                    "kept": [len(some) for some in own],
                    **{name: getattr(result, name) for name in ("value", "low", "high", "p")},
                }
            )
    return found


def _statistics(path: Path, references: Sequence[str]) -> Tensor:
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = [line.removesuffix("\n") for line in file]
    if len(lines) != len(references):
        raise ValueError(f"{path} must have a line for each of {len(references)} references, got {len(lines)}")
    return sentence_statistics(lines, references)


def _check_same_bleu(entry: Run, test: str, bleu: float, data: Path) -> None:
    """Refuse references that a run was not measured on."""
    measured = entry["tests"][test]["bleu"]
    if abs(bleu - measured) > 1e-6:
        raise ValueError(
            f"{data / test}.tsv must be what {entry['name']} was measured on, with BLEU {measured:.2f}, but its "
            f"translations have {bleu:.2f}"
        )
