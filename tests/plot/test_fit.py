"""Pictures fit: in a new figure or in given Axes, with many names or long ones, nothing is cut."""

from __future__ import annotations

import itertools

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.text import Text

import relgraph as rg
from relgraph import plot

DRAWN = {
    "matrix": lambda names, ax: plot.label_matrix(labels(names), names, tokens=names, ax=ax),
    "norms": lambda names, ax: plot.table_norms(torch.randn(len(names), 4), names, ax=ax),
    "norms of heads": lambda names, ax: plot.table_norms(torch.randn(2, len(names), 4), names, ax=ax),
    "mass": lambda names, ax: plot.label_mass(torch.rand(len(names)), names, ax=ax),
    "mass of layers": lambda names, ax: plot.label_mass(torch.rand(6, 8, len(names)), names, axes="LHR", ax=ax),
    "tokens": lambda names, ax: plot.attention_tokens(weights(names), names, ax=ax),
    "bars": lambda names, ax: plot.attention_tokens(weights(names), names, query=1, ax=ax),
    "tree": lambda names, ax: plot.attention_graph(
        weights(names), tree(names), query=1, pos="tree", node_names=names, ax=ax
    ),
    "graph": lambda names, ax: plot.attention_graph(
        weights(names), tree(names), query=1, node_names=names, labels=labels(names), names=names, ax=ax
    ),
}
NAMES = {
    "formulas": ["$x", "=", "$\\frac$"],
    "long": [f"a name that has got some sixty characters, of which {n} is one" for n in range(12)],
    "many": [f"word{n}" for n in range(60)],
}


def labels(names):
    return rg.DenseLabels(torch.arange(len(names)).repeat(len(names), 1), len(names))


def weights(names):
    return torch.rand(len(names), len(names))


def tree(names):
    return rg.Graph.from_parents(torch.tensor([-1, *[n // 3 for n in range(len(names) - 1)]]))


def assert_fits(ax, least=0.25):
    ax.figure.canvas.draw()  # a layout that gives up warns
    inside, box, whole = ax.get_window_extent(), ax.get_tightbbox(), ax.figure.bbox
    assert inside.width > least * whole.width and inside.height > least * whole.height
    assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_new_figure(draw, names):
    """The picture has room next to its names, which are not formulas and do not overlap."""
    ax = draw(names, None)
    assert_fits(ax)
    shown = [text for text in ax.figure.findobj(Text) if "$" in text.get_text()]
    assert not any(text.get_parse_math() for text in shown) and (shown or "$x" not in names)
    boxes = [text.get_window_extent() for text in ax.get_xticklabels() if text.get_rotation() in (0, 90)]
    assert not any(a.x1 > b.x0 + 1 for a, b in itertools.pairwise(boxes))


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_given_axes(draw):
    figure, ax = plt.subplots(layout="compressed")
    assert draw(["a", "an ever so long name", "and another one"], ax) is ax
    assert plt.get_fignums() == [figure.number]
    assert_fits(ax)


def test_six_hundred_tokens_and_a_single_node():
    assert_fits(plot.attention_tokens(torch.rand(600, 600), [f"token{n}" for n in range(600)]))
    one = rg.Graph(torch.zeros(2, 0, dtype=torch.int64), 1)
    for pos in (None, "tree"):
        assert_fits(plot.attention_graph(torch.ones(1, 1), one, pos=pos, node_names=["node"]))
