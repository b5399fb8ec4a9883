"""The command ``report``: the tables and pictures of a sweep, computed from its logs.

What they need of the logs goes to one file, ``results.json``, from which the same report can be written again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from examples.translation.files import load_json, save_text
from examples.translation.report.bootstrap import bootstrap_claims
from examples.translation.report.pictures import pictures_of, save_picture
from examples.translation.report.record import RESULTS, as_json, condense
from examples.translation.report.results import Sweep
from examples.translation.report.tables import as_markdown

TABLES = "tables.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("runs", type=Path, help=f"the folder that sweep wrote, or a {RESULTS} that report wrote")
    parser.add_argument(
        "--data",
        type=Path,
        help="the folder that prepare wrote; with it the intervals of BLEU resample its sentences (default: those of "
        f"{RESULTS}, or intervals over seeds only)",
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="a folder to write to (default: report)")


def run(args: argparse.Namespace) -> None:
    """Write the tables, the pictures and ``results.json``.

    Raises:
        ValueError: nothing to report on, runs that do not compare, or ``--data`` that they were not measured on.
    """
    record = _read(args.runs)
    if args.data is not None:
        if not args.runs.is_dir():
            raise ValueError(f"--data needs a folder of runs, got {args.runs}")
        record["bootstrap"] = bootstrap_claims(record, args.runs, args.data)
    sweep, *shapes = Sweep.all_of(record)
    for name, draw in pictures_of(sweep).items():
        save_picture(args.out / name, draw(sweep))
    save_text(args.out / TABLES, as_markdown(sweep, shapes))
    save_text(args.out / RESULTS, as_json(record))
    print(f"{args.out}: {TABLES}, {RESULTS} and pictures")


def _read(path: Path) -> dict[str, Any]:
    """The record of a folder of runs, or one that a report wrote."""
    if path.is_dir():
        return condense(path)
    record = load_json(path)
    if not isinstance(record, dict) or not {"bootstrap", "runs", "similarity"} <= record.keys():
        raise ValueError(f"{path} must be a {RESULTS} that report wrote")
    return record
