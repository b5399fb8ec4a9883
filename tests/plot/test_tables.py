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


def test_labels_beside_distances_stand_at_their_right():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(1)
    rows = torch.tensor([[7.0], [1.0], [2.0], [3.0]], dtype=torch.bfloat16)
    ax = rg.plot.table_norms(rows, labeler.names)
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines[1:]]
    assert drawn == [([-1, 0, 1], [1, 2, 3]), ([3], [7])]
    assert ticks(ax, "x") == ["-1", "0", "1", "bond"]


def test_buckets_stand_in_their_order():
    labeler = rg.BucketedDistance(8, 20)
    ax = rg.plot.table_norms(torch.arange(1.0, 9.0)[:, None], labeler.names)
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines[1:]]
    assert drawn == [([0, 1, 2, 3, 4, 5, 6], [4, 3, 2, 1, 6, 7, 8]), ([8], [5])]


def test_a_bias_is_drawn_as_it_is():
    table = rg.nn.LabelTable(3, None, names=NAMES, heads=2)
    nn.init.normal_(table.rows)
    ax = rg.plot.table_norms(table)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table().detach().mean(0), rtol=1e-5)
    assert ax.get_xlabel() == "bias"
    line = mean_line(rg.plot.table_norms(torch.tensor([1.0, -2.0, 3.0]), rg.ClippedDistance(1).names))
    assert line.get_ydata().tolist() == [1, -2, 3] and line.axes.get_ylim()[0] < -2


def test_similarities_are_cosines():
    rows = torch.randn(5, 4, dtype=torch.float64)
    ax = rg.plot.table_similarity(rows, rg.ClippedDistance(2).names)
    unit = nn.functional.normalize(rows, dim=-1)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), unit @ unit.T, atol=1e-12)
    assert ax.images[0].get_clim() == (-1, 1)
    assert ax.images[0].get_extent() == [-2.5, 2.5, 2.5, -2.5]
    assert ticks(ax, "x") == ticks(ax, "y") == ["-2", "-1", "0", "1", "2"]
    (bar,) = ax.child_axes
    assert bar.get_ylabel() == "cosine"


def test_similarities_of_buckets_stand_in_their_order():
    labeler = rg.BucketedDistance(8, 20)
    rows = torch.randn(8, 3, dtype=torch.float64)
    ax = rg.plot.table_similarity(rows, labeler.names)
    assert ticks(ax, "y") == ["<=-7", "-6..-2", "-1", "0", "1", "2..6", ">=7", "unused 4"]
    unit = nn.functional.normalize(rows, dim=-1)[[3, 2, 1, 0, 5, 6, 7, 4]]
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), unit @ unit.T, atol=1e-12)


def test_similarities_of_many_distances_have_round_ticks():
    ax = rg.plot.table_similarity(torch.randn(33, 4), rg.ClippedDistance(16).names)
    assert 0 in ax.get_xticks() and all(float(tick).is_integer() for tick in ax.get_xticks())


def test_similarities_of_one_head_or_the_mean_of_all():
    rows = torch.randn(2, 3, 4, dtype=torch.float64)
    unit = nn.functional.normalize(rows, dim=-1)
    each = unit @ unit.mT
    np.testing.assert_allclose(np.asarray(rg.plot.table_similarity(rows).images[0].get_array()), each.mean(0))
    one = rg.plot.table_similarity(rows, head=1)
    np.testing.assert_allclose(np.asarray(one.images[0].get_array()), each[1])


def test_a_zero_row_has_no_direction():
    table = rg.nn.LabelTable(3, 4, names=NAMES, frozen=1)
    ax = rg.plot.table_similarity(table)
    mask = np.ma.getmaskarray(ax.images[0].get_array())
    assert mask.tolist() == [[False, True, False], [True] * 3, [False, True, False]]
    assert any(patch.get_hatch() for patch in ax.patches)
