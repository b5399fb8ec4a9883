"""One number per label: a line if labels are distances, otherwise bars; a mark for each head."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from relgraph.plot import _style
from relgraph.plot._names import AS_IS, Naming, longest

HEADS_NAMED = 8
MEAN = "mean of heads"


def size_by_label(known: Naming) -> tuple[float, float]:
    """Inches of a new figure."""
    if known.distances:
        return 6.4, 3.4 if not known.rest else 3.9
    return 4.6 + 0.08 * longest(known.texts), float(np.clip(0.9 + 0.21 * len(known.names), 2.0, 12.0))


def draw_by_label(ax: Axes, values: np.ndarray, known: Naming, quantity: str) -> None:
    """Draw values ``[R]``, or ``[H, R]`` with a mark for each head and their mean; ``quantity`` names the values."""
    by_head = values[:, list(known.order)] if values.ndim == 2 else None
    mean = (values.mean(0) if values.ndim == 2 else values)[list(known.order)]
    if known.distances:
        _draw_line(ax, mean, by_head, known)
        ax.set_ylabel(quantity)
    else:
        _draw_bars(ax, mean, by_head, known)
        ax.set_xlabel(quantity)
    ax.spines[["top", "right"]].set_visible(False)
    if by_head is not None:
        _name_heads(ax, by_head.shape[0])


def places(known: Naming) -> np.ndarray:
    """The position of each label of ``known.order``: its distance, or its rank; the rest after a gap."""
    numbers = known.integers
    first = np.array(numbers) if numbers is not None else np.arange(len(known.distances))
    return np.concatenate([first, first[-1] + 2 + np.arange(len(known.rest))])


def _draw_line(ax: Axes, mean: np.ndarray, by_head: np.ndarray | None, known: Naming) -> None:
    x, far = places(known), len(known.distances)
    ax.axvline(x[known.centre], color=_style.FAINT, linewidth=0.8, zorder=0)
    marker = "o" if len(x) <= 80 else ""
    if by_head is not None:
        for number, (row, colour) in enumerate(zip(by_head, _head_colours(len(by_head)), strict=True)):
            ax.plot(x[:far], row[:far], color=colour, linewidth=1.0, alpha=0.8, label=f"head {number}")
            ax.plot(x[far:], row[far:], ".", color=colour, alpha=0.8)
    colour = _style.LINE if by_head is None else _style.INK
    ax.plot(x[:far], mean[:far], marker=marker, markersize=3.5, color=colour, linewidth=1.8, label=MEAN, zorder=4)
    if known.rest:
        ax.plot(x[far:], mean[far:], "D", markersize=4.5, color=colour, zorder=4)
    _distance_ticks(ax, x, known)


def _distance_ticks(ax: Axes, x: np.ndarray, known: Naming) -> None:
    """Distances as numbers if all labels are integers; else names, some left out if they would overlap."""
    ax.set_xlabel("distance")
    ax.margins(x=0.02)
    if known.integers is not None and not known.rest:
        ax.xaxis.set_major_locator(_style.whole_numbers())
        return
    far, names = len(known.distances), known.ordered_texts
    fits = max(int(_style.room(ax)[0] / 14) - len(known.rest), 3)
    every = max(-(-far // fits), 1)
    shown = known.every(every)
    widest = longest([names[at] for at in shown])
    turn = 90 if widest * 5.5 * len(shown) > _style.room(ax)[0] else 0
    ax.set_xticks(x[shown], [names[at] for at in shown], rotation=turn, fontsize=8, **AS_IS)


def _draw_bars(ax: Axes, mean: np.ndarray, by_head: np.ndarray | None, known: Naming) -> None:
    y = np.arange(len(mean))
    ax.barh(y, mean, height=0.7, color=_style.lighter(_style.PALETTE[0], 0.35), label=None if by_head is None else MEAN)
    if by_head is not None:
        for number, (row, colour) in enumerate(zip(by_head, _head_colours(len(by_head)), strict=True)):
            ax.plot(row, y, "o", markersize=3.5, color=colour, markeredgewidth=0, label=f"head {number}")
    if mean.min() < 0:
        ax.axvline(0, color=_style.INK, linewidth=0.8)
    _style.name_ticks(ax, "y", y.tolist(), known.ordered_texts, _style.room(ax)[1])
    ax.set_ylim(len(mean) - 0.4, -0.6)
    ax.set_ylabel("label")


def _head_colours(heads: int) -> _style.Colours:
    return _style.PALETTE[1 : heads + 1] if heads <= HEADS_NAMED else _style.sampled(_style.MANY, heads, 0.0, 0.9)


def _name_heads(ax: Axes, heads: int) -> None:
    """A legend that names each of a few heads, and the first and last of many."""
    handles, texts = ax.get_legend_handles_labels()
    named = dict(zip(texts, handles, strict=True))
    listed = {f"head {head}" for head in (range(heads) if heads <= HEADS_NAMED else (0, heads - 1))} | {MEAN}
    chosen = {text: handle for text, handle in named.items() if text in listed}
    ax.legend(
        list(chosen.values()), list(chosen), loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0,
        frameon=False, fontsize=8,
    )  # fmt: skip
