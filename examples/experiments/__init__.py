"""The studies behind the tables of the gallery; ``examples/run.py`` runs them by name.

Each module here has an ``EXPERIMENT``. Most import the page of the same name, and add baselines, seeds and the table;
``aqsol``, ``rel_f1`` and ``scan`` have no page.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from example_options import Options
from example_runs import Runs

Numbers = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Work:
    """What a command does, once its options are known and its data is read.

    Attributes:
        settings: what all runs have in common; ``results.json`` holds them.
        seconds: how long all runs take on one idle core.
        run: trains a row with a seed; returns the run, and a module whose weights to keep, or None.
        prepare: what all runs need, made before the first.
        rules: how often rules that learn nothing are right; the report gets this too, and ``results.json`` holds it.
        draw: writes pictures, and prints what follows from all runs.
        processes: how many runs to make at once.
        report: the table, if it depends on the options.
    """

    settings: dict[str, Any]
    seconds: float
    run: Callable[[str, int], tuple[Any, Any]]
    prepare: Callable[[], Any] | None = None
    rules: Callable[[], dict[str, Any]] | None = None
    draw: Callable[[Runs], None] | None = None
    processes: int = 1
    report: Callable[[Sequence[Any]], str] | None = None


@dataclass(frozen=True)
class Experiment:
    """A table: rows that are trained with several seeds.

    Attributes:
        kind: the dataclass of a run.
        rows: the names of all rows.
        short: what the short mode does, for ``--help``.
        numbers: options with their numbers in the long and in the short mode.
        begin: reads the data.
        tell: what to print about a finished run.
        report: the table that is printed, from the runs and the rules, if the work has none.
        long_rows: the rows of the long mode, if not all; ``--rows`` names any.
        short_rows: the rows of the short mode, if not those.
        options: adds options of its own.
        check: refuses options that do not fit; ``begin`` comes after it.
    """

    kind: type
    rows: Sequence[str]
    short: str
    numbers: Numbers
    begin: Callable[[Namespace], Work]
    tell: Callable[[Any], str]
    report: Callable[..., str] | None = None
    long_rows: Sequence[str] = ()
    short_rows: Sequence[str] = ()
    options: Callable[[Options], Any] | None = None
    check: Callable[[Options, Namespace], None] | None = None
