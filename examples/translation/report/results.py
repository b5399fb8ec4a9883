"""The results of a sweep: its models by what their attention knows of positions, and figures over seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from examples.translation.report.intervals import Difference, over_seeds
from examples.translation.sweep import DISTANCES, PAPER, SHAPES

TEST = "test"
KINDS = ("key", "value")
PICTURED_DISTANCES = (PAPER, 64)

Run = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """What a model knows of positions: absolute ones added to its input, and tables for clipped distances."""

    absolute: str = "none"
    distance: int = -1
    tables: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: dict[str, Any]) -> Variant:
        """From the settings of a model; relative positions without any table are none."""
        tables = tuple(kind for kind in KINDS if model[f"{kind}_table"])
        positions: str = model["positions"]
        if positions not in ("relative", "both"):
            return cls(positions)
        absolute = "none" if positions == "relative" else "sinusoidal"
        return cls(absolute, model["max_distance"], tables) if tables else cls(absolute)

    @property
    def name(self) -> str:
        if not self.tables:
            return self.absolute
        only = "" if self.tables == KINDS else f", {self.tables[0]} table only"
        return f"{'relative' if self.absolute == 'none' else 'both'}, k = {self.distance}{only}"


def relative(distance: int, *tables: str) -> Variant:
    """Tables for distances up to ``distance``: those named, or key and value tables."""
    return Variant("none", distance, tables or KINDS)


NONE, SINUSOIDAL, LEARNED = Variant("none"), Variant("sinusoidal"), Variant("learned")
BOTH = Variant("sinusoidal", PAPER, KINDS)
COMPARED = (NONE, SINUSOIDAL, LEARNED, relative(PAPER), BOTH)
ONE_TABLE = (relative(PAPER, "key"), relative(PAPER, "value"))
CURVES = COMPARED[:4]
CLIPPED_SHORT = relative(4)

Claim = tuple[Variant, Variant, str]
"""A row, another that it is compared with, and a test set."""


@dataclass(frozen=True)
class Spread:
    """Some figures of equal runs with different seeds: their mean, and their sample standard deviation."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def spread(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return as_figure(self.mean) + ("" if self.spread is None else f" ± {as_figure(self.spread, self.mean)}")


@dataclass(frozen=True)
class Sweep:
    """The runs of one shape by what their attention knows of positions, and what all of them share."""

    data: str
    groups: dict[Variant, list[Run]]
    model: dict[str, Any]
    training: dict[str, Any]
    search: dict[str, Any]
    sizes: dict[str, Any]
    tests: dict[str, dict[str, Any]]
    similarity: dict[str, list[list[float]]]
    note: str = ""
    shape: str | None = None
    bootstrap: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, record: dict[str, Any], shape: str | None = None) -> Sweep:
        """The runs of a record that have one of the ``SHAPES``, or none of them.

        Raises:
            ValueError: there are none, they differ in more than positions and seeds, or have no test set named test.
        """
        own = ("positions", "max_distance", "key_table", "value_table")
        runs = [entry for entry in record["runs"] if shape_of(entry) == shape]
        if not runs:
            raise ValueError(f"a report must have at least one finished run of {_described(shape)}, found none")
        groups: dict[Variant, list[Run]] = {}
        for entry in sorted(runs, key=lambda entry: entry["config"]["training"]["seed"]):
            group = groups.setdefault(Variant.of(entry["config"]["model"]), [])
            if group and _seed(group[-1]) == _seed(entry):
                raise ValueError(f"runs must differ, but {group[-1]['name']} and {entry['name']} have equal settings")
            group.append(entry)
        tests = _shared(runs, "tests", lambda entry: {name: _size(test) for name, test in entry["tests"].items()})
        if TEST not in tests:
            raise ValueError(f"runs must have been measured on a test set named {TEST}, got {sorted(tests)}")
        return cls(
            record["data"],
            groups,
            _shared(runs, "settings of the model", lambda entry: _without(entry["config"]["model"], *own)),
            _shared(runs, "settings of the training", lambda entry: _without(entry["config"]["training"], "seed")),
            _shared(runs, "settings of the search", lambda entry: entry["search"]),
            _shared(runs, "data", lambda entry: {name: entry["config"].get(name) for name in ("vocabulary", "pairs")}),
            dict(sorted(tests.items(), key=lambda item: _order(item[0]))),
            record["similarity"],
            record.get("note", ""),
            shape,
            tuple(found for found in record.get("bootstrap", ()) if found["shape"] == shape),
        )

    @classmethod
    def all_of(cls, record: dict[str, Any]) -> list[Sweep]:
        """That of the size which most rows have, then one for each of ``SHAPES`` that has runs."""
        there = {shape_of(entry) for entry in record["runs"]}
        return [cls.of(record), *(cls.of(record, shape) for shape in SHAPES if shape in there)]

    @property
    def runs(self) -> list[Run]:
        return [entry for group in self.groups.values() for entry in group]

    @property
    def distances(self) -> list[int]:
        """Those that the paper's Table 2 asks for, and others that were trained."""
        return sorted({*DISTANCES, *(v.distance for v in self.groups if v == relative(v.distance))})

    @property
    def unseen(self) -> list[str]:
        """The test sets of longer sentences, the shortest first."""
        return [name for name in self.tests if range_of(name)]

    def seeds(self, variant: Variant) -> int:
        return len(self.groups[variant])

    def test(self, variant: Variant, name: str, measure: str) -> Spread:
        return Spread(tuple(entry["tests"][name][measure] for entry in self.groups[variant]))

    def speed(self, variant: Variant) -> Spread:
        return Spread(tuple(entry["tokens_per_second"] for entry in self.groups[variant]))

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
        if measure == "bleu" and (found := self.stored(one, other, test)) is not None:
            some_kept = found["kept"] != [found["seeds"]] * 2
            return Difference(found["value"], found["low"], found["high"], found["p"], True, some_kept)
        return over_seeds(self.differences(one, other, test, measure))

    def stored(self, one: Variant, other: Variant, test: str) -> dict[str, Any] | None:
        """The record's bootstrap of a difference in BLEU, as long as it is of these very runs."""
        differences = self.differences(one, other, test, "bleu")
        for found in self.bootstrap:
            same_rows = (found["one"], found["other"], found["test"]) == (one.name, other.name, test)
            if same_rows and found["seeds"] == len(differences) and abs(found["value"] - mean(differences)) < 1e-6:
                return found
        return None

    def compare(self, one: Variant, other: Variant) -> bool:
        """Whether both rows are there, with a seed that both have."""
        return one in self.groups and other in self.groups and bool(self.runs_of_shared_seeds(one, other)[0])

    def claims(self) -> list[Claim]:
        """Every comparison that the page makes, where both rows are there."""
        if self.shape is not None:
            rows = [v for v in self.groups if v.tables and self.compare(v, SINUSOIDAL)]
            return [(row, SINUSOIDAL, name) for row in rows for name in self.tests]
        paper = relative(PAPER)
        wanted = [
            (paper, NONE, TEST),
            *((paper, SINUSOIDAL, name) for name in self.tests),
            (LEARNED, SINUSOIDAL, TEST),
            *((LEARNED, SINUSOIDAL, name) for name in self.unseen[-1:]),
            (BOTH, paper, TEST),
            *((BOTH, paper, name) for name in self.unseen[-1:]),
            *((relative(k), paper, TEST) for k in self.distances if k != PAPER),
            *((CLIPPED_SHORT, paper, name) for name in self.unseen),
            *((CLIPPED_SHORT, SINUSOIDAL, name) for name in self.unseen[-1:]),
            *((one, paper, TEST) for one in ONE_TABLE),
        ]
        return [claim for claim in wanted if self.compare(*claim[:2])]

    def present(self, variants: Iterable[Variant]) -> list[Variant]:
        return [variant for variant in variants if variant in self.groups]


def shape_of(entry: Run) -> str | None:
    """Which of ``SHAPES`` a run has; None for the size that most rows have."""
    model = entry["config"]["model"]
    for name, shape in SHAPES.items():
        if all(model[size] == value for size, value in shape.sizes.items()):
            return name
    return None


def _described(shape: str | None) -> str:
    return "the size that all tables share" if shape is None else f"the shape {shape!r}"


def _shared(runs: Sequence[Run], what: str, get: Callable[[Run], Any]) -> Any:
    first = get(runs[0])
    for entry in runs:
        if (other := get(entry)) != first:
            differing = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
            raise ValueError(
                f"runs must have equal {what}, but {entry['name']} and {runs[0]['name']} differ in {differing}"
            )
    return first


def _seed(entry: Run) -> int:
    return entry["config"]["training"]["seed"]


def _size(test: dict[str, Any]) -> dict[str, Any]:
    return {name: test.get(name) for name in ("sentences", "tokens", "signature")}


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def range_of(test: str) -> tuple[int, int] | None:
    match = re.fullmatch(rf"{TEST}-(\d+)-(\d+)", test)
    return (int(match[1]), int(match[2])) if match else None


def _order(test: str) -> tuple[Any, ...]:
    return (test != TEST, range_of(test) is None, range_of(test) or (), test)


def lengths_of(test: str) -> str:
    low_high = range_of(test)
    return f"{low_high[0]}–{low_high[1]} words" if low_high else "trained lengths" if test == TEST else test


def as_figure(value: float, beside: float = 0.0) -> str:
    """A figure with as many decimals as one that it stands beside has."""
    largest = max(abs(value), abs(beside))
    if not largest < 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if largest >= 1000 else f"{value:.2f}"
