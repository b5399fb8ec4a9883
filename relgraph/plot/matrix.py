"""The label matrix: which label every pair of query and key carries, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Patch, Rectangle

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.labels import Labels
from relgraph.labels.base import NOT_ATTENDING, UNLABELED
from relgraph.labels.borders import graph_of
from relgraph.labels.pairs import Pairs
from relgraph.plot import _style
from relgraph.plot._colours import LEGEND_LINE, LabelColours, label_colours
from relgraph.plot._names import AS_IS, longest, naming, strings, written

GRID_UP_TO = 32
MOST_DRAWN = 1 << 28  # pairs, those of 16,384 queries and as many keys


def label_matrix(
    labels: Labels,
    names: Sequence[Any] | None = None,
    *,
    batch: int = 0,
    tokens: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw which label every pair carries: queries downward, keys to the right.

    Labels whose names are distances run from blue (negative) through pale yellow (0) to red. Up to a dozen other labels
    have separate colours, and an inverse has a lighter shade of its original; more share one colour map. A pair that
    attends without a label is white; a pair that does not attend is hatched. Of parallel edges the first counts. Large
    cells hold the name. The picture shows the borders of a packed batch. All N_q · N_k pairs are written out, at most
    2²⁸; the image's array holds their ids, -1 without a label, -2 if a pair does not attend.

    Args:
        labels: labels of any kind; of a sum one of its ``parts``.
        names: the labeler's ``names``, by default the ids.
        batch: which row of a padded batch to draw.
        tokens: a string per position, or an object for ``str``; if queries are not the keys, a tuple ``(query tokens,
            key tokens)``.
        ax: the Axes to draw on; a new figure by default.

    Returns:
        The Axes.

    Example:
        >>> from matplotlib import pyplot as plt
        >>> labeler = rg.ClippedDistance(1)
        >>> ax = rg.plot.label_matrix(labeler(3), labeler.names, tokens=["a", "b", "c"])
        >>> ax.images[0].get_array().tolist()
        [[1, 2, 2], [0, 1, 2], [0, 0, 1]]
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['-1', '0', '1']
        >>> plt.close()
    """
    one = read_labels(labels)
    check.integer("batch", batch, minimum=0, maximum=labels.batch_size - 1)
    assert isinstance(one.num_labels, int)
    if one.q_len == 0 or one.k_len == 0:
        raise ValueError(f"labels must cover at least one pair, got {one!r}")
    known, codes = naming(names, one.num_labels), codes_of(one, batch)  # [N_q, N_k]
    query_tokens, key_tokens = both_tokens(tokens, one.q_len, one.k_len)
    colours = label_colours(known, np.unique(codes[codes >= 0]).tolist(), ax)
    width, height = _size(one.q_len, one.k_len, colours)
    left, below = (_style.margin(side or ()) for side in (query_tokens, key_tokens))
    ax = _style.axes_or_new(ax, width + left, height + below)
    _draw_codes(ax, codes, colours)
    _draw_borders(ax, one)
    _write_cells(ax, codes, colours)
    pair_axes(ax, one.q_len, one.k_len, query_tokens, key_tokens)
    colours.explain(ax, _state_handles(codes))
    return ax


def read_labels(labels: Any) -> Labels:
    """Labels that are no sum, on the CPU."""
    if not isinstance(labels, Labels):
        raise TypeError(f"labels must be Labels, got {in_place_of_labels(labels)}")
    if len(labels._summands) > 1:
        raise TypeError("labels must not be a sum, which has several per pair: pass one of its .parts")
    check.not_meta("labels", labels)
    if labels.q_len * labels.k_len > MOST_DRAWN:
        raise ValueError(f"labels must be of at most {MOST_DRAWN:,} pairs to be drawn, got {labels!r}")
    return labels.to("cpu")


def codes_of(labels: Labels, batch: int) -> np.ndarray:
    """``[N_q, N_k]``: ids, -1 without a label, -2 if a pair does not attend; the first of parallel edges counts."""
    codes = torch.full((labels.q_len, labels.k_len), NOT_ATTENDING)
    within = torch.ones(labels.q_len, labels.k_len, dtype=torch.bool)
    if labels.q_ptr is not None and labels.k_ptr is not None:
        within = graph_of(labels.q_ptr, labels.q_len)[:, None] == graph_of(labels.k_ptr, labels.k_len)
    query, key = within.nonzero().unbind(1)
    codes[query, key] = labels._codes_at(Pairs(torch.full_like(query, batch), query, key))  # [pairs]
    return codes.numpy()


def both_tokens(tokens: Any, q_len: int, k_len: int) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The tokens of queries and of keys as a picture writes them, each as many as there are positions."""
    if tokens is None:
        return None, None
    if isinstance(tokens, tuple) and len(tokens) == 2 and all(isinstance(side, (tuple, list)) for side in tokens):
        sides = strings("tokens[0]", tokens[0]), strings("tokens[1]", tokens[1])
    else:
        sides = strings("tokens", tokens), strings("tokens", tokens)
    if (len(sides[0]), len(sides[1])) != (q_len, k_len):
        raise ValueError(
            f"tokens must be {q_len} of queries and {k_len} of keys, got {len(sides[0])} and {len(sides[1])}"
        )
    return tuple(map(written, sides[0])), tuple(map(written, sides[1]))


def pair_axes(ax: Axes, rows: int, columns: int, row_names: Any, column_names: Any) -> None:
    """Name the rows and the columns of a matrix of pairs."""
    width, height = _style.room(ax)
    if ax.get_aspect() == 1.0:
        width = height = min(width, height)
        width, height = width * min(columns / rows, 1.0), height * min(rows / columns, 1.0)
    for which, count, names, points in (("x", columns, column_names, width), ("y", rows, row_names, height)):
        _style.position_ticks(ax, which, count, names, points)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    if max(rows, columns) <= GRID_UP_TO:
        ax.set_xticks(np.arange(0.5, columns - 1), minor=True)
        ax.set_yticks(np.arange(0.5, rows - 1), minor=True)
        ax.grid(which="minor", color="#e8e8e8", linewidth=0.8)
        ax.tick_params(which="minor", length=0)


def matrix_aspect(rows: int, columns: int) -> Any:
    """Square cells, unless the matrix would be a narrow strip."""
    return "equal" if max(rows, columns) <= 4 * min(rows, columns) else "auto"


def matrix_side(rows: int, columns: int) -> tuple[float, float]:
    """Width and height in inches of a matrix with this many cells."""
    long = float(np.clip(0.44 * max(rows, columns), 2.6, 5.6))
    if matrix_aspect(rows, columns) == "auto":
        return (long, 2.2) if columns > rows else (2.2, long)
    return long * min(columns / rows, 1.0), long * min(rows / columns, 1.0)


def _size(rows: int, columns: int, colours: LabelColours) -> tuple[float, float]:
    width, height = matrix_side(rows, columns)
    texts = colours.naming.texts
    legend = 0.7 + 0.075 * max(longest([texts[label] for label in colours.swatches or colours.scale]), 12)
    columns = 1 + (72 * height * (0.6 if colours.scale else 1.0) < LEGEND_LINE * len(colours.swatches))
    return width + 0.8 + columns * legend, height + 0.9


def _draw_codes(ax: Axes, codes: np.ndarray, colours: LabelColours) -> None:
    rows, columns = codes.shape
    back = Rectangle((-0.5, -0.5), columns, rows, **_style.HATCH, zorder=0)
    ax.add_patch(back)
    states = np.array([[0, 0, 0, 0], [1, 1, 1, 1]])  # the hatched ground shows through pairs that do not attend
    shown = ListedColormap(np.concatenate([states, colours.colours]))
    ax.imshow(
        codes, cmap=shown, norm=Normalize(NOT_ATTENDING - 0.5, len(colours.colours) - 0.5), zorder=1,
        interpolation_stage="rgba", aspect=matrix_aspect(rows, columns),
    )  # fmt: skip


def _draw_borders(ax: Axes, labels: Labels) -> None:
    if labels.q_ptr is None or labels.k_ptr is None:
        return
    rows, columns = (pairwise(ptr.tolist()) for ptr in (labels.q_ptr, labels.k_ptr))
    for (top, bottom), (left, right) in zip(rows, columns, strict=True):
        frame = Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, fill=False, zorder=3)
        frame.set(edgecolor=_style.INK, linewidth=1.2)
        ax.add_patch(frame)


def _write_cells(ax: Axes, codes: np.ndarray, colours: LabelColours) -> None:
    """The name of the label in every cell, if there is room."""
    width, height = _style.room(ax)
    cell = min(width / codes.shape[1], height / codes.shape[0])
    texts = colours.naming.texts
    widest = max(longest([texts[label] for label in np.unique(codes[codes >= 0]).tolist()]), 1)
    size = min(8.0, cell / 2.0, 1.55 * cell / widest)
    if size < _style.SMALL:
        return
    for i, j in np.argwhere(codes >= 0).tolist():
        label = int(codes[i, j])
        ax.text(
            j, i, texts[label], ha="center", va="center", zorder=2, fontsize=size,
            color=_style.text_colour(colours.colours[label]), **AS_IS,
        )  # fmt: skip


def _state_handles(codes: np.ndarray) -> list[Any]:
    handles: list[Any] = []
    if (codes == UNLABELED).any():
        handles.append(Patch(facecolor=_style.NO_LABEL, edgecolor="#9a9a9a", linewidth=0.6, label="no label"))
    if (codes == NOT_ATTENDING).any():
        handles.append(Patch(**_style.HATCH, label="does not attend"))
    return handles
