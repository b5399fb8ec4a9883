"""A plot of a run over lengths: how the time of a training call grows, with one colour per way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

from docs.benchmarks.run import TRAINING
from docs.benchmarks.tables import by_way

COLOURS = {
    "SDPA, no relations": "#111111",
    "relgraph triton, distance": "#00695c",
    "relgraph triton, arbitrary labels": "#26a69a",
    "relgraph native, distance": "#2e7d32",
    "relgraph native, arbitrary labels": "#81c784",
    "relgraph chunked, distance": "#0d47a1",
    "relgraph chunked, arbitrary labels": "#42a5f5",
    "relgraph dense, distance": "#7e8fa6",
    "paper's computation (eqs. 3–4)": "#c62828",
    "split term, plain torch": "#ef8e19",
    "FlexAttention, key term": "#7b1fa2",
    "BERT relative_key": "#6d4c41",
    "OpenNMT-py": "#d81b80",
}
"""The ways in the plot; the tables also have the others. relgraph's lines are thick, SDPA's is dashed."""


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw medians with quartiles; a cross ends a line that ran out of memory or time."""
    found = by_way(results)
    lengths = list(next(iter(found.values())))
    figure, axes = plt.subplots(figsize=(8.0, 5.0), dpi=160, layout="constrained")
    last = {}
    for way, colour in COLOURS.items():
        times = {n: row[TRAINING]["ms"] for n, row in found.get(way, {}).items() if TRAINING in row}
        if not times:
            continue
        low, median, high = zip(*times.values(), strict=True)
        dashes, width = "--" if way.startswith("SDPA") else "-", 2.8 if way.startswith("relgraph") else 1.5
        (last[way],) = axes.plot(
            list(times), median, dashes, color=colour, linewidth=width, label=way, marker="o", markersize=4
        )
        axes.fill_between(list(times), low, high, color=colour, alpha=0.2, linewidth=0)
        if len(times) < len(lengths):
            axes.plot(max(times), median[-1], "x", color=colour, markersize=11, markeredgewidth=2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    # names in the order in which lines end, from the top
    handles = sorted(last.values(), key=lambda line: -line.get_ydata()[-1])
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9.5, frameon=False)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("n, sequence length   (× stops: memory or time)", fontsize=11)
    axes.set_ylabel("ms", fontsize=11)
    axes.set_title("Forward and backward", fontsize=13, loc="left", fontweight="bold")
    machine = results["about"]
    axes.set_title(f"{machine['hardware']}, torch {machine['torch']}", fontsize=8.5, loc="right", color="#555555")
    figure.savefig(path)
    plt.close(figure)
