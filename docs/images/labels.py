"""Draws docs/images/labels.png: what a label matrix is, for three labelings of the same seven words."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import relgraph as rg

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]
HEADS = [(0, 1, 0), (4, 1, 1), (6, 1, 1), (2, 4, 2), (3, 4, 3), (5, 6, 2)]  # (word, head, relation)
RELATIONS = ["nsubj", "obj", "det", "amod"]


def labelings() -> list[tuple[str, rg.Labels, str]]:
    """Title, labels and caption of each panel."""
    clipped = rg.ClippedDistance(2)
    distance = clipped(len(WORDS))
    down = torch.tensor([[word, head] for word, head, _ in HEADS]).T  # key: the dependent, query: its head
    index = torch.cat([down, down.flip(0)], 1)
    relation = torch.tensor([r for *_, r in HEADS])
    ids = torch.cat([relation, relation + len(RELATIONS)])
    tree = rg.EdgeLabels(index, ids, 2 * len(RELATIONS), q_len=len(WORDS), default=-1)
    both = rg.labels.first_of(tree, distance)
    return [
        ("ClippedDistance(2)", distance, "label = clip(j − i, ±2): a band and two uniform regions"),
        ("EdgeLabels(tree, default=-1)", tree, "label = dependency relation and direction; white: no label"),
        ("tree | ClippedDistance(2)", both, "the tree where it speaks, distance everywhere else"),
    ]


def main() -> None:
    """Draws the three panels side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.6), dpi=110, constrained_layout=True)
    for axis, (title, labels, caption) in zip(axes, labelings(), strict=True):
        ids = labels.to_dense()[0][0].numpy()
        colours = plt.get_cmap("tab20")(np.arange(20))
        image = np.where(ids[..., None] >= 0, colours[ids % 20], 1.0)
        axis.imshow(image)
        for i in range(len(WORDS)):
            for j in range(len(WORDS)):
                if ids[i, j] >= 0:
                    axis.text(j, i, str(ids[i, j]), ha="center", va="center", fontsize=8)
        axis.set_title(title, fontsize=11, family="monospace")
        axis.set_xticks(range(len(WORDS)), WORDS, rotation=45)
        axis.set_yticks(range(len(WORDS)), WORDS)
        axis.set_xlabel(f"key j (looked at)\n\n{caption}", fontsize=9)
        axis.set_ylabel("query i (receives)", fontsize=9)
        axis.set_xticks(np.arange(-0.5, len(WORDS)), minor=True)
        axis.set_yticks(np.arange(-0.5, len(WORDS)), minor=True)
        axis.grid(which="minor", color="0.85", linewidth=0.8)
        axis.tick_params(which="minor", length=0)
    figure.savefig(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
