"""Time of sampling cells of a relational database, and of their labels.

    python -m docs.benchmarks.cells labels --data FOLDER            # 10,000 results of rel-f1, at most 1,000 cells each
    python -m docs.benchmarks.cells labels --data FOLDER --rows 500

FOLDER holds ``rel-f1/db``, the tables of RelBench's Formula 1 database as CSV files (else RELGRAPH_DATA, else
``data``); nothing is downloaded. Each question is asked at the time of its row. Times are those of the thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

import relgraph as rg
from docs.benchmarks.about import command
from docs.benchmarks.measure import Rows, spread
from relgraph.interop.pandas import Database

PRIMARY = {
    "circuits": "circuitId", "races": "raceId", "drivers": "driverId", "constructors": "constructorId",
    "results": "resultId", "standings": "driverStandingsId", "qualifying": "qualifyId",
    "constructor_results": "constructorResultsId", "constructor_standings": "constructorStandingsId",
}  # fmt: skip
OWNERS = {PRIMARY[table]: table for table in ("circuits", "races", "drivers", "constructors")}
FEW = 0.9
"""Samples with less than this share of the most cells do not count: their row has a short history."""


def read(folder: Path) -> tuple[Database, int]:
    """The database with its keys and times, and the number of its results."""
    tables = {name: pd.read_csv(folder / "rel-f1" / "db" / f"{name}.csv.gz") for name in PRIMARY}
    for frame in tables.values():
        for column in {"date", "dob"} & {*frame.columns}:
            frame[column] = pd.to_datetime(frame[column], format="ISO8601")
    database = Database(
        tables,
        primary_keys=PRIMARY,
        foreign_keys={
            (name, column): OWNERS[column]
            for name, frame in tables.items()
            for column in frame.columns
            if column in OWNERS and PRIMARY[name] != column
        },
        times={name: "date" for name, frame in tables.items() if "date" in frame.columns},
    )
    return database, len(tables["results"])


def labels(arguments: argparse.Namespace) -> Rows:
    """Milliseconds per row: the sample, and the labels of all pairs of its cells."""
    database, results = read(arguments.data)
    order = torch.randperm(results).tolist()
    found: Rows = []
    for name, labeler in {
        "relations": rg.labelers.CellRelations(),
        "relations, time": rg.labelers.CellRelations(time=True),
    }.items():
        sampling, labeling, cells = [], [], []
        for row in order:
            start = time.thread_time()
            sample = database.around("results", row, most_cells=arguments.cells, seed=row)
            between = time.thread_time()
            if len(sample.cells) < FEW * arguments.cells:
                continue
            made = labeler(sample.cells)
            end = time.thread_time()
            sampling.append((between - start) * 1e3)
            labeling.append((end - between) * 1e3)
            cells.append(made.q_len)
            if len(cells) == arguments.rows:
                break
        if not cells:
            raise ValueError(f"--cells must be at most what samples hold, got {arguments.cells}")
        found.append({
            "labeler": name, "rows": len(cells), "cells": spread(cells, 0),
            "sample, ms": spread(sampling), "labels, ms": spread(labeling),
        })  # fmt: skip
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("RELGRAPH_DATA", "data")))
    parser.add_argument("--rows", type=int, default=10_000, help="samples that count")
    parser.add_argument("--cells", type=int, default=1000, help="the most cells of a sample")
    command(parser, {"labels": labels}, given)


if __name__ == "__main__":
    main()
