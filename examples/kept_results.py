"""What long runs gave: published figures, kept in ``examples/kept/``, from which short modes draw the results picture.

A short mode trains too little to rank anything. So it prints its own table, and its results picture shows the long run.
"""

from __future__ import annotations

import calendar
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

KEPT = Path(__file__).resolve().parent / "kept"
SHORT = "short mode: a short run, so these figures rank nothing"
SHORT_MODEL = "short mode: a model after little training"
"""What the table and the pictures of a short mode say of themselves."""

RELGRAPH, OTHER, RULE = "relgraph", "other", "rule"
LOOKS: dict[str, dict[str, Any]] = {
    RELGRAPH: {"facecolor": "#0072b2", "edgecolor": "#0072b2"},
    OTHER: {"facecolor": "#9aa3ad", "edgecolor": "#9aa3ad"},
    RULE: {"facecolor": "white", "edgecolor": "#9aa3ad", "hatch": "////"},
}
DARK = {RELGRAPH: "#005585", OTHER: "#4a525b", RULE: "#4a525b"}
"""Colours of text about rows of each kind."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: of the row.
        kind: one of :data:`LOOKS`: with relgraph's labels, any other model, or a rule that learns nothing.
        figures: by column, the mean and, of several runs, the spread.
        values: by column, the figure of each run, where they are kept.
    """

    name: str
    kind: str
    figures: dict[str, list[float]]
    values: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One drawing: bars of one column.

    Attributes:
        title: what the figures are.
        column: of the figures.
        rows: those that are drawn, by what they are called in the drawing; all if there are none.
        start: where the axis of bars begins.
    """

    title: str
    column: str
    rows: dict[str, str] = field(default_factory=dict)
    start: float = 0.0


@dataclass(frozen=True)
class Chart:
    """A picture with what it says above it."""

    title: str
    panels: list[Panel]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Chart:
        return cls(record["title"], [Panel(**panel) for panel in record["panels"]])


@dataclass(frozen=True)
class Kept:
    """The figures of a long run.

    Attributes:
        source: seeds, processor and month, for the caption.
        spread: what ± means; empty where nothing has one.
        kinds: what each kind of row is, for the legend.
        rows: of the table, from the top.
        results: the picture of the page.
        thumbnail: the same at the size of a card: few rows, large type.
    """

    source: str
    spread: str
    kinds: dict[str, str]
    rows: list[Row]
    results: Chart
    thumbnail: Chart

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Kept:
        """From what a file holds."""
        year, month = map(int, record["date"].split("-"))
        source = f"long run: {record['seeds']}, {record['processor']}, {calendar.month_name[month]} {year}"
        return cls(
            source, record["spread"], record["kinds"],
            [Row(**row) for row in record["rows"]], Chart.of(record["results"]), Chart.of(record["thumbnail"]),
        )  # fmt: skip

    @classmethod
    def read(cls, name: str) -> Kept:
        """The figures of the example with this name."""
        return cls.of(json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8")))

    def draw(self, folder: Path, name: str = "results") -> None:
        """Write the results picture, and print that it shows the long run."""
        path, panels, order = folder / f"{name}.png", self.results.panels, self.results.panels[0].column
        rows = max(len(self._rows(panel, order)) for panel in panels)
        figure = Figure(figsize=(5.4 + 3.2 * len(panels), 1.7 + 0.34 * max(rows, 6)), dpi=110, layout="constrained")
        for ax, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            self._draw(ax, panel, order, 10)
            ax.set_title(panel.title, fontsize=10)
            # the first panel names its rows for all panels with the same
            if ax is not figure.axes[0] and self._rows(panel, order) == self._rows(panels[0], order):
                ax.tick_params(labelleft=False)
        patches = [Patch(**LOOKS[kind], label=text) for kind, text in self.kinds.items()]
        figure.axes[-1].legend(handles=patches, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
        figure.suptitle(self.results.title, fontsize=11.5, weight="bold")
        caption = "; ± ".join(filter(None, (self.source, self.spread)))
        figure.supxlabel(caption, fontsize=9, color="0.35")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        print(f"picture: {path}, which shows the {self.source}")

    def draw_thumbnail(self, path: Path) -> None:
        """Write the picture of a card."""
        figure = Figure(figsize=(4, 2.8), dpi=200, layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))
        (panel,) = self.thumbnail.panels
        ax = figure.subplots()
        self._draw(ax, panel, panel.column, 11)
        ax.tick_params(bottom=False, labelbottom=False)  # figures are written at the bars
        ax.spines["bottom"].set_visible(False)
        figure.suptitle(self.thumbnail.title, fontsize=11.5, weight="bold")
        figure.supxlabel(panel.title, fontsize=9.5, color="0.35")
        figure.savefig(path)

    def _rows(self, panel: Panel, order: str) -> list[tuple[str, Row]]:
        """The rows of a panel and what they are called there; the highest in the column ``order`` first."""
        names = panel.rows or {row.name: row.name for row in self.rows}
        found = [(names[row.name], row) for row in self.rows if row.name in names]
        return sorted(found, key=lambda pair: -pair[1].figures.get(order, [0.0])[0])

    def _draw(self, ax: Axes, panel: Panel, order: str, size: float) -> None:
        rows, column = self._rows(panel, order), panel.column
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=size)
        high = max(sum(row.figures.get(column, [0.0])) for _, row in rows) - panel.start
        for y, (_, row) in enumerate(rows):
            if column not in row.figures:
                continue
            middle, *spread = row.figures[column]
            ax.barh(y, middle - panel.start, 0.72, left=panel.start, **LOOKS[row.kind])
            end = middle
            if spread:
                end += spread[0]
                ax.errorbar(middle, y, xerr=spread[0], color="black", linewidth=1.1, capsize=2.5)
            if column in row.values:
                ax.plot(row.values[column], [y] * len(row.values[column]), ".", color="black", markersize=4)
            end = max([end, *row.values.get(column, [])])
            shown = " ± ".join(f"{figure:,.1f}" for figure in row.figures[column])
            ax.annotate(
                shown, (end, y), (4, 0), textcoords="offset points", va="center", size=size - 1, color=DARK[row.kind]
            )
        ax.set_yticks(range(len(rows)), [name for name, _ in rows])
        for label, (_, row) in zip(ax.get_yticklabels(), rows, strict=True):
            label.set_color(DARK[row.kind])
        ax.invert_yaxis()
        ax.set_xlim(panel.start, panel.start + 1.5 * high)
        ax.set_xticks([tick for tick in ax.get_xticks() if panel.start <= tick <= panel.start + 1.05 * high])
