"""Draws docs/images/learn/kinds.png: the four kinds of labels that carry one label per pair, over twelve positions."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

import relgraph as rg

LENGTH = 12
PTR = torch.tensor([0, 3, 8, 12])
COLOURS = plt.get_cmap("Set3")([0, 1, 2, 8, 4, 5, 6, 7, 3, 9, 10, 11])


def kinds() -> list[tuple[rg.Labels, str]]:
    """Labels, and what they hold."""
    ends = torch.tensor([[0, 2, 4, 5, 7, 8, 10, 1, 6], [1, 1, 3, 3, 6, 9, 9, 4, 11]])
    ids = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    blocks = rg.ShortestPath(3)(
        rg.Graph(torch.tensor([[0, 1, 3, 4, 5, 6, 8, 8], [1, 2, 4, 5, 6, 7, 9, 10]]), LENGTH, ptr=PTR)
    )
    return [
        (rg.ClippedDistance(3)(LENGTH), "a lookup of 7 ids"),
        (rg.EdgeLabels(ends, ids, 4, q_len=LENGTH, default=3), "9 edges, and id 3 for all others"),
        (rg.EdgeLabels(ends, ids, 3, q_len=LENGTH), "9 edges; the others do not attend"),
        (blocks, "3 blocks: 9 + 25 + 16 ids"),
    ]


def panel(axis: Axes, labels: rg.Labels, caption: str) -> None:
    """One label matrix: a colour an id, hatched where a pair does not attend."""
    ids, attend = (x[0].numpy() for x in labels.to_dense())
    axis.imshow(np.where(attend[..., None], COLOURS[ids % 12], 1.0))
    for i, j in zip(*np.nonzero(~attend), strict=True):
        axis.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="////", edgecolor="0.8", linewidth=0))
    for (i, j), label in np.ndenumerate(ids):
        if attend[i, j]:
            axis.text(j, i, str(label), ha="center", va="center", fontsize=8)
    axis.set_title(type(labels).__name__, fontsize=11, family="monospace", pad=8)
    axis.set_xlabel(f"key j\n{caption}", fontsize=10)
    axis.set_ylabel("query i", fontsize=9)
    axis.set_xticks([])
    axis.set_yticks([])


def main() -> None:
    """Draws two rows of two panels."""
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 9), dpi=110, constrained_layout=True)
    for axis, (labels, caption) in zip(axes.flat, kinds(), strict=True):
        panel(axis, labels, caption)
    figure.get_layout_engine().set(h_pad=0.12)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    figure.savefig(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
