"""Code that all pictures share: colours for colour-blind readers, new Axes, ticks that fit, colour bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.ticker import MaxNLocator

from relgraph.plot._names import AS_IS, longest

Colours = np.ndarray  # [n, 4], floats from 0 to 1
# Okabe and Ito's colours for colour-blind readers, then dark ones of Paul Tol's.
HEADS = to_rgba_array(["#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#DDCC77", "#332288", "#882255"])
# None of the blues, yellows and reds that distances have.
LABELS = ["#009e73", "#aa4499", "#999933", "#222222", "#882255", "#44aa99"]
LABELS += ["#661100", "#cc79a7", "#117733", "#332288", "#7f7f7f", "#b2df8a"]
DISTANCES, MANY, SHADES = "RdYlBu_r", "viridis", "Blues"
NO_LABEL, NOT_ATTENDING, INK, FAINT = "#ffffff", "#ececec", "#222222", "#b8b8b8"
LINE, BARS, HERE, ARROW, PLAIN = "#0072B2", "#59a3cd", "#D55E00", "#D55E00", "#8c8c8c"
HATCH: dict[str, Any] = {"facecolor": NOT_ATTENDING, "edgecolor": "#bdbdbd", "hatch": "////", "linewidth": 0.0}
SMALL, LARGE = 5.0, 9.0  # font sizes of ticks, in points


def axes_or_new(ax: Any, width: float, height: float) -> Axes:
    """``ax`` if it is given; else the Axes of a new figure of this size in inches."""
    if ax is None:
        return plt.subplots(figsize=(width, height), layout="compressed")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be matplotlib Axes, got {type(ax).__name__}")
    return ax


def room(ax: Axes) -> tuple[float, float]:
    """About how wide and high the Axes will be, in points; ticks and legends take up the room that a layout adds."""
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi
    return box.width * points, box.height * points


def sampled(name: str, count: int, end: float = 1.0) -> Colours:
    """A number of colours of a colour map, evenly spaced from its begin to a place on it."""
    return colormaps[name](np.linspace(0.0, end, count) if count > 1 else np.array([end / 2]))


def lighter(colours: Colours) -> Colours:
    """The colours mixed with white."""
    return np.concatenate([colours[..., :3] * 0.45 + 0.55, colours[..., 3:]], -1)


def from_zero(values: np.ndarray) -> Normalize:
    """A scale from 0 to the largest number, or to 1 if all are 0."""
    return Normalize(0, float(values.max()) or 1.0)


def margin(texts: Sequence[str]) -> float:
    """Inches that long names at an axis need beyond the room that every figure has."""
    return max(0.075 * longest(texts) - 0.5, 0.0)


def title(ax: Axes, text: str, pad: float = 6.0) -> None:
    """A title ``pad`` points above the Axes, in the font size of the names at the axes."""
    ax.set_title(text, fontsize=LARGE, pad=pad, **(AS_IS if "$" in text else {}))  # it stays with a later title


def text_colour(background: Any) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = background[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def name_ticks(ax: Axes, which: str, places: Sequence[float], names: Sequence[str], points: float) -> None:
    """Names at ticks of an axis of this length in points, sized not to overlap; only every n-th if all do not fit."""
    count = max(len(names), 1)
    each = points / count
    flat = which == "y" or longest(names) * 0.62 * LARGE < 0.9 * each
    size = float(np.clip(each / 1.2, SMALL, LARGE))
    every = 1 if each >= 1.1 * SMALL else int(np.ceil(1.3 * LARGE / each))
    size = LARGE if every > 1 else size
    shown = range(0, len(names), every)
    turn: dict[str, Any] = {}
    if not flat:
        turn = {"rotation": 90} if count > 14 else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_ticks([places[at] for at in shown], labels=[names[at] for at in shown], fontsize=size, **turn, **AS_IS)


def position_ticks(ax: Axes, which: str, count: int, names: Sequence[str] | None, points: float) -> None:
    """Names at the positions of one axis; without names integers, all of a few positions, else round numbers."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    if names is not None:
        name_ticks(ax, which, range(count), names, points)
    elif count <= 12:
        axis.set_ticks(range(count))
    else:
        axis.set_major_locator(whole_numbers())


def whole_numbers() -> MaxNLocator:
    """Ticks at round integers."""
    return MaxNLocator(nbins=9, integer=True, steps=[1, 2, 4, 5, 8, 10])


def colour_bar(ax: Axes, mappable: ScalarMappable, title: str, top: float = 1.0) -> Colorbar:
    """A colour bar to the right of the Axes, ``top`` times as high."""
    width = 9 / max(room(ax)[0], 60)
    inset = ax.inset_axes((1 + 1.2 * width, 0.0, width, top))
    bar = ax.figure.colorbar(mappable, cax=inset)
    bar.set_label(title, fontsize=LARGE)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def legend_beside(ax: Axes, handles: Sequence[Any], columns: int = 1) -> None:
    """A legend at the right of the Axes, at the top."""
    legend = ax.legend(
        handles=list(handles), loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, frameon=False,
        fontsize=8, ncols=columns, handlelength=1.4, handleheight=1.2, columnspacing=1.0, labelspacing=0.35,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**AS_IS)
