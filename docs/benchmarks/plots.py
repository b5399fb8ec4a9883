"""Plots of a run: how time and memory grow along each axis, with one colour per way in all plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from docs.benchmarks.results import FORWARD, TRAINING, Row, points

INCHES, DPI = (8.0, 5.0), 160


class Style(NamedTuple):
    """How to draw a way; relgraph's own lines are thick."""

    colour: str
    label: str
    width: float = 1.5
    dashes: str = "-"


THICK, THIN = 2.8, 1.5
STYLES = {
    "SDPA, no relations": Style("#111111", "SDPA, no relations", 1.8, "--"),
    "relgraph triton, distance": Style("#00695c", "relgraph triton, distance", THICK),
    "relgraph triton, arbitrary labels": Style("#26a69a", "relgraph triton, arbitrary", THICK),
    "relgraph triton, distance, key term": Style("#00695c", "relgraph triton, key term", THIN, ":"),
    "relgraph native, distance": Style("#2e7d32", "relgraph native, distance", THICK),
    "relgraph native, arbitrary labels": Style("#81c784", "relgraph native, arbitrary", THICK),
    "relgraph native, distance, key term": Style("#2e7d32", "relgraph native, key term", THIN, ":"),
    "relgraph chunked, distance": Style("#0d47a1", "relgraph chunked, distance", THICK),
    "relgraph chunked, arbitrary labels": Style("#42a5f5", "relgraph chunked, arbitrary", THICK),
    "relgraph chunked, distance, key term": Style("#0d47a1", "relgraph chunked, key term", THIN, ":"),
    "relgraph dense, distance": Style("#7e8fa6", "relgraph dense"),
    "paper's computation (eqs. 3–4)": Style("#c62828", "paper's eqs. 3–4"),
    "split term, plain torch": Style("#ef8e19", "split term, plain torch"),
    "FlexAttention, key term": Style("#7b1fa2", "FlexAttention, key term only"),
    "BERT relative_key": Style("#6d4c41", "BERT relative_key"),
    "OpenNMT-py": Style("#d81b80", "OpenNMT-py"),
    "TransformerConv, one-hot types": Style("#c62828", "PyG TransformerConv"),
    "GATv2Conv, one-hot types": Style("#d81b80", "PyG GATv2Conv"),
    "RGATConv": Style("#6d4c41", "PyG RGATConv"),
    "relgraph RelationConv": Style("#0d47a1", "relgraph RelationConv", THICK),
    "relgraph RelationConv, sorted before": Style("#42a5f5", "RelationConv, sorted before", THICK),
    "relgraph RelationConv, additive": Style("#7b1fa2", "RelationConv, additive", THICK),
    "relgraph RelationConv, triton": Style("#00695c", "RelationConv, triton", THICK),
    "relgraph RelationConv, triton, sorted before": Style("#26a69a", "RelationConv, triton, sorted", THICK),
    "padded SDPA, no labels": Style("#111111", "padded SDPA, no labels", 1.8, "--"),
    "relgraph native, packed, key and value tables": Style("#2e7d32", "relgraph native, two tables", THICK),
    "relgraph native, packed, bias": Style("#81c784", "relgraph native, bias", THICK),
    "relgraph chunked, packed, key and value tables": Style("#0d47a1", "relgraph chunked, two tables", THICK),
    "relgraph chunked, packed, bias": Style("#42a5f5", "relgraph chunked, bias", THICK),
    "relgraph triton, packed, key and value tables": Style("#00695c", "relgraph triton, two tables", THICK),
    "relgraph triton, packed, bias": Style("#26a69a", "relgraph triton, bias", THICK),
    "padded graph Transformer, split term": Style("#ef8e19", "padded, two tables (split)"),
    "padded graph Transformer, SDPA with bias": Style("#c62828", "padded, SDPA with bias"),
}
"""The ways in the plots; the tables also have the others."""

MEASURES = {
    FORWARD: ("forward", "ms", "Forward, without gradients"),
    TRAINING: ("training", "ms", "Forward and backward"),
    "MiB": ("memory", "MiB", "Peak memory beyond inputs"),
}


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write a picture for each sweep and measure; return the files."""
    made = []
    for sweep in results["sweeps"]:
        rows = points(results, sweep)
        for measure in MEASURES:
            lines = {way: line for way in STYLES if len(line := _line(rows.get(way, {}), measure))}
            if lines:
                path = folder / f"{sweep}-{MEASURES[measure][0]}.png"
                _picture(results, sweep, measure, lines, path)
                made.append(path)
    return made


Line = list[tuple[int, float, float, float]]


def _line(rows: dict[int, Row], measure: str) -> Line:
    """Value, lower quartile, median and upper quartile of all measured points."""
    line = []
    for value, row in sorted(rows.items()):
        if measure in row:
            found = row[measure] if measure == "MiB" else row[measure]["ms"]
            # a call may need no extra memory, which a logarithmic scale cannot show
            line.append((value, *(max(x, 1e-3 if measure != "MiB" else 0.1) for x in found)))
    return line


def _picture(results: dict[str, Any], sweep: str, measure: str, lines: dict[str, Line], path: Path) -> None:
    about = results["sweeps"][sweep]
    _, unit, title = MEASURES[measure]
    figure, axes = plt.subplots(figsize=INCHES, dpi=DPI, layout="constrained")
    values = sorted({setting[about["field"]] for setting in about["settings"]})
    for way, line in lines.items():
        _curve(axes, STYLES[way], line, stops=line[-1][0] < values[-1])
    axes.set_xscale("log", base=2 if sweep != "edges" else 10)
    axes.set_yscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    # names in the order in which lines end, from the top
    lines = dict(sorted(lines.items(), key=lambda line: -line[1][-1][2]))
    by_label = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    handles = [by_label[STYLES[way].label] for way in lines]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9.5, frameon=False)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 500 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.tick_params(labelsize=10)
    axes.minorticks_off()
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    stopped = any(line[-1][0] < values[-1] for line in lines.values())
    axes.set_xlabel(about["axis"] + ("   (× stops: memory or time)" if stopped else ""), fontsize=11)
    axes.set_ylabel(unit, fontsize=11)
    axes.set_title(title, fontsize=13, loc="left", fontweight="bold")
    axes.set_title(_subtitle(results, about), fontsize=8.5, loc="right", color="#555555")
    axes.set_xlim(values[0] * 0.93, values[-1] * 1.03)
    figure.savefig(path)
    plt.close(figure)


def _curve(axes: Axes, style: Style, line: Line, stops: bool) -> None:
    """A line of medians and a band of quartiles, with a cross where the line stops before others."""
    x, low, median, high = zip(*line, strict=True)
    axes.plot(
        x, median, style.dashes, color=style.colour, linewidth=style.width, label=style.label, marker="o",
        markersize=3.5 + style.width / 2,
    )  # fmt: skip
    if stops:
        axes.plot(x[-1], median[-1], "x", color=style.colour, markersize=11, markeredgewidth=2)
    axes.fill_between(x, low, high, color=style.colour, alpha=0.2, linewidth=0)


def _subtitle(results: dict[str, Any], about: dict[str, Any]) -> str:
    """The fixed values along the axis, and the machine."""
    fixed = {key: value for key, value in about["settings"][0].items() if key not in ("kind", "device", about["field"])}
    names = {"batch": "b", "heads": "h", "length": "n", "size": "d", "labels": "R", "most": "nodes≤"}
    words = [
        f"{names.get(key, key)}={value}".replace("≤=", "≤") if key != "dtype" else str(value)
        for key, value in fixed.items()
    ]
    machine = results["about"]
    many = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    where = machine["hardware"] if machine["device"] != "cpu" else f"CPU, {many}"
    return f"{' '.join(words)}\n{where}, torch {machine['torch']}"
