"""The results of a sweep: its models by what their attention knows about positions, and figures over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from examples.translation.report.figures import Difference, Spread, over_seeds
from examples.translation.sweep import DEPTHS, DISTANCES, PAPER, SHAPES

TEST = "test"
KINDS = ("key", "value")
NAMES = {"shifted": "sinusoidal, shifted", "alibi": "ALiBi"}
PICTURED_DISTANCES = (PAPER, 64)

Run = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """What a model knows about positions: its only or absolute ones, and tables for clipped distances."""

    absolute: str = "none"
    distance: int = -1
    tables: tuple[str, ...] = ()
    per_head: bool = False

    @classmethod
    def of(cls, model: dict[str, Any]) -> Variant:
        """From the settings of a model; relative positions without any table are none."""
        tables = tuple(kind for kind in KINDS if model[f"{kind}_table"])
        positions: str = model["positions"]
        if positions not in ("relative", "both"):
            return cls(positions)
        absolute = "none" if positions == "relative" else "sinusoidal"
        per_head = model["per_head"] and _shape_of(model) is None  # all rows of "base" have tables per head
        return cls(absolute, model["max_distance"], tables, per_head) if tables else cls(absolute)

    @property
    def name(self) -> str:
        if not self.tables:
            return NAMES.get(self.absolute, self.absolute)
        only = "" if self.tables == KINDS else f", {self.tables[0]} table only"
        heads = ", tables per head" if self.per_head else ""
        return f"{'relative' if self.absolute == 'none' else 'both'}, k = {self.distance}{only}{heads}"


def relative(distance: int, *tables: str) -> Variant:
    """Tables for distances up to ``distance``: those named, or key and value tables."""
    return Variant("none", distance, tables or KINDS)


NONE, SINUSOIDAL, LEARNED = Variant("none"), Variant("sinusoidal"), Variant("learned")
SHIFTED, ROTARY, ALIBI = Variant("shifted"), Variant("rotary"), Variant("alibi")
BOTH = Variant("sinusoidal", PAPER, KINDS)
PER_HEAD = Variant("none", PAPER, KINDS, per_head=True)
COMPARED = (NONE, SINUSOIDAL, SHIFTED, LEARNED, ROTARY, ALIBI, relative(PAPER), PER_HEAD, BOTH)
ONE_TABLE = (relative(PAPER, "key"), relative(PAPER, "value"))
CURVES = (NONE, SINUSOIDAL, LEARNED, ROTARY, relative(PAPER))
CLIPPED_SHORT = relative(4)

Claim = tuple[Variant, Variant, str]
"""A row, another that it is compared with, and a test set."""


@dataclass(frozen=True)
class Sweep:
    """The runs of one shape by what their attention knows about positions.

    Attributes:
        groups: the runs of each row, by seed.
        tests: the names of the test sets; longer sentences come later.
        similarity: cosines of every two rows of the key and the value table.
        shape: one of ``SHAPES`` or ``DEPTHS``; None for the size that most rows have.
        bootstrap: the differences in BLEU that were bootstrapped.
    """

    groups: dict[Variant, list[Run]]
    tests: list[str]
    similarity: dict[str, list[list[float]]]
    shape: str | None
    bootstrap: dict[tuple[str, str, str], dict[str, Any]]

    @classmethod
    def of(cls, record: dict[str, Any], shape: str | None = None) -> Sweep:
        """The runs of a record that have this shape.

        Raises:
            ValueError: there are none, they differ in more than positions and seeds, or have no test set named test.
        """
        runs = [entry for entry in record["runs"] if shape_of(entry) == shape]
        if not runs:
            raise ValueError("a report must have at least one finished run of the size that all tables share")
        groups: dict[Variant, list[Run]] = {}
        for entry in sorted(runs, key=_seed):
            _check_comparable(entry, runs[0])
            groups.setdefault(Variant.of(entry["config"]["model"]), []).append(entry)
        tests = sorted(runs[0]["tests"], key=lambda name: (name != TEST, _range(name) or ()))
        if TEST not in tests:
            raise ValueError(f"runs must have been measured on a test set named {TEST}, got {tests}")
        bootstrap = {(found["one"], found["other"], found["test"]): found for found in record["bootstrap"]
                     if found["shape"] == shape}  # fmt: skip
        return cls(groups, tests, record["similarity"], shape, bootstrap)

    @classmethod
    def all_of(cls, record: dict[str, Any]) -> list[Sweep]:
        """That of the size which most rows have, then one for each of ``SHAPES`` and ``DEPTHS`` that has runs."""
        there = {shape_of(entry) for entry in record["runs"]}
        return [cls.of(record), *(cls.of(record, shape) for shape in (*SHAPES, *DEPTHS) if shape in there)]

    @property
    def distances(self) -> list[int]:
        """The clipping distances of the rows with both tables."""
        return sorted({*DISTANCES, *(v.distance for v in self.groups if v == relative(v.distance))})

    @property
    def unseen(self) -> list[str]:
        """The test sets of longer sentences, the shortest first."""
        return [name for name in self.tests if _range(name)]

    def test(self, variant: Variant, name: str, measure: str) -> Spread:
        return Spread(tuple(entry["tests"][name][measure] for entry in self.groups[variant]))

    def runs_of_shared_seeds(self, one: Variant, other: Variant) -> tuple[list[Run], list[Run]]:
        """The runs of both rows whose seeds both have, seed by seed: these saw the sentences in the same order."""
        runs = [{_seed(entry): entry for entry in self.groups[row]} for row in (one, other)]
        shared = sorted(runs[0].keys() & runs[1].keys())
        return [runs[0][seed] for seed in shared], [runs[1][seed] for seed in shared]

    def differences(self, one: Variant, other: Variant, test: str, measure: str) -> list[float]:
        """``one`` less ``other``, for each seed that both have."""
        pairs = zip(*self.runs_of_shared_seeds(one, other), strict=True)
        return [first["tests"][test][measure] - second["tests"][test][measure] for first, second in pairs]

    def difference(self, one: Variant, other: Variant, test: str, measure: str) -> Difference:
        """The mean of the differences, with the best interval that there is."""
        found = self.bootstrap.get((one.name, other.name, test)) if measure == "bleu" else None
        if found is not None:
            return Difference(found["value"], found["low"], found["high"], found["p"], sentences=True)
        return over_seeds(self.differences(one, other, test, measure))

    def compare(self, one: Variant, other: Variant) -> bool:
        """Whether both rows are there, with a seed that both have."""
        return one in self.groups and other in self.groups and bool(self.runs_of_shared_seeds(one, other)[0])

    def claims(self) -> list[Claim]:
        """Every comparison that the report makes, where both rows are there: on trained lengths and the longest."""
        ends = (TEST, *self.unseen[-1:])
        if self.shape in SHAPES:
            rows = [v for v in self.groups if v.tables and self.compare(v, SINUSOIDAL)]
            return [(row, SINUSOIDAL, name) for row in rows for name in ends]
        paper = relative(PAPER)
        wanted = [
            (paper, NONE, TEST),
            *((paper, SINUSOIDAL, name) for name in self.tests),
            *((paper, other, name) for other in (ROTARY, ALIBI, SHIFTED) for name in ends),
            *((other, SINUSOIDAL, name) for other in (ROTARY, ALIBI, LEARNED) for name in ends),
            *((SHIFTED, NONE, name) for name in ends),
            *((BOTH, paper, name) for name in ends),
            *((relative(k), paper, TEST) for k in self.distances if k != PAPER),
            *((CLIPPED_SHORT, other, name) for other in (paper, SINUSOIDAL) for name in self.unseen[-1:]),
            *((one, paper, name) for one in (*ONE_TABLE, PER_HEAD) for name in ends),
        ]
        return [claim for claim in wanted if self.compare(*claim[:2])]

    def present(self, variants: Iterable[Variant]) -> list[Variant]:
        return [variant for variant in variants if variant in self.groups]


def shape_of(entry: Run) -> str | None:
    """Which of ``SHAPES`` or ``DEPTHS`` a run has; None for the size that most rows have."""
    return _shape_of(entry["config"]["model"])


def _shape_of(model: dict[str, Any]) -> str | None:
    for name, shape in {**SHAPES, **DEPTHS}.items():
        if all(model[size] == value for size, value in shape.items()):
            return name
    return None


def lengths_of(test: str) -> str:
    """A test set by the words of its sources."""
    low_high = _range(test)
    return f"{low_high[0]}–{low_high[1]} words" if low_high else "trained lengths" if test == TEST else test


def _range(test: str) -> tuple[int, int] | None:
    match = re.fullmatch(rf"{TEST}-(\d+)-(\d+)", test)
    return (int(match[1]), int(match[2])) if match else None


def _check_comparable(entry: Run, other: Run) -> None:
    """Refuse runs that differ in more than positions and seed."""
    first, second = _shared(entry), _shared(other)
    if differing := sorted(name for name in {*first, *second} if first.get(name) != second.get(name)):
        raise ValueError(
            f"runs must have equal settings, but {entry['name']} and {other['name']} differ in {differing}"
        )


def _shared(entry: Run) -> dict[str, Any]:
    config = entry["config"]
    sizes = {
        name: [test[size] for size in ("sentences", "tokens", "signature")] for name, test in entry["tests"].items()
    }
    shared = {**config["model"], **config["training"], **entry["search"], **sizes, "vocabulary": config["vocabulary"]}
    own = ("positions", "max_distance", "key_table", "value_table", "per_head", "seed")
    return {name: value for name, value in shared.items() if name not in own}


def _seed(entry: Run) -> int:
    return entry["config"]["training"]["seed"]
