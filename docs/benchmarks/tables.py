"""Markdown of a run over lengths: ratios of time, memory, and why something was not run."""

from __future__ import annotations

from typing import Any

from docs.benchmarks.measure import Rows, markdown
from docs.benchmarks.run import FORWARD, TRAINING, Row

NOT_RUN = "not run"


def by_way(results: dict[str, Any]) -> dict[str, dict[int, Row]]:
    """The rows of each way, by length."""
    found: dict[str, dict[int, Row]] = {}
    for row in results["rows"]:
        found.setdefault(row["way"], {})[row["length"]] = row
    return found


def table(results: dict[str, Any], measure: str) -> str:
    """A row per way that has the measure, and a column per length: milliseconds of the floor, ratios to it, or MiB."""
    found = by_way(results)
    floor = next(iter(found))
    shown: Rows = [
        {"way": way} | {f"{n:,}": _cell(rows.get(n, {}), measure, way == floor) for n in found[floor]}
        for way, rows in found.items()
        if any(measure in row for row in rows.values())
    ]
    return f"{measure}:\n\n{markdown(shown)}" if shown else ""


def _cell(row: Row, measure: str, floor: bool) -> str:
    if row.get(measure) is None:
        return NOT_RUN
    if measure == "MiB":
        return number(row["MiB"])
    return f"{number(row[measure]['ms'][1])} ms, 1×" if floor else f"{number(row[measure]['times'][1])}×"


def reasons(results: dict[str, Any]) -> str:
    """A list of what was not run: from which length on, and why."""
    lines = []
    for way, rows in by_way(results).items():
        missing = [n for n, row in rows.items() if "not_run" in row]
        if missing:
            more = " and more" if len(missing) > 1 else ""
            lines.append(f"- {way}, at {missing[0]:,}{more}: {rows[missing[0]]['not_run']}")
    return "\n".join(["Not run:", "", *lines]) if lines else ""


def tables(results: dict[str, Any]) -> str:
    """All tables of a run."""
    parts = [*(table(results, what) for what in (TRAINING, FORWARD, "MiB")), reasons(results)]
    return "\n\n".join(part for part in parts if part)


def number(x: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
