"""The pictures of the report: curves, lengths, and what the tables learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

KINDS = {"key": "#0072B2", "value": "#D55E00"}
# Okabe and Ito's colours, which the colour-blind can tell apart
COLOURS = {
    "none": "#000000", "sinusoidal": "#E69F00", "learned": "#D55E00", "rotary": "#56B4E9", "ALiBi": "#CC79A7",
    "relative, k = 16": "#0072B2", "both, k = 16": "#009E73",
}  # fmt: skip
CURVES = ("none", "sinusoidal", "learned", "rotary", "relative, k = 16")
DISTANCES = (16, 64)
"""The clipping distances whose tables are drawn."""

Rows = dict[str, list[dict[str, Any]]]


def draw(folder: Path, rows: Rows, tests: Sequence[str], similarity: dict[str, Any]) -> list[str]:
    """Write the pictures that the runs have figures for, and return their names."""
    figures = {"curves": draw_curves(rows), "lengths": draw_lengths(rows, tests)}
    for k in DISTANCES:
        if norms := [run["norms"] for run in rows.get(f"relative, k = {k}", ()) if "norms" in run]:
            figures[f"tables-{k}"] = draw_norms(norms, k)
    if similarity:
        figures["similarity"] = draw_similarity(similarity)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130)
    return [*figures]


def _axes(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
    return figure, axes


def draw_curves(rows: Rows) -> Figure:
    figure, (axes,) = _axes(1, 2, (10, 4))
    for name in CURVES:
        if curves := [dict(run["valid"]) for run in rows.get(name, ())]:
            steps = sorted(set.intersection(*map(set, curves)))
            late = [step for step in steps if step >= steps[-1] / 2]
            for axis, shown in zip(axes, (steps, late), strict=True):
                _band(axis, shown, [[curve[step] for step in shown] for curve in curves], name, COLOURS[name])
    axes[0].set(title="whole training", ylabel="nats for each subword")
    axes[1].set(title="second half")
    axes[0].legend(frameon=False)
    for axis in axes:
        axis.set_xlabel("step")
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        axis.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle("Validation: negative log-likelihood")
    return figure


def _band(
    axis: Axes, x: Sequence[int], lines: Sequence[Sequence[float]], label: str, colour: str, **style: Any
) -> None:
    """The mean of some lines, over a band from the lowest to the highest."""
    columns = list(zip(*lines, strict=True))
    axis.plot(x, [mean(column) for column in columns], color=colour, label=label, **style)
    axis.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.2, linewidth=0)


def draw_lengths(rows: Rows, tests: Sequence[str]) -> Figure:
    figure, (axes,) = _axes(1, 2, (10, 4.4), sharey=True)
    shades = mpl.colormaps["viridis_r"]
    distances = sorted(
        (name for name in rows if name.startswith("relative") and name.count(",") == 1),
        key=lambda name: int(name.rpartition(" ")[2]),
    )
    panels = {
        "what the model knows of positions": {name: colour for name, colour in COLOURS.items() if name in rows},
        "relative, by clipping distance": {
            name: shades(0.1 + 0.9 * place / len(distances)) for place, name in enumerate(distances, 1)
        },
    }
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        for place, (name, colour) in enumerate(panel.items()):
            cells = [[run["tests"][test]["perplexity"] for run in rows[name]] for test in tests]
            spreads = [stdev(cell) if len(cell) > 1 else 0.0 for cell in cells]
            # side by side, so that error bars do not hide each other
            x = [at + 0.03 * (place - (len(panel) - 1) / 2) for at in range(len(tests))]
            axis.errorbar(
                x, [*map(mean, cells)], spreads, color=colour, marker="osD^vPX"[place % 7], markersize=4, capsize=2,
                linewidth=1.3, label=name,
            )  # fmt: skip
        axis.set(title=title, yscale="log", xlabel="words in the source sentence")
        names = [test.removeprefix("test-").replace("-", "–").replace("test", "trained\nlengths") for test in tests]
        axis.set_xticks(range(len(tests)), names)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        if panel:
            axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("perplexity of a subword (log scale)")
    return figure


def draw_norms(norms: Sequence[dict[str, list[float]]], distance: int) -> Figure:
    layers = len(norms[0]) // 4  # two stacks with two tables per layer
    figure, axes = _axes(2, layers, (max(4.5 * layers, 6), 6), sharex=True, sharey=True)
    for row, stack in enumerate(("encoder", "decoder")):
        last = distance if stack == "encoder" else 0
        x = list(range(-distance, last + 1))
        for layer, axis in enumerate(axes[row]):
            for kind, colour in KINDS.items():
                lines = [each[f"{stack}.{layer}.{kind}"][: len(x)] for each in norms]
                _band(axis, x, lines, f"{kind} table", colour, marker="o", markersize=2.5, linewidth=1.2)
            if not last:
                axis.axvspan(0.5, distance, color="0.94", linewidth=0)
                axis.text(
                    distance / 2, 0.5, "never seen", transform=axis.get_xaxis_transform(), ha="center", color="0.4"
                )
            axis.set_title(f"{stack}, layer {layer + 1}", fontsize=10)
            axis.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False)
    figure.supxlabel("distance, key less query")
    figure.supylabel("length of the row")
    figure.suptitle(f"relative, k = {distance}: the tables' rows")
    return figure


def draw_similarity(similarity: dict[str, list[list[float]]]) -> Figure:
    figure = Figure((9, 4.4), layout="constrained")
    (axes,) = figure.subplots(1, 2, squeeze=False)
    for axis, (kind, cosines) in zip(axes, similarity.items(), strict=True):
        edge = len(cosines) / 2  # distances from -k to k, each in a square around it
        image = axis.imshow(cosines, cmap="RdBu", vmin=-1, vmax=1, extent=(-edge, edge, edge, -edge))
        axis.set(title=f"{kind} table", xlabel="distance")
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_locator(MaxNLocator(9, integer=True))
    axes[0].set_ylabel("distance")
    figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    figure.suptitle("relative, k = 16, encoder, layer 1: cosines between rows")
    return figure
