"""Attention over a sequence of tokens: a matrix of all queries and keys, or bars for the keys of one query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from relgraph.plot import _style
from relgraph.plot._names import NODE, written
from relgraph.plot._weights import pair_weights, query_row
from relgraph.plot.matrix import both_tokens, matrix_aspect, matrix_side, pair_axes


def attention_tokens(
    weights: Any, tokens: Sequence[Any] | None, *, query: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw attention weights over tokens: a matrix of queries and keys, or one bar per key for one query.

    Args:
        weights: a Tensor ``[N_q, N_k]``, or ``[H, N_q, N_k]``, which is averaged over heads.
        tokens: as in :func:`~relgraph.plot.label_matrix`; None for numbers.
        query: draw only the attention of this position.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> weights = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> ax = rg.plot.attention_tokens(weights, ["to", "be"], query=1)
        >>> [float(bar.get_height()) for bar in ax.patches]
        [0.25, 0.75]
        >>> plt.close()
    """
    values = pair_weights(weights)
    rows, columns = values.shape
    query_tokens, key_tokens = both_tokens(tokens, rows, columns)
    query = query_row(query, rows)
    if query is not None:
        name = f"token {query}" if query_tokens is None else f"“{written(query_tokens[query], NODE)}” ({query})"
        return _bars(values[query], key_tokens, name, query if rows == columns else None, ax)
    width, height = matrix_side(rows, columns)
    left, below = (_style.margin(side or ()) for side in (query_tokens, key_tokens))
    ax = _style.axes_or_new(ax, width + 1.8 + left, height + 0.9 + below)
    norm = _style.from_zero(values)
    image = ax.imshow(values, cmap=_style.SHADES, norm=norm, aspect=matrix_aspect(rows, columns))
    pair_axes(ax, rows, columns, query_tokens, key_tokens)
    _style.colour_bar(ax, image, "attention")
    return ax


def _bars(values: np.ndarray, tokens: tuple[str, ...] | None, name: str, here: int | None, ax: Any) -> Axes:
    """A bar for each key, the query's own in another colour."""
    count = len(values)
    ax = _style.axes_or_new(ax, float(np.clip(0.32 * count + 1.2, 3.6, 11.0)), 2.8 + _style.margin(tokens or ()))
    bars = ax.bar(range(count), values, width=0.8 if count < 200 else 1.0, color=_style.LINE)
    if here is not None:
        bars[here].set_color(_style.HERE)
    _style.position_ticks(ax, "x", count, tokens, _style.room(ax)[0])
    _style.title(ax, f"attention of {name}")
    ax.set(xlabel="key", ylabel="attention", xlim=(-0.7, count - 0.3), ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    return ax
