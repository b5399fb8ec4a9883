"""The paired bootstrap of a sweep's claims on BLEU, from the translations that its runs wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from examples.translation.corpus import read_test
from examples.translation.report.intervals import bootstrapped, corpus_bleu, resampled_bleu, sentence_statistics, shift
from examples.translation.report.results import Claim, Run, Sweep


def add_bootstrap(record: dict[str, Any], folders: Sequence[Path], data: Path) -> None:
    """Add the paired bootstrap of every claim on BLEU for which both rows have kept translations of a run or more.

    Where those of some seeds were not kept, the sentences' share in the interval is that of the others.

    Args:
        record: from :func:`combine`; its list ``bootstrap`` gets what is new first.
        folders: where runs are, in the order in which they were combined.
        data: the folder of ``prepare``, with the tests that the runs were measured on.
    """
    found: list[dict[str, Any]] = []
    for sweep in Sweep.all_of(record):
        for test in sweep.tests:
            claims = [claim for claim in sweep.claims() if claim[2] == test]
            found += _bootstrap_of(sweep, claims, test, folders, data)
    record["bootstrap"] = found + record["bootstrap"]


def drop_outdated(record: dict[str, Any]) -> None:
    """Keep of a record's bootstraps those of its own runs, each once."""
    kept = [sweep.stored(*claim) for sweep in Sweep.all_of(record) for claim in sweep.claims()]
    record["bootstrap"] = [found for found in kept if found is not None]


def _bootstrap_of(
    sweep: Sweep, claims: Sequence[Claim], test: str, folders: Sequence[Path], data: Path
) -> list[dict[str, Any]]:
    """The bootstrap of the claims on one test set."""
    variants = dict.fromkeys(variant for claim in claims for variant in claim[:2])
    entries = [entry for variant in variants for entry in sweep.groups[variant]]
    kept = [(entry, path) for entry in entries if (path := _kept(entry, test, folders))]
    if not kept:
        return []
    references = [target for _, target in read_test([data / f"{test}.tsv"])]
    statistics = [_statistics(path, references) for _, path in kept]
    bleus = [corpus_bleu(each.sum(0).tolist()) for each in statistics]
    for (entry, _), bleu in zip(kept, bleus, strict=True):
        _check_same_bleu(entry, test, bleu, data)
    resampled, on_all = resampled_bleu(statistics), torch.tensor(bleus, dtype=torch.float64)
    columns = {entry["name"]: column for column, (entry, _) in enumerate(kept)}
    found = []
    for one, other, _ in claims:
        rows = sweep.runs_of_shared_seeds(one, other)
        own = [[columns[entry["name"]] for entry in row if entry["name"] in columns] for row in rows]
        if all(own):
            first, second = (shift(on_all[some], resampled[:, some]) for some in own)
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


def _kept(entry: Run, test: str, folders: Sequence[Path]) -> Path | None:
    """A run's translations of a test set; None where they were not kept."""
    for folder in folders:
        if (folder / entry["name"] / "results.json").exists():
            path = folder / entry["name"] / f"{test}.translated.txt"
            return path if path.exists() else None
    return None


def _statistics(path: Path, references: Sequence[str]) -> torch.Tensor:
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
