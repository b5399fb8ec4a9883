"""Names are written as they are and in one line, long ones without their middle, in every picture."""

from __future__ import annotations

import torch

import relgraph as rg
from relgraph.plot._names import columns, longest, written


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


def test_labels_that_are_distances_besides_formulas():
    names = ["-1", "0", "1", "$x", "$\\frac$"]
    rows = torch.randn(5, 3)
    norms, mass = rg.plot.table_norms(rows, names), rg.plot.label_mass(torch.rand(2, 5), names, axes="HR")
    for ticks, ax in ((norms.get_yticklabels, norms), (mass.get_xticklabels, mass)):
        ax.figure.canvas.draw()
        assert [text.get_text() for text in ticks()][-2:] == ["$x", "$\\frac$"]


def test_a_colour_bar_of_many_names():
    names = [f"${n}$ \\frac" for n in range(20)]
    ax = rg.plot.label_matrix(rg.DenseLabels(torch.arange(20).repeat(20, 1), 20), names)
    ax.figure.canvas.draw()
    (bar,) = ax.child_axes
    assert bar.get_yticklabels()[0].get_text() == names[0]
