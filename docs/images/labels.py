"""Draws docs/images/labels.png: what a label matrix is, for three labelings of the same seven words."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

import relgraph as rg

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]
HEADS = torch.tensor([1, -1, 4, 4, 1, 6, 1])
RELATIONS = ["subject", "object", "det", "adj"]
RELATION = torch.tensor([0, 0, 2, 3, 1, 2, 1])  # of each word to its head

DISTANCE = rg.ClippedDistance(2)
TREE = rg.EdgeType(RELATIONS, inverse=True, attend="all")
LABELERS = {
    "Distance": DISTANCE,
    "Dependency tree": TREE,
    "Tree, else distance": TREE | DISTANCE,
}


def main() -> None:
    """Draw the three panels side by side."""
    figure = Figure(figsize=(15, 4.5), dpi=110, layout="constrained")
    sentence = rg.Graph.from_parents(HEADS, edge_type=RELATION)
    for axis, (title, labeler) in zip(figure.subplots(1, 3), LABELERS.items(), strict=True):
        rg.plot.label_matrix(labeler(sentence), labeler.names, tokens=WORDS, ax=axis)
        axis.set_title(title, fontsize=13)
    figure.savefig(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
