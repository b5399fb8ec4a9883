"""Figures, tables and lists as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from examples.translation.report.intervals import Difference
from examples.translation.report.results import as_figure


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; nothing without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def every(values: Iterable[Any]) -> str:
    """Every different value, in order."""
    different = {value for value in values if value is not None}
    return " and ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in sorted(different))


def count(number: int, what: str) -> str:
    """``3 layers``, ``1 layer``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def signed(value: float, form: str | None = None) -> str:
    """A figure with its sign."""
    size = as_figure(abs(value)) if form is None else format(abs(value), form)
    return ("−" if value < 0 else "+") + size


def with_interval(found: Difference, form: str | None = None) -> str:
    """A difference with its interval; bold where that leaves out 0."""
    value = signed(found.value, form)
    if found.low is None or found.high is None:
        return f"{value} (one seed)"
    bold = f"**{value}**" if found.sign else value
    return f"{bold} [{signed(found.low, form)}, {signed(found.high, form)}]"
