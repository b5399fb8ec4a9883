"""One number per label, such as the norms of a table: a line if all labels are distances, otherwise bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor, nn

from relgraph.nn import LabelTable
from relgraph.plot import _style
from relgraph.plot._names import AS_IS, Naming, longest, naming
from relgraph.plot._weights import finite_values

HEADS_NAMED = 8
MEAN = "mean of heads"


def table_norms(table: Any, names: Sequence[Any] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the norm of every row of a table; for a bias table, whose rows are scalars, the scalars themselves.

    If all names are distances (``"-3"``, ``"8..11"``, ``">=4"``) the picture is a line along them; otherwise it has a
    bar for each label. With rows per head, it shows a mark for each head and the mean.

    Args:
        table: a :class:`~relgraph.nn.LabelTable` with free rows, or the rows themselves: a Tensor ``[R, D]`` or
            ``[H, R, D]``, or ``[R]`` for a bias.
        names: one per label, by default the table's, or else the ids.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> rows = torch.tensor([[0.0, 1.0], [3.0, 4.0], [2.0, 0.0]])
        >>> ax = rg.plot.table_norms(rows, rg.ClippedDistance(1).names)
        >>> ax.lines[1].get_xdata().tolist(), ax.lines[1].get_ydata().tolist()
        ([-1, 0, 1], [1.0, 5.0, 2.0])
        >>> plt.close()
    """
    rows, names, scalars = _rows(table, names)
    known = naming(names, rows.shape[-1] if scalars else rows.shape[-2])
    values = rows if scalars else np.linalg.norm(rows, axis=-1)
    ax = _style.axes_or_new(ax, *size_by_label(known))
    draw_by_label(ax, values, known, "bias" if scalars else "norm of the row")
    if known.only_distances and not scalars:
        ax.set_ylim(bottom=0)
    return ax


def _rows(table: Any, names: Any) -> tuple[np.ndarray, Any, bool]:
    """The rows, their names, and whether they are scalars."""
    if isinstance(table, nn.ModuleList):
        raise TypeError(f"table must be that of one part of a sum: index a part, 0 to {len(table) - 1}")
    if not isinstance(table, (LabelTable, Tensor)):
        raise TypeError(f"table must be a LabelTable or a Tensor, got {type(table).__name__}")
    own = isinstance(table, LabelTable)
    if own and table.bank is not None:
        raise ValueError("table must have rows of its own, got one with a bank: call it and give the rows")
    rows = finite_values("table", table() if own else table, (1, 2, 3), "[R, D], [H, R, D] or [R]")
    names = table.names if own and names is None else names
    return rows, names, table.dim is None if own else rows.ndim == 1


def size_by_label(known: Naming) -> tuple[float, float]:
    """Inches of a new figure."""
    if known.only_distances:
        return 6.4, 3.4
    return 4.6 + 0.08 * longest(known.texts), float(np.clip(0.9 + 0.21 * len(known.names), 2.0, 12.0))


def draw_by_label(ax: Axes, values: np.ndarray, known: Naming, quantity: str) -> None:
    """Draw values ``[R]``, or ``[H, R]`` with a mark for each head and their mean; ``quantity`` names the values."""
    by_head = values[:, list(known.order)] if values.ndim == 2 else None
    mean = (values.mean(0) if values.ndim == 2 else values)[list(known.order)]
    if known.only_distances:
        _draw_line(ax, mean, by_head, known)
        ax.set_ylabel(quantity)
    else:
        _draw_bars(ax, mean, by_head, known)
        ax.set_xlabel(quantity)
    ax.spines[["top", "right"]].set_visible(False)
    if by_head is not None:
        _style.legend_beside(ax, ax.get_legend_handles_labels()[0])


def _draw_line(ax: Axes, mean: np.ndarray, by_head: np.ndarray | None, known: Naming) -> None:
    x = np.array(known.integers) if known.integers is not None else np.arange(len(mean))
    ax.axvline(x[known.centre], color=_style.FAINT, linewidth=0.8, zorder=0)
    if by_head is not None:
        for row, colour, name in _heads(by_head):
            ax.plot(x, row, color=colour, linewidth=1.0, alpha=0.8, label=name)
    colour, marker = _style.LINE if by_head is None else _style.INK, "o" if len(x) <= 80 else ""
    ax.plot(x, mean, marker=marker, markersize=3.5, color=colour, linewidth=1.8, label=MEAN, zorder=4)
    ax.set_xlabel("distance")
    ax.margins(x=0.02)
    if known.integers is not None:
        ax.xaxis.set_major_locator(_style.whole_numbers())
    else:
        label_ticks(ax, known, x)


def label_ticks(ax: Axes, known: Naming, x: np.ndarray) -> None:
    """The name of every label at its place ``x``, or of as many distances as fit, 0 among them."""
    texts, far, width = known.ordered_texts, len(known.distances), _style.room(ax)[0]
    if not far:
        _style.name_ticks(ax, "x", x.tolist(), texts, width)
        return
    each = 14 if known.integers is None else 6 + 6 * longest(texts[:far])
    every = max(int(np.ceil(each * far / max(width - 14 * len(known.rest), 3 * each))), 1)
    shown = [at for at in range(len(texts)) if at >= far or (at - known.centre) % every == 0]
    turn = 90 if longest([texts[at] for at in shown]) * 5.5 * len(shown) > width else 0
    ax.set_xticks(x[shown], [texts[at] for at in shown], rotation=turn, fontsize=8, **AS_IS)


def _draw_bars(ax: Axes, mean: np.ndarray, by_head: np.ndarray | None, known: Naming) -> None:
    y = np.arange(len(mean))
    ax.barh(y, mean, height=0.7, color=_style.BARS, label=None if by_head is None else MEAN)
    if by_head is not None:
        for row, colour, name in _heads(by_head):
            ax.plot(row, y, "o", markersize=3.5, color=colour, markeredgewidth=0, label=name)
    if mean.min() < 0:
        ax.axvline(0, color=_style.INK, linewidth=0.8)
    _style.name_ticks(ax, "y", y.tolist(), known.ordered_texts, _style.room(ax)[1])
    ax.set_ylim(len(mean) - 0.4, -0.6)
    ax.set_ylabel("label")


def _heads(by_head: np.ndarray) -> Iterator[tuple[np.ndarray, Any, str]]:
    """The values, colour and legend of each head; a few heads are all named, of many the first and the last."""
    count = len(by_head)
    colours = _style.HEADS[:count] if count <= HEADS_NAMED else _style.sampled(_style.MANY, count, 0.9)
    for number, (row, colour) in enumerate(zip(by_head, colours, strict=True)):
        named = count <= HEADS_NAMED or number in (0, count - 1)
        yield row, colour, f"{'' if named else '_'}head {number}"  # matplotlib leaves out what begins with _
