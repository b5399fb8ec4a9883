"""Markdown tables of a run, and the places in docs/benchmarks.md that they fill."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.benchmarks import about
from docs.benchmarks.measure import Rows, markdown, quartiles
from docs.benchmarks.results import FORWARD, TRAINING, Row, points
from docs.benchmarks.sweeps import WIDE

DETAIL = {"length": (2048, 8192), WIDE: (2048, 8192), "edges": (200_000,), "graphs": (64, 256)}
"""Where a sweep is shown in full: the largest of these that was measured."""

BESIDE = {
    "relgraph native, distance": ("relgraph native, no labels", "relgraph chunked, distance"),
    "relgraph native, arbitrary labels": ("relgraph native, no labels", "relgraph chunked, arbitrary labels"),
    "relgraph chunked, distance": ("relgraph chunked, no labels",),
    "relgraph chunked, arbitrary labels": ("relgraph chunked, no labels",),
    "relgraph triton, distance": ("relgraph triton, no labels", "FlexAttention, key term", "SDPA, cuDNN"),
    "relgraph triton, arbitrary labels": ("relgraph triton, no labels",),
    "relgraph triton, distance, key term": ("FlexAttention, key term",),
    "relgraph native, packed, key and value tables": ("relgraph chunked, packed, key and value tables",),
    "relgraph native, packed, bias": ("relgraph chunked, packed, bias",),
    "relgraph chunked, packed, key and value tables": ("padded graph Transformer, split term",),
    "relgraph chunked, packed, bias": ("padded graph Transformer, SDPA with bias",),
    "relgraph triton, packed, key and value tables": ("padded graph Transformer, split term",),
    "relgraph triton, packed, bias": ("padded graph Transformer, SDPA with bias",),
    "TransformerConv, one-hot types": ("relgraph RelationConv", "relgraph RelationConv, triton, sorted before"),
}
"""Ratios that matter beside those to the floor: of a way to its like."""


def tables(results: dict[str, Any]) -> dict[str, str]:
    """All tables by the name of their place, such as ``cpu:length-time``."""
    device = results["about"]["device"].split(":")[0]
    found = {f"{device}:about": about.line(results["about"])}
    for sweep in results["sweeps"]:
        rows = points(results, sweep)
        values = sorted({value for way in rows.values() for value in way})
        if not rows:
            continue
        found[f"{device}:{sweep}-time"] = markdown(_grid(rows, values, TRAINING))
        found[f"{device}:{sweep}-forward"] = markdown(_grid(rows, values, FORWARD))
        if any("MiB" in row for way in rows.values() for row in way.values()):
            found[f"{device}:{sweep}-memory"] = markdown(_grid(rows, values, "MiB"))
        beside = _beside(rows, values)
        if beside:
            found[f"{device}:{sweep}-beside"] = markdown(beside)
        detail = [value for value in DETAIL.get(sweep, ()) if value in values] or [values[-1]]
        found[f"{device}:{sweep}-detail"] = markdown(_detail(rows, detail[-1]))
    return found


def _grid(rows: dict[str, dict[int, Row]], values: list[int], measure: str) -> Rows:
    """A row a way and a column a value: the ratio to the floor (the floor: milliseconds), or MiB."""
    floor = next(iter(rows))
    out: Rows = []
    for way, points_of in rows.items():
        row: dict[str, object] = {"way": way}
        for value in values:
            row[f"{value:,}"] = _cell(points_of.get(value, {}), measure, way == floor)
        out.append(row)
    return out


def _cell(row: Row, measure: str, floor: bool) -> str:
    if "not_run" in row:
        return _short(row["not_run"])
    if measure not in row:
        return "–"
    if measure == "MiB":
        return f"{number(row['MiB'][1])} MiB"
    ms = f"{number(row[measure]['ms'][1])} ms"
    if floor or "times" not in row[measure]:
        return f"{ms}, 1×" if floor else ms
    return f"{number(row[measure]['times'][1])}×"


def _short(reason: str) -> str:
    """Why a way was not run, for a narrow cell."""
    match = re.search(r"needs about ([\d.e+]+) GB", reason)
    if match:
        return f"needs {float(match[1]):.0f} GB"
    return reason.removeprefix("not run: ").split(":")[0].split("(")[0].strip()


def _beside(rows: dict[str, dict[int, Row]], values: list[int]) -> Rows:
    """A row per pair of ways: the ratio of their times, forward and backward where both have it, within a round."""
    out: Rows = []
    for way, others in BESIDE.items():
        for other in others:
            cells = {f"{v:,}": _between(rows.get(way, {}).get(v, {}), rows.get(other, {}).get(v, {})) for v in values}
            if any(cell != "–" for cell in cells.values()):
                out.append({"way": way, "beside": other, **cells})
    return out


def _between(row: Row, other: Row) -> str:
    """The ratio of two ways at one point with its quartiles, from the rounds that both ran in."""
    for measure in (TRAINING, FORWARD):
        if measure in row and measure in other:
            turns, theirs = row[measure]["turns"], other[measure]["turns"]
            if row["run"] != other["run"]:
                return f"{row[measure]['ms'][1] / other[measure]['ms'][1]:.2f} (of two runs)"
            ratios = quartiles([turns[t] / theirs[t] for t in turns if t in theirs])
            return _ratio(ratios) + (" (forward)" if measure == FORWARD else "")
    return "–"


def _detail(rows: dict[str, dict[int, Row]], value: int) -> Rows:
    """All that is known of each way at one value."""
    out: Rows = []
    for way, points_of in rows.items():
        row = points_of.get(value)
        if row is None:
            continue
        cells: dict[str, object] = {"way": way}
        for measure in (FORWARD, TRAINING):
            found = row.get(measure)
            cells[f"{measure}, ms"] = number(found["ms"][1]) if found else "–"
            cells[f"{measure}, × (quartiles)"] = _ratio(found["times"]) if found and "times" in found else "–"
        cells["peak MiB"] = number(row["MiB"][1]) if "MiB" in row else "–"
        cells["note"] = row.get("not_run", row.get("note", ""))
        out.append(cells)
    return out


def _ratio(times: list[float]) -> str:
    low, median, high = times
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def number(x: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def plots(results: dict[str, Any], pictures: Iterable[Path], page: Path) -> dict[str, str]:
    """Links to the pictures of each sweep, as seen from a page."""
    device, found = results["about"]["device"].split(":")[0], defaultdict(list)
    for picture in pictures:
        sweep, measure = picture.stem.split("-")
        name = f"{measure} against {results['sweeps'][sweep]['axis']}"
        link = Path(os.path.relpath(picture.resolve(), page.resolve().parent)).as_posix()
        found[f"{device}:{sweep}-plots"].append(f"![{name}]({link})")
    return {place: "\n\n".join(links) for place, links in found.items()}


def fill(page: Path, found: dict[str, str]) -> list[str]:
    """Write tables to their places, ``<!-- table:NAME -->`` to ``<!-- /table -->``; the names that had a place.

    The first tables of a GPU make a section of the page with places for all of them.

    Raises:
        ValueError: a page with no place for any of them.
    """
    text, filled = page.read_text(), []
    if any(name.startswith("cuda:") for name in found) and "<!-- table:cuda:" not in text:
        text = _with_gpu_section(text)
    for name, table in found.items():
        place = re.compile(rf"(<!-- table:{re.escape(name)} -->\n).*?(<!-- /table -->)", re.DOTALL)
        text, count = place.subn(lambda m, table=table: f"{m[1]}\n{table}\n\n{m[2]}", text)
        filled += [name] * bool(count)
    if not filled:
        raise ValueError(f"{page} must have a place such as <!-- table:{next(iter(found))} -->, it has none")
    page.write_text(text)
    return filled


def _with_gpu_section(text: str) -> str:
    """The page with its section "On a CPU" once more at the end, for a GPU and with empty places."""
    match = re.search(r"^## On a CPU\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if match is None:
        return text
    section = re.sub(r"(<!-- table:)cpu(:\S+ -->\n).*?(<!-- /table -->)", r"\1cuda\2\3", match[0], flags=re.DOTALL)
    section = re.sub(r"^(### .*)$", r"\1 (GPU)", section.replace("## On a CPU", "## On a GPU", 1), flags=re.MULTILINE)
    kinds = "plots", "time", "forward", "memory", "beside", "detail"
    places = "\n".join(f"<!-- table:cuda:{WIDE}-{kind} -->\n<!-- /table -->\n" for kind in kinds)
    return f"{text.rstrip()}\n\n{section.rstrip()}\n\n### Length, heads of 128 numbers (GPU)\n\n{places}"
