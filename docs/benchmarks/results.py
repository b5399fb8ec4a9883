"""Rows of results: written to ``results.json``, read back, and summarized in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.benchmarks.sweeps import Sweep

FORWARD, TRAINING = "forward", "forward+backward"
FILE = "results.json"

Row = dict[str, Any]


def summary(row: Row) -> str:
    """A row as one line."""
    if "not_run" in row:
        return f"{row['way']}: {row['not_run']}"
    timed = [what for what in (FORWARD, TRAINING) if what in row]
    parts = [f"{what} {row[what]['ms'][1]:.4g} ms{times(row[what])}" for what in timed]
    parts += [f"{row['MiB'][1]:.4g} MiB"] if "MiB" in row else []
    return f"{row['way']}: {', '.join(parts)}" + (f" ({row['note']})" if row.get("note") else "")


def times(found: Row) -> str:
    """The ratio to the floor, if the floor ran."""
    return f" {found['times'][1]:.2f}×" if "times" in found else ""


class Results:
    """``results.json`` in a folder; keeps the rows of earlier runs on the same machine."""

    def __init__(self, folder: Path, head: Row, chosen: list[Sweep]) -> None:
        self.path, self.about = folder / FILE, head
        folder.mkdir(parents=True, exist_ok=True)
        self.sweeps = {sweep.name: sweep.described() for sweep in chosen}
        self._rows: dict[str, Row] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        saved = json.loads(self.path.read_text())
        same = [key for key in self.about if key not in ("date",) and saved["about"].get(key) != self.about[key]]
        if same:
            key = same[0]
            raise ValueError(
                f"{self.path} must hold results of the same machine and versions: {key} is {saved['about'].get(key)!r} "
                f"there and {self.about[key]!r} here; choose another --out"
            )
        self.sweeps = {**saved["sweeps"], **self.sweeps}
        for row in saved["rows"]:
            self.put(row)

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return list(self._rows.values())

    def put(self, row: Row) -> None:
        """Add a row, which replaces one of the same setting and way."""
        self._rows[json.dumps([row["setting"], row["way"]])] = row

    def save(self) -> None:
        """Write the file."""
        text = json.dumps({"about": self.about, "sweeps": self.sweeps, "rows": self.rows}, indent=1, ensure_ascii=False)
        self.path.write_text(text + "\n")


def read(folder: Path) -> dict[str, Any]:
    """Read the results of a run from a folder: about, sweeps and rows.

    Raises:
        ValueError: the folder has no results.
    """
    path = folder / FILE
    if not path.exists():
        raise ValueError(f"--out must be a folder with {FILE}, which a run writes; {folder} has none")
    return json.loads(path.read_text())


def points(results: dict[str, Any], sweep: str) -> dict[str, dict[int, Row]]:
    """The rows of a sweep, by way in the order of comparison, and by the varied value."""
    about = results["sweeps"][sweep]
    found: dict[str, dict[int, Row]] = {}
    values = {json.dumps(setting): setting[about["field"]] for setting in about["settings"]}
    for row in results["rows"]:
        value = values.get(json.dumps(row["setting"]))
        if value is not None:
            found.setdefault(row["way"], {})[value] = row
    return found
