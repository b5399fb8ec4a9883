"""Markdown tables of a run, and the places in docs/benchmarks.md that they fill."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.benchmarks import about
from docs.benchmarks.measure import Rows, markdown, quartiles
from docs.benchmarks.results import FORWARD, TRAINING, Row, points
from docs.benchmarks.sweeps import WIDE

DETAIL = {"length": (2048, 8192), WIDE: (2048, 8192), "edges": (200_000,), "graphs": (64, 256)}
"""Where a sweep is shown in full: the largest of these that was measured."""

PAIRS = {
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
"""Ratios of one way to a similar one; tables of ratios to the floor do not show them."""

Cells = dict[tuple[str, ...], dict[int, str]]
"""By the first cells of a row: its measured points as text, by the value that is varied. Others are missing."""


def tables(results: dict[str, Any]) -> dict[str, str]:
    """All tables by the name of their place, such as ``cpu:length-time``."""
    device = results["about"]["device"].split(":")[0]
    found = {f"{device}:about": about.line(results["about"])}
    for sweep in results["sweeps"]:
        rows = points(results, sweep)
        values = sorted({value for way in rows.values() for value in way})
        if not rows:
            continue
        found[f"{device}:{sweep}-time"] = _paragraphs(_grids(rows, values, TRAINING), _not_run(rows, values))
        found[f"{device}:{sweep}-forward"] = _grids(rows, values, FORWARD)
        found[f"{device}:{sweep}-memory"] = _grids(rows, values, "MiB")
        found[f"{device}:{sweep}-beside"] = _pairs(rows, values)
        detail = [value for value in DETAIL.get(sweep, ()) if value in values] or [values[-1]]
        found[f"{device}:{sweep}-detail"] = _detail(rows, detail[-1])
    return {name: table for name, table in found.items() if table}


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _grids(rows: dict[str, dict[int, Row]], values: list[int], measure: str) -> str:
    """A row a way and a column a value: the ratio to the floor (the floor: milliseconds), or MiB.

    Columns are the values at which the floor was measured.
    """
    floor = next(iter(rows))
    cells = {
        way: {value: _cell(row, measure, way == floor) for value, row in points_of.items() if measure in row}
        for way, points_of in rows.items()
    }
    return _whole_tables(
        {(way,): points_of for way, points_of in cells.items()}, ("way",), list(cells[floor]) or values
    )


def _whole_tables(cells: Cells, head: tuple[str, ...], values: list[int]) -> str:
    """Tables without a gap: of the rows that have all values, and of others over the first few values.

    A sentence below names the points that were measured and are in neither.
    """
    whole = [row for row, points_of in cells.items() if all(value in points_of for value in values)]
    others = [row for row in cells if row not in whole]
    made = [_table(cells, head, whole, values)]
    few: list[int] = []
    shown: list[tuple[str, ...]] = []
    for count in range(1, len(values)):
        have = [row for row in others if all(value in cells[row] for value in values[:count])]
        if count * len(have) >= len(few) * len(shown):
            few, shown = values[:count], have
    made.append(_table(cells, head, shown, few))
    in_tables = dict.fromkeys(whole, values) | dict.fromkeys(shown, few)
    rest = [
        f"{' ÷ '.join(row)} {text} at {value:,}"
        for row, points_of in cells.items()
        for value, text in points_of.items()
        if value not in in_tables.get(row, ())
    ]
    return _paragraphs(*made, f"Also measured: {'; '.join(rest)}." if rest else "")


def _table(cells: Cells, head: tuple[str, ...], rows: list[tuple[str, ...]], values: list[int]) -> str:
    shown: Rows = [
        dict(zip(head, row, strict=True)) | {f"{value:,}": cells[row][value] for value in values} for row in rows
    ]
    return markdown(shown) if shown else ""


def _cell(row: Row, measure: str, floor: bool) -> str:
    if measure == "MiB":
        return f"{number(row['MiB'][1])} MiB"
    ms = f"{number(row[measure]['ms'][1])} ms"
    if floor or "times" not in row[measure]:
        return f"{ms}, 1×" if floor else ms
    return f"{number(row[measure]['times'][1])}×"


def _not_run(rows: dict[str, dict[int, Row]], values: list[int]) -> str:
    """A list of the ways that were not run everywhere: from which value on, and why."""
    lines = []
    for way, points_of in rows.items():
        left = [value for value in values if "not_run" in points_of.get(value, {})]
        if left:
            after = left == values[-len(left) :] and len(left) > 1
            where = f"{left[0]:,} and more" if after else ", ".join(f"{value:,}" for value in left)
            lines.append(f"- {way}, at {where}: {_short(points_of[left[0]]['not_run'])}")
    return "\n".join(["Not run:", "", *lines]) if lines else ""


def _short(reason: str) -> str:
    """Why a way was not run, in a few words."""
    match = re.search(r"needs about ([\d.e+]+) GB", reason)
    if match:
        return f"needs {float(match[1]):.0f} GB"
    return reason.removeprefix("not run: ").split(":")[0].split("(")[0].strip()


def _pairs(rows: dict[str, dict[int, Row]], values: list[int]) -> str:
    """A row per pair of ways: the ratio of their times, forward and backward where both have it, within a round."""
    cells: Cells = {}
    for way, others in PAIRS.items():
        for other in others:
            ratios = {v: _between(rows.get(way, {}).get(v, {}), rows.get(other, {}).get(v, {})) for v in values}
            cells[way, other] = {value: ratio for value, ratio in ratios.items() if ratio}
    cells = {pair: ratios for pair, ratios in cells.items() if ratios}
    measured = [value for value in values if any(value in ratios for ratios in cells.values())]
    return _whole_tables(cells, ("way", "compared with"), measured)


def _between(row: Row, other: Row) -> str:
    """The ratio of two ways at one point with its quartiles, from the rounds that both ran in; empty if unmeasured."""
    for measure in (TRAINING, FORWARD):
        if measure in row and measure in other:
            turns, theirs = row[measure]["turns"], other[measure]["turns"]
            if row["run"] != other["run"]:
                return f"{row[measure]['ms'][1] / other[measure]['ms'][1]:.2f} (of two runs)"
            ratios = quartiles([turns[t] / theirs[t] for t in turns if t in theirs])
            return _ratio(ratios) + (" (forward)" if measure == FORWARD else "")
    return ""


def _detail(rows: dict[str, dict[int, Row]], value: int) -> str:
    """All that is known of each way at one value: a table of those with every measure, then the others and notes."""
    measured = {
        way: points_of[value]
        for way, points_of in rows.items()
        if "not_run" not in points_of.get(value, {"not_run": ""})
    }
    cells = {way: _measures(row) for way, row in measured.items()}
    head = max(cells.values(), key=len, default={})
    whole: Rows = [{"way": way, **found} for way, found in cells.items() if len(found) == len(head)]
    lines = []
    for way, row in measured.items():
        said = [f"{what} {cell}" for what, cell in cells[way].items()] if len(cells[way]) < len(head) else []
        said += [row["note"]] if row.get("note") else []
        lines += [f"- {way}: {'; '.join(said)}"] if said else []
    return _paragraphs(markdown(whole) if whole else "", "\n".join(lines))


def _measures(row: Row) -> dict[str, str]:
    """What was measured of a way at one value, in the cells of a table."""
    cells = {}
    for measure in (FORWARD, TRAINING):
        if measure in row:
            cells[f"{measure}, ms"] = number(row[measure]["ms"][1])
            if "times" in row[measure]:
                cells[f"{measure}, × (quartiles)"] = _ratio(row[measure]["times"])
    if "MiB" in row:
        cells["peak MiB"] = number(row["MiB"][1])
    return cells


def _ratio(times: list[float]) -> str:
    low, median, high = times
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def number(x: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def plots(results: dict[str, Any], pictures: Iterable[Path], page: Path) -> dict[str, str]:
    """A link to the picture of training for each sweep, as seen from a page."""
    device, found = results["about"]["device"].split(":")[0], {}
    for picture in pictures:
        sweep, measure = picture.stem.split("-")
        if measure == "training":
            link = Path(os.path.relpath(picture.resolve(), page.resolve().parent)).as_posix()
            found[f"{device}:{sweep}-plot"] = f"![{measure} against {results['sweeps'][sweep]['axis']}]({link})"
    return found


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
    """The page with the headings and places of its section "On a CPU" a second time behind it, for a GPU and empty."""
    match = re.search(r"^## On a CPU\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if match is None:
        return text
    parts = ["## On a GPU"]
    for heading, place in re.findall(r"^(### .*)$|^<!-- table:cpu:(\S+) -->$", match[0], re.MULTILINE):
        parts.append(f"{heading} (GPU)" if heading else _place(place))
    wide = "### Length, heads of 128 numbers (GPU)", *(_place(f"{WIDE}-{kind}") for kind in ("plot", "time", "beside"))
    return "\n\n".join([text[: match.end()].rstrip(), *parts, *wide, text[match.end() :]])


def _place(name: str) -> str:
    return f"<!-- table:cuda:{name} -->\n<!-- /table -->"
