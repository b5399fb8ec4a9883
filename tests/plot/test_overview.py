"""Bars in the cells of an overview are the masses, or the differences, of their layer, head and label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

import relgraph as rg
from relgraph.functional import AttentionAux
from tests.plot.test_mass import ticks

NAMES = ("self", "parent", "child")


def record_of(*layers):
    """A record of one call per layer, from masses ``[H, R]``."""
    return {f"layers.{n}": [AttentionAux(label_mass=mass[:, None])] for n, mass in enumerate(layers)}


def bars(ax):
    """Each bar's cell (layer, head), its height in cells, up or down, its place from left to right, and its colour."""
    drawn = ax.collections[1]
    corners = np.stack([path.vertices[:4] for path in drawn.get_paths()])
    cells = [(int(y), int(x)) for x, y in corners.mean(1)]
    return cells, corners[:, 0, 1] - corners[:, 1, 1], corners[:, 0, 0], drawn.get_facecolor()


def test_every_mass_has_a_bar_in_its_cell():
    mass = torch.rand(3, 2, 33, dtype=torch.float64)
    ax = rg.plot.label_mass_overview(mass, rg.ClippedDistance(16).names, axes="LHR")
    cells, heights, left, colours = bars(ax)
    assert cells == [(layer, head) for layer in range(3) for head in range(2) for _ in range(33)]
    np.testing.assert_allclose(heights / heights.max(), mass.flatten() / mass.max())
    assert 0.5 < heights.max() < 1 and (np.diff(left.reshape(6, 33)) > 0).all()
    assert ax.get_title() == f"longest bar: {mass.max():.2g}"
    most = mass.flatten(0, 1).argmax(-1).tolist()
    assert [text.get_text() for text in ax.texts] == [
        f"{at - 16}: {row[at]:.2f}" for at, row in zip(most, mass.flatten(0, 1).tolist(), strict=True)
    ]
    assert ticks(ax, "x") == ["0", "1"] and ticks(ax, "y") == ["layer 0", "layer 1", "layer 2"]
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["-16 to -1", "0", "1 to 16"]
    shown = [patch.get_facecolor() for patch in legend.get_patches()]
    assert [tuple(colour) for colour in colours[:33]] == [shown[0]] * 16 + [shown[1]] + [shown[2]] * 16


def test_padding_and_heads_unequal():
    two, three = torch.rand(1, 2, 4, 3, dtype=torch.float64), torch.rand(1, 3, 4, 3, dtype=torch.float64)
    record = {"two": [AttentionAux(label_mass=two)], "three": [AttentionAux(label_mass=three)]}
    ax = rg.plot.label_mass_overview(record, NAMES, padding=torch.tensor([[False, True, False, True]]))
    cells, heights, _, colours = bars(ax)
    assert cells[::3] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    wanted = torch.cat([two, three], 1)[0, :, ::2].mean(1).flatten()
    np.testing.assert_allclose(heights / heights.max(), wanted / wanted.max())
    assert ticks(ax, "y") == ["two", "three"] and ticks(ax, "x") == ["0", "1", "2"]
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == list(NAMES)
    assert [patch.get_facecolor() for patch in legend.get_patches()] == [tuple(colour) for colour in colours[:3]]


def test_labels_beside_distances_come_after_a_gap():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(1)
    mass = torch.rand(1, 1, 4, dtype=torch.float64)
    ax = rg.plot.label_mass_overview(mass, labeler.names, axes="LHR")
    _, heights, left, _ = bars(ax)
    np.testing.assert_allclose(heights / heights.max(), mass[0, 0, [1, 2, 3, 0]] / mass.max())
    np.testing.assert_allclose(np.diff(left) / np.diff(left)[0], [1, 1, 2])
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"bond", "-1", "0", "1"}


def test_of_many_labels_the_largest_neighbour_is_drawn():
    mass = torch.zeros(1, 2, 200, dtype=torch.float64)
    mass[0, 0, 117], mass[0, 0, 118], mass[0, 1, 199] = 0.5, 0.25, 0.75
    ax = rg.plot.label_mass_overview(mass, axes="LHR")
    _, heights, left, _ = bars(ax)
    assert len(heights) == 2 * 50
    drawn = heights.reshape(2, 50) / heights.max()
    np.testing.assert_allclose(drawn[[0, 1], [29, 49]], [2 / 3, 1])
    assert np.count_nonzero(drawn) == 2 and left.max() < 2
    assert [text.get_text() for text in ax.texts] == ["117: 0.50", "199: 0.75"]


def test_small_cells_have_no_texts_and_nothing_is_nothing():
    ax = rg.plot.label_mass_overview(torch.rand(60, 12, 3), NAMES, axes="LHR")
    assert not ax.texts
    ax = rg.plot.label_mass_overview(torch.zeros(1, 2, 3), NAMES, axes="LHR")
    assert not ax.texts and not bars(ax)[1].any() and ax.get_title() == "longest bar: 0"


@pytest.mark.parametrize("given", [False, True])
def test_texts_stay_in_their_cells(given):
    names = ["a", "a name of some length", "a name that has got some sixty characters, of which none is lost"]
    ax = plt.subplots(layout="constrained")[1] if given else None
    ax = rg.plot.label_mass_overview(torch.rand(6, 8, 3), names, axes="LHR", ax=ax)
    ax.figure.canvas.draw()
    assert len(ax.texts) == 48
    for text in ax.texts:
        (left, bottom), (right, top) = ax.transData.inverted().transform(text.get_window_extent())
        x, y = text.get_position()
        assert int(x) <= left and right <= int(x) + 1 and int(y) <= top and bottom <= int(y) + 1


def test_a_mass_without_heads():
    ax = rg.plot.label_mass_overview(torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]), NAMES, axes="LR")
    np.testing.assert_allclose(bars(ax)[1] / bars(ax)[1].max(), [0.5, 0.25, 0.25, 0, 0, 1], atol=1e-12)
    assert ticks(ax, "x") == [] and ticks(ax, "y") == ["layer 0", "layer 1"] and ax.get_xlabel() == ""


def test_differences_go_up_and_down_on_the_axes_of_an_overview():
    mass, base = torch.rand(2, 3, 2, 3, dtype=torch.float64)
    ax = rg.plot.label_mass_difference(record_of(*mass), record_of(*base), NAMES)
    overview = rg.plot.label_mass_overview(record_of(*mass), NAMES)
    cells, heights, left, colours = bars(ax)
    assert (ax.get_xlim(), ax.get_ylim()) == (overview.get_xlim(), overview.get_ylim())
    assert ticks(ax, "y") == ticks(overview, "y") and cells == bars(overview)[0]
    np.testing.assert_array_equal(left, bars(overview)[2])
    np.testing.assert_array_equal(colours, bars(overview)[3])
    wanted = (mass - base).flatten()
    np.testing.assert_allclose(heights / abs(heights).max(), wanted / wanted.abs().max())
    assert ax.get_title() == f"up: more than in base; longest bar: {wanted.abs().max():.2g}"
    rows = wanted.reshape(6, 3)
    assert [text.get_text() for text in ax.texts] == [
        f"{NAMES[at]}: {row[at]:+.2f}" for at, row in zip(rows.abs().argmax(1).tolist(), rows.tolist(), strict=True)
    ]


def test_layers_pair_in_order_and_one_share_fits_every_head():
    mass, base = torch.rand(2, 2, 2, 3, dtype=torch.float64)
    renamed = {f"module.{name}": calls for name, calls in record_of(*base).items()}
    ax = rg.plot.label_mass_difference(record_of(*mass), renamed, NAMES)
    assert ticks(ax, "y") == ["layers.0", "layers.1"]
    wanted = (mass - base).flatten()
    np.testing.assert_allclose(bars(ax)[1] / abs(bars(ax)[1]).max(), wanted / wanted.abs().max())
    for given, axes in ((record_of(*mass), None), (mass, "LHR")):
        ax = rg.plot.label_mass_difference(given, base[0, 0], NAMES, axes=axes)
        wanted = (mass - base[0, 0]).flatten()
        np.testing.assert_allclose(bars(ax)[1] / abs(bars(ax)[1]).max(), wanted / wanted.abs().max())


def test_padding_applies_to_both():
    mass, base = torch.rand(2, 1, 1, 3, 2, dtype=torch.float64)
    padding = torch.tensor([[False, True, False]])
    ax = rg.plot.label_mass_difference(mass, base, padding=padding)
    wanted = (mass - base)[0, 0, ::2].mean(0)
    np.testing.assert_allclose(bars(ax)[1] / abs(bars(ax)[1]).max(), wanted / wanted.abs().max())


@pytest.mark.parametrize(
    ("base", "error", "match"),
    [
        (
            torch.rand(2, 3),
            TypeError,
            r"base must be the dict of record_attention, like mass, or a Tensor \[R\], got Ten",
        ),
        (torch.rand(2), ValueError, r"layers, heads and labels of mass, 2 of \[2, 3\], got 2 of \[2\]"),
        (record_of(torch.rand(2, 3)), ValueError, r"labels of mass, 2 of \[2, 3\], got 1 of \[2, 3\]"),
        (record_of(*torch.rand(2, 4, 3)), ValueError, r"labels of mass, 2 of \[2, 3\], got 2 of \[4, 3\]"),
        (record_of(-torch.ones(2, 3)), ValueError, "base must not be negative"),
    ],
)
def test_a_base_that_does_not_fit(base, error, match):
    with pytest.raises(error, match=match):
        rg.plot.label_mass_difference(record_of(*torch.rand(2, 2, 3)), base)


def test_sides_of_distance_0_keep_their_colours():
    far = rg.plot.label_mass_overview(torch.rand(1, 1, 4), ["0", "1", "2", ">=3"], axes="LHR").get_legend()
    near = rg.plot.label_mass_overview(torch.rand(1, 1, 3), ["-1", "0", "1"], axes="LHR").get_legend()
    assert [text.get_text() for text in far.get_texts()] == ["0", "1 to >=3"]
    colours = [[patch.get_facecolor() for patch in legend.get_patches()] for legend in (far, near)]
    assert colours[0] == colours[1][1:]
