"""Pictures of a learned table: the norm of each label's row, and the cosines between rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.nn import LabelTable
from relgraph.plot import _style
from relgraph.plot._by_label import draw_by_label, size_by_label
from relgraph.plot._names import Naming, naming
from relgraph.plot._weights import finite_values


def table_norms(table: Any, names: Sequence[Any] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the norm of every row of a table; for a bias table, whose rows are scalars, the scalars themselves.

    If names are distances (``"-3"``, ``"8..11"``, ``">=4"``) the picture is a line along them, with all other labels on
    its right; otherwise it has one bar per label. With rows per head, it shows a mark for each head and the mean.

    Args:
        table: a :class:`~relgraph.nn.LabelTable` with free rows, or the rows themselves: a Tensor ``[R, D]`` or
            ``[H, R, D]``, or ``[R]`` for a bias.
        names: one per label, by default the table's, or else the ids.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a table with a bank, which has no rows, rows of another shape or not finite, or not one name per
            label.

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
    if known.distances and not scalars:
        ax.set_ylim(bottom=0)
    return _style.inside(ax)


def table_similarity(  # noqa: D417
    table: Any, names: Sequence[Any] | None = None, *, head: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the cosine between every two rows of a table, on a scale from -1 to 1.

    Labels whose names are distances come first, ordered by distance; the rest follow in the order of their ids. A row
    that is zero has no direction and is hatched.

    Args:
        table: vectors; this and all further arguments as in :func:`~relgraph.plot.table_norms`.
        head: which head's rows, if the table has rows per head; by default the mean of all heads' cosines.

    Returns:
        The Axes.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: scalars, a table with a bank, a head that does not exist, rows of another shape or not finite, or
            not one name per label.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> ax = rg.plot.table_similarity(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
        >>> ax.images[0].get_array().tolist()
        [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]
        >>> plt.close()
    """
    rows, names, scalars = _rows(table, names)
    if scalars:
        raise ValueError("table must have vectors for rows, which have a direction, got scalars")
    if head is not None:
        if rows.ndim == 2:
            raise ValueError(f"head must be left out for rows that all heads share, got {head}")
        rows = rows[check.integer("head", head, minimum=0, maximum=rows.shape[0] - 1)]
    known = naming(names, rows.shape[-2])
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit = rows / np.where(norms > 0, norms, np.nan)  # the cosines of a row that is zero in any head are NaN
    cosines = np.clip(unit @ np.swapaxes(unit, -1, -2), -1, 1)
    cosines = (cosines if rows.ndim == 2 else cosines.mean(0))[np.ix_(known.order, known.order)]
    side = float(np.clip(0.3 * len(cosines), 2.6, 6.0))
    more = 0.0 if known.integers is not None and not known.rest else _style.margin(known.texts)
    ax = _style.axes_or_new(ax, side + 1.6 + more, side + 0.8 + more)
    _draw_cosines(ax, cosines, known)
    return _style.inside(ax)


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


def _draw_cosines(ax: Axes, cosines: np.ndarray, known: Naming) -> None:
    count, integers = len(cosines), known.integers if not known.rest else None
    low, high = (integers[0] - 0.5, integers[-1] + 0.5) if integers is not None else (-0.5, count - 0.5)
    ax.add_patch(Rectangle((low, low), count, count, zorder=0, **_style.HATCH))
    image = ax.imshow(
        np.ma.masked_invalid(cosines), cmap=_style.SIGNED, norm=Normalize(-1, 1), zorder=1, interpolation="nearest",
        extent=(low, high, high, low),
    )  # fmt: skip
    side = min(_style.room(ax))
    for which in ("x", "y"):
        if integers is not None and count > 12:
            axis = ax.xaxis if which == "x" else ax.yaxis
            axis.set_major_locator(_style.whole_numbers())
        else:
            _style.name_ticks(ax, which, integers or range(count), known.ordered_texts, side)
    words = "distance" if integers is not None else "label"
    ax.set(xlabel=words, ylabel=words)
    _style.colour_bar(ax, image, "cosine", ticks=[-1, -0.5, 0, 0.5, 1])
