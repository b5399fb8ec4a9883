"""Norms and cosines that are drawn are those of the rows, in the order of distances, under the labels' names."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import relgraph as rg

NAMES = ("self", "parent", "child")


def ticks(ax, which):
    return [text.get_text() for text in getattr(ax, f"get_{which}ticklabels")()]


def mean_line(ax):
    """The line of norms: the first is the mark at distance 0."""
    return next(line for line in ax.lines if line.get_label() == "mean of heads")


def test_norms_of_distances_stand_at_their_distance():
    rows = torch.randn(5, 3, requires_grad=True)
    line = mean_line(rg.plot.table_norms(rows, rg.ClippedDistance(2).names))
    assert line.get_xdata().tolist() == [-2, -1, 0, 1, 2]
    np.testing.assert_allclose(line.get_ydata(), rows.detach().norm(dim=-1).double(), rtol=1e-6)
    assert line.axes.get_xlabel() == "distance" and line.axes.get_ylabel() == "norm of the row"
    assert line.axes.get_ylim()[0] == 0


def test_norms_of_other_labels_are_bars_with_names():
    table = rg.nn.LabelTable(3, 4, names=NAMES)
    ax = rg.plot.table_norms(table)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table().detach().norm(dim=-1), rtol=1e-6)
    assert ticks(ax, "y") == list(NAMES) and ax.get_xlabel() == "norm of the row"
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ticks(rg.plot.table_norms(table, ["a", "b", "c"]), "y") == ["a", "b", "c"]
    assert ticks(rg.plot.table_norms(table().detach()), "y") == ["0", "1", "2"]


def test_rows_of_each_head_have_a_mark_beside_the_mean():
    rows = torch.randn(2, 3, 4, dtype=torch.float64)
    norms = rows.norm(dim=-1)
    ax = rg.plot.table_norms(rows, NAMES)
    for line, row in zip(ax.lines, norms, strict=True):
        np.testing.assert_allclose(line.get_xdata(), row)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], norms.mean(0))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["head 0", "head 1", "mean of heads"]
    ax = rg.plot.table_norms(rows, rg.ClippedDistance(1).names)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(lines["head 1"].get_ydata(), norms[1])
    np.testing.assert_allclose(lines["mean of heads"].get_ydata(), norms.mean(0))


def test_of_many_heads_the_first_and_the_last_are_named():
    ax = rg.plot.table_norms(torch.randn(12, 3, 2), rg.ClippedDistance(1).names)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["head 0", "head 11", "mean of heads"]


def test_labels_beside_distances_make_bars():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(1)
    rows = torch.tensor([[7.0], [1.0], [2.0], [3.0]], dtype=torch.bfloat16)
    ax = rg.plot.table_norms(rows, labeler.names)
    assert [bar.get_width() for bar in ax.patches] == [1, 2, 3, 7] and ticks(ax, "y") == ["-1", "0", "1", "bond"]


def test_buckets_stand_in_their_order():
    ax = rg.plot.table_norms(torch.tensor([[4.0], [5.0], [3.0]]), [">=2", "0..1", "<0"])
    line = mean_line(ax)
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0, 1, 2], [3, 5, 4])
    assert ticks(ax, "x") == ["<0", "0..1", ">=2"]


def test_a_bias_is_drawn_as_it_is():
    table = rg.nn.LabelTable(3, None, names=NAMES, heads=2)
    nn.init.normal_(table.rows)
    ax = rg.plot.table_norms(table)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table().detach().mean(0), rtol=1e-5)
    assert ax.get_xlabel() == "bias"
    line = mean_line(rg.plot.table_norms(torch.tensor([1.0, -2.0, 3.0]), rg.ClippedDistance(1).names))
    assert line.get_ydata().tolist() == [1, -2, 3] and line.axes.get_ylim()[0] < -2
