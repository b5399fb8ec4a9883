"""The pictures: curves, lengths, and what the tables learned."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from PIL import Image

from examples.translation.files import whole
from examples.translation.report.results import (
    ALIBI,
    BOTH,
    CURVES,
    KINDS,
    LEARNED,
    NONE,
    PICTURED_DISTANCES,
    ROTARY,
    SINUSOIDAL,
    TEST,
    Sweep,
    lengths_of,
    relative,
)
from examples.translation.sweep import PAPER

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

# Okabe and Ito's colours, which the colour-blind can tell apart
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"
KIND_COLOURS = {"key": BLUE, "value": RED}
DPI = 130
COLOURS = {
    NONE: BLACK, SINUSOIDAL: ORANGE, LEARNED: RED, ROTARY: SKY, ALIBI: PINK, relative(PAPER): BLUE, BOTH: GREEN,
}  # fmt: skip
MARKERS = "osD^vPX"


def pictures_of(sweep: Sweep) -> dict[str, Callable[[Sweep], Figure]]:
    """File names, and how to draw them: those that the runs have figures for."""
    found: dict[str, Callable[[Sweep], Figure]] = {}
    if sweep.present(CURVES):
        found["curves.png"] = _draw_curves
    if sweep.unseen:
        found["lengths.png"] = _draw_lengths
    for k in PICTURED_DISTANCES:
        if _with_norms(sweep, k):
            found[f"tables-{k}.png"] = partial(_draw_norms, distance=k)
    if sweep.similarity:
        found["similarity.png"] = _draw_similarity
    return found


def save_picture(path: Path, figure: Figure) -> None:
    """Write a PNG of at most 256 colours, a third of the size of one with all that smoothed edges have."""
    full = io.BytesIO()
    figure.savefig(full, dpi=DPI, format="png")
    plt.close(figure)
    few = Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with whole(path) as written:
        few.save(written, format="png", optimize=True)


def _subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
    return figure, axes


def _draw_curves(sweep: Sweep) -> Figure:
    figure, (axes,) = _subplots(1, 2, (10, 4))
    for v in sweep.present(CURVES):
        curves = [dict(entry["valid"]) for entry in sweep.groups[v]]
        steps = sorted(set.intersection(*map(set, curves)))
        late = [step for step in steps if step >= steps[-1] / 2]
        for axis, shown in zip(axes, (steps, late), strict=True):
            _band(axis, shown, [[curve[step] for step in shown] for curve in curves], v.name, COLOURS[v])
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


def _draw_lengths(sweep: Sweep) -> Figure:
    figure, (axes,) = _subplots(1, 2, (10, 4.4), sharey=True)
    distances = sweep.present(map(relative, sweep.distances))
    shades = plt.get_cmap("viridis_r")
    colours = {v: shades(0.1 + 0.9 * place / max(1, len(distances) - 1)) for place, v in enumerate(distances)}
    panels = (
        ("what the model knows of positions", {v: COLOURS[v] for v in sweep.present(COLOURS)}),
        ("relative, by clipping distance", colours),
    )
    names = [TEST, *sweep.unseen]
    for axis, (title, panel) in zip(axes, panels, strict=True):
        for place, (v, colour) in enumerate(panel.items()):
            cells = [sweep.test(v, name, "perplexity") for name in names]
            # side by side, so that error bars do not hide each other
            x = [at + 0.03 * (place - (len(panel) - 1) / 2) for at in range(len(names))]
            axis.errorbar(
                x,
                [cell.mean for cell in cells],
                [cell.spread or 0.0 for cell in cells],
                color=colour,
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                capsize=2,
                linewidth=1.3,
                label=v.name,
            )
        axis.set(title=title, yscale="log", xlabel="words in the source sentence")
        axis.set_xticks(
            range(len(names)), [lengths_of(name).removesuffix(" words").replace(" ", "\n") for name in names]
        )
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        if panel:
            axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("perplexity of a subword (log scale)")
    return figure


def _with_norms(sweep: Sweep, distance: int) -> list[dict[str, list[float]]]:
    return [entry["norms"] for entry in sweep.groups.get(relative(distance), ()) if "norms" in entry]


def _draw_norms(sweep: Sweep, distance: int) -> Figure:
    norms = _with_norms(sweep, distance)
    layers = len(norms[0]) // 4  # two stacks with two tables per layer
    figure, axes = _subplots(2, layers, (max(4.5 * layers, 6), 6), sharex=True, sharey=True)
    for row, stack in enumerate(("encoder", "decoder")):
        last = distance if stack == "encoder" else 0
        x = list(range(-distance, last + 1))
        for layer, axis in enumerate(axes[row]):
            for kind in KINDS:
                lines = [each[f"{stack}.{layer}.{kind}"][: len(x)] for each in norms]
                style = {"marker": "o", "markersize": 2.5, "linewidth": 1.2}
                _band(axis, x, lines, f"{kind} table", KIND_COLOURS[kind], **style)
            if last == 0 < distance:
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


def _draw_similarity(sweep: Sweep) -> Figure:
    figure, (axes,) = plt.subplots(1, 2, figsize=(9, 4.4), squeeze=False, layout="constrained")
    for axis, kind in zip(axes, KINDS, strict=True):
        extent = (-PAPER - 0.5, PAPER + 0.5, PAPER + 0.5, -PAPER - 0.5)
        image = axis.imshow(sweep.similarity[kind], cmap="RdBu", vmin=-1, vmax=1, extent=extent)
        axis.set(title=f"{kind} table", xlabel="distance")
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_locator(MaxNLocator(9, integer=True))
    axes[0].set_ylabel("distance")
    figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    figure.suptitle(f"relative, k = {PAPER}, encoder, layer 1: cosines between rows")
    return figure
