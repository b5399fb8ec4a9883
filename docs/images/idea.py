"""Draws idea-edges.png and idea-tables.png: the labeled edges of a query, and the two vectors that each label owns."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

import relgraph as rg

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]
QUERY = 4
LABELER = rg.ClippedDistance(2)
COLORS = ["#0072b2", "#56b4e9", "#8c8c8c", "#e69f00", "#d55e00"]


def signed(name: str) -> str:
    """A distance with its sign."""
    return name if name == "0" else name.replace("-", "−") if name.startswith("-") else f"+{name}"


def draw_edges(ax: Axes) -> None:
    """The sentence, and an arc from every key to the query in the colour of its label."""
    ids = LABELER(len(WORDS)).to_dense()[0][0, QUERY].tolist()
    for key, label in enumerate(ids):
        bend = 0.42 if key < QUERY else -0.42
        start, end = (key, 0.28), (QUERY, 0.28)
        if key == QUERY:
            start, end, bend = (QUERY + 0.2, 0.26), (QUERY - 0.2, 0.26), -2.4
        arrow = FancyArrowPatch(
            start, end, connectionstyle=f"arc3,rad={-bend}", arrowstyle="-|>", mutation_scale=13, color=COLORS[label]
        )
        arrow.set_linewidth(2.2)
        ax.add_patch(arrow)
        name = LABELER.names[label]
        ax.text(
            key, -0.75, name if name.startswith("-") or name == "0" else f"+{name}", ha="center", color=COLORS[label]
        )
    for at, word in enumerate(WORDS):
        ax.text(at, 0, word, ha="center", va="center", fontsize=13, weight="bold" if at == QUERY else "normal")
    ax.text(-0.95, -0.75, "label", ha="center", color="#555555", fontsize=11)
    ax.text(3, 2.1, "the query looks at every key through a labeled edge", ha="center", color="#555555", fontsize=11)
    ax.set(xlim=(-1.4, 7.4), ylim=(-1.1, 2.5))
    ax.axis("off")


def draw_tables(ax: Axes) -> None:
    """A row per label, with its two vectors as strips of shades."""
    shades = torch.rand(2, LABELER.num_labels, 8, generator=torch.Generator().manual_seed(3))
    for row, name in enumerate(LABELER.names):
        y = LABELER.num_labels - 1 - row
        shown = f"≤ {signed(name)}" if row == 0 else f"≥ {signed(name)}" if y == 0 else signed(name)
        ax.text(-0.7, y + 0.4, shown, ha="right", va="center", color=COLORS[row], weight="bold")
        for table in range(2):
            for column in range(8):
                shade = 0.15 + 0.8 * shades[table, row, column].item()
                ax.add_patch(plt.Rectangle((table * 9.5 + column, y), 1, 0.8, color=COLORS[row], alpha=shade, lw=0))
    ax.text(4, 5.3, "$a^K$: added to the key", ha="center")
    ax.text(13.5, 5.3, "$a^V$: added to the value", ha="center")
    ax.set(xlim=(-3.4, 18), ylim=(-0.4, 6.2))
    ax.axis("off")


def main() -> None:
    """Draws both pictures, of one height, so that they stand side by side or one above the other."""
    for name, draw, width in (("edges", draw_edges, 5.4), ("tables", draw_tables, 4.8)):
        figure, ax = plt.subplots(figsize=(width, 3.0), dpi=150, layout="constrained", facecolor="white")
        draw(ax)
        figure.savefig(Path(__file__).with_name(f"idea-{name}.png"))
        plt.close(figure)


if __name__ == "__main__":
    main()
