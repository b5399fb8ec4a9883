"""Pictures in Axes of one's own: nothing is cut, and a figure's layout is left alone."""

from __future__ import annotations

import pytest
import torch
from matplotlib import pyplot as plt

import relgraph as rg

DRAWN = {
    "graph": lambda ax: rg.plot.attention_graph(torch.eye(5), TREE, ax=ax),
    "tree": lambda ax: rg.plot.attention_tree(torch.eye(5), TREE, ax=ax),
    "mass": lambda ax: rg.plot.label_mass(torch.full((2, 4, 9), 1 / 9), axes="LHR", ax=ax),
    "long names": lambda ax: rg.plot.label_mass(torch.full((4, 3), 1 / 3), LONG, axes="HR", ax=ax),
    "norms": lambda ax: rg.plot.table_norms(torch.ones(2, 8), ("a", "an ever so long name of a label"), ax=ax),
}
LONG = ("unreachable from here", "an ever so long name", "and another such name")
TREE = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 1, 1]))


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_nothing_is_cut_in_plain_subplots(draw):
    figure, ax = plt.subplots()
    draw(ax)
    figure.canvas.draw()
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert drawn.x0 > -0.05 and drawn.x1 < width + 0.05
    assert drawn.y0 > -0.05 and drawn.y1 < height + 0.05


def test_axes_of_a_figure_with_a_layout_are_left_to_it():
    _, ax = plt.subplots(layout="constrained")
    before = ax.get_position().bounds
    rg.plot.label_mass(torch.full((2, 4, 9), 1 / 9), axes="LHR", ax=ax)
    assert ax.get_position().bounds == before


def test_axes_among_others_are_left_where_they_are():
    figure, (left, _) = plt.subplots(1, 2)
    before = left.get_position().bounds
    rg.plot.label_mass(torch.full((2, 4, 9), 1 / 9), axes="LHR", ax=left)
    assert left.get_position().bounds == before
    figure.set_layout_engine("constrained")
    figure.canvas.draw()
    assert left.get_position().bounds != before
