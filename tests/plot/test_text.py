"""Names are written as they are and in one line, long ones without their middle, in every picture."""

from __future__ import annotations

import pytest
import torch
from matplotlib.text import Text

import relgraph as rg
from relgraph.plot._text import columns, longest, written

FORMULAS = ["$x", "=", "$\\frac$"]
LONG = [f"a name that has got some sixty characters, of which {n} is one" for n in range(12)]
PATH = rg.Graph.from_parents(torch.tensor([-1, 0, 0]))
CHAIN = rg.Graph.from_parents(torch.tensor([-1, *[n // 2 for n in range(11)]]))


def test_what_is_too_long_loses_its_middle():
    assert written("a" * 20 + "b" * 12) == "a" * 20 + "b" * 12
    assert written("a" * 20 + "b" * 13) == "a" * 16 + "…" + "a" * 2 + "b" * 13
    assert written("0123456789abcdefg", 16) == "01234567…abcdefg"
    assert len(written("x" * 100)) == 32 and len(written("x" * 100, 16)) == 16


def test_control_characters_are_escapes():
    assert written("a\nb\tc\0") == "a\\nb\\tc\\x00"
    assert written("\u2028\ud800é漢 ") == "\\u2028\\ud800é漢 "


def test_letters_of_east_asian_scripts_are_wide():
    assert columns("ab") == 2 and columns("漢字") == 4
    assert longest(["abc", "漢字"]) == 4 and longest([]) == 0


def draw_all(names, graph):
    """Each picture with the names wherever it takes names."""
    count = len(names)
    weights, rows = torch.rand(count, count), torch.randn(count, 4)
    labels = rg.DenseLabels(torch.arange(count).repeat(count, 1), count)
    plot = rg.plot
    yield lambda: plot.label_matrix(labels, names, tokens=names)
    yield lambda: plot.table_norms(rows, names)
    yield lambda: plot.table_norms(rows[None].expand(2, -1, -1), names)
    yield lambda: plot.table_similarity(rows, names)
    yield lambda: plot.label_mass(torch.rand(count), names)
    yield lambda: plot.label_mass(torch.rand(4, count), names, axes="HR")
    yield lambda: plot.attention_tokens(weights, names)
    yield lambda: plot.attention_tokens(weights, names, query=count - 1)
    yield lambda: plot.attention_tree(weights, graph, query=count - 1, node_names=names)
    yield lambda: plot.attention_graph(weights, graph, query=count - 1, node_names=names, labels=labels, names=names)


@pytest.mark.parametrize("number", range(10))
def test_dollars_are_dollars(number):
    ax = list(draw_all(FORMULAS, PATH))[number]()
    ax.figure.canvas.draw()
    named = [text for text in ax.figure.findobj(Text) if "$" in text.get_text()]
    assert named and not any(text.get_parse_math() for text in named)


@pytest.mark.parametrize("number", range(10))
def test_long_names_leave_room_for_the_picture(number):
    ax = list(draw_all(LONG, CHAIN))[number]()
    ax.figure.canvas.draw()  # a layout that gives up warns
    inside, box, whole = ax.get_window_extent(), ax.get_tightbbox(), ax.figure.bbox
    assert inside.width > 0.25 * whole.width and inside.height > 0.25 * whole.height
    assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1


def test_labels_that_are_distances_besides_formulas():
    names = ["-1", "0", "1", "$x", "$\\frac$"]
    rows = torch.randn(5, 3)
    for ax in (rg.plot.table_norms(rows, names), rg.plot.label_mass(torch.rand(2, 5), names, axes="HR")):
        ax.figure.canvas.draw()
        assert [text.get_text() for text in ax.get_xticklabels()][-2:] == ["$x", "$\\frac$"]


def test_a_colour_bar_of_many_names():
    names = [f"${n}$ \\frac" for n in range(20)]
    ax = rg.plot.label_matrix(rg.DenseLabels(torch.arange(20).repeat(20, 1), 20), names)
    ax.figure.canvas.draw()
    (bar,) = ax.child_axes
    assert bar.get_yticklabels()[0].get_text() == names[0]
