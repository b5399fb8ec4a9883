"""Draws docs/images/learn/split_term.png: the two moves of the split term, a gather and a sum by label."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import relgraph as rg

LENGTH, CLIP, ROW = 7, 2, 3  # ROW is the query whose moves are outlined
RED = "#c03028"


def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids ``[N, N]``, B ``[N, R]``, its term ``[N, N]``, weights ``[N, N]`` and P ``[N, R]``."""
    torch.manual_seed(3)
    labeler = rg.ClippedDistance(CLIP)
    ids = labeler(LENGTH).to_dense()[0][0]
    query, key = torch.randn(2, LENGTH, 8)
    table = torch.randn(labeler.num_labels, 8)
    small = query @ table.T
    term = small.gather(1, ids)
    weights = ((query @ key.T + term) / 8**0.5).softmax(1)
    mass = torch.zeros(LENGTH, labeler.num_labels).scatter_add(1, ids, weights)
    return ids.numpy(), small.numpy(), term.numpy(), weights.numpy(), mass.numpy()


def matrix(axis: Axes, values: np.ndarray, title: str, columns: str, ticks: list[str], **options: object) -> None:
    """One matrix whose rows are the queries, with the outlined row."""
    axis.imshow(values, **options)  # pyright: ignore[reportArgumentType]
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(columns, fontsize=9)
    axis.set_xticks(range(len(ticks)), ticks, fontsize=8)
    axis.set_yticks([])
    axis.set_ylabel("query i", fontsize=9)
    box = plt.Rectangle((-0.5, ROW - 0.5), len(ticks), 1, fill=False, edgecolor=RED, linewidth=2, clip_on=False)
    axis.add_patch(box)


def write_ids(axis: Axes, ids: np.ndarray, values: np.ndarray, dark: float) -> None:
    """The label of every pair, on its cell; white where the cell's value is ``dark`` or more."""
    for (i, j), label in np.ndenumerate(ids):
        colour = "white" if abs(values[i, j]) >= dark else "0.25"
        axis.text(j, i, str(label), ha="center", va="center", fontsize=8, color=colour)


def arrow(figure: Figure, left: Axes, right: Axes, text: str) -> None:
    """An arrow between two panels, and what it does."""
    start, end = left.get_position().x1 + 0.012, right.get_position().x0 - 0.03
    height = (left.get_position().y0 + left.get_position().y1) / 2
    figure.text((start + end) / 2, height + 0.02, text, ha="center", va="bottom", fontsize=9, color=RED)
    figure.add_artist(FancyArrowPatch((start, height), (end, height), arrowstyle="-|>", mutation_scale=16, color=RED))


def main() -> None:
    """Draws the move of the score above, that of the output below."""
    ids, small, term, weights, mass = numbers()
    names = [str(label) for label in range(rg.ClippedDistance(CLIP).num_labels)]
    keys = [str(j) for j in range(LENGTH)]
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 8.2), dpi=110)
    figure.subplots_adjust(left=0.07, right=0.97, top=0.9, bottom=0.09, wspace=0.55, hspace=0.42)
    scores = {"cmap": "RdBu_r", "vmin": -8, "vmax": 8}
    matrix(axes[0, 0], small, "B = q · (a$^K$)$^T$:  n × R", "label id", names, **scores)
    matrix(axes[0, 1], term, "what a$^K$ adds to the scores:  n × n", "key j (numbers: label ids)", keys, **scores)
    matrix(
        axes[1, 0], weights, "attention α:  n × n", "key j (numbers: label ids)", keys, cmap="Greens", vmin=0, vmax=0.8
    )
    matrix(axes[1, 1], mass, "P, then P · a$^V$:  n × R", "label id", names, cmap="Greens", vmin=0, vmax=0.8)
    write_ids(axes[0, 1], ids, term, 4.5)
    write_ids(axes[1, 0], ids, weights, 0.5)
    figure.canvas.draw()
    arrow(figure, axes[0, 0], axes[0, 1], "gather\nB[i, ℓ(i, j)]")
    arrow(figure, axes[1, 0], axes[1, 1], "sum by label\nof each row")
    figure.suptitle("Forward: one gather and one sum. Backward does the same two, mirrored.", fontsize=12)
    figure.savefig(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
