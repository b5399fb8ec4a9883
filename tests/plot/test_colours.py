"""Labels that are few can be told apart, inverses resemble what they invert, distances run through one scale.

A label has one colour in all pictures of a figure.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgba_array

import relgraph as rg
from relgraph.plot._colours import label_colours
from relgraph.plot._names import naming
from relgraph.plot._style import LABELS, lighter, text_colour

COLOURS = to_rgba_array(LABELS)


def of(names, present=None):
    return label_colours(naming(names, len(names)), range(len(names)) if present is None else present, None)


def legend(ax):
    """The colour of each label by its name."""
    shown = ax.get_legend()
    return {t.get_text(): p.get_facecolor() for t, p in zip(shown.get_texts(), shown.get_patches(), strict=True)}


def test_a_dozen_labels_have_a_dozen_colours():
    got = of([f"label {n}" for n in range(12)])
    np.testing.assert_allclose(got.colours, COLOURS)
    assert got.swatches == tuple(range(12)) and got.scale == ()
    assert len(set(LABELS)) == 12
    assert of(("a", "b", "c"), present=[2]).swatches == (2,)


def test_an_inverse_is_a_lighter_shade():
    got = of(("a", "b", "a⁻¹", "b⁻¹", "self"))
    np.testing.assert_allclose(got.colours, np.concatenate([COLOURS[:2], lighter(COLOURS[:2]), COLOURS[2:3]]))
    np.testing.assert_allclose(lighter(np.array([0.0, 1.0, 0.5, 1.0])), [0.55, 1.0, 0.775, 1.0])


def test_of_many_labels_those_in_the_picture_get_colours():
    names = rg.labelers.dependency_relations().names
    shown = [names.index(name) for name in ("det", "nsubj", "nsubj⁻¹")]
    got = of(names, present=shown)
    assert got.swatches == tuple(sorted(shown))
    assert not got.colours[names.index("obj")].any()


def test_many_labels_in_one_picture_run_through_a_colour_map():
    names = rg.Grid(2).names
    got = of(names)
    assert got.swatches == () and got.scale == tuple(range(25))
    np.testing.assert_allclose(got.colours, colormaps["viridis"](np.linspace(0, 1, 25)), atol=1 / 255)


def test_distances_diverge_from_zero_on_one_scale():
    got = of(rg.ClippedDistance(16).names)
    assert got.scale == tuple(range(33)) and got.swatches == ()
    wanted = [0.5 + 0.47 * d / (abs(d) + 1.5) for d in range(-16, 17)]
    np.testing.assert_allclose(got.colours, colormaps["RdYlBu_r"](wanted))
    few = of(rg.ClippedDistance((1, 3)).names)
    assert few.swatches == (0, 1, 2, 3, 4) and few.scale == ()
    np.testing.assert_allclose(few.colours, got.colours[15:20])


def test_labels_beside_distances_have_other_colours():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(16)
    got = of(labeler.names)
    assert got.swatches == (0,) and got.scale == tuple(range(1, 34))
    assert abs(got.colours[1:, :3] - got.colours[0, :3]).sum(1).min() > 0.3


def test_a_label_has_one_colour_in_all_pictures_of_a_figure():
    tree = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 1]), edge_type=torch.tensor([0, 2, 1, 0]))
    first, second = rg.EdgeType(["a", "b", "c"], inverse=True, attend="all"), rg.EdgeType(["x", "c", "a"], attend="all")
    for figure in (plt.figure(), plt.figure().subfigures()):
        axes, panels = figure.subplots(1, 4).tolist(), []
        panels = [
            rg.plot.label_matrix(one(tree), one.names, ax=ax) for one, ax in zip((first, second), axes, strict=False)
        ]
        both = first | rg.ClippedDistance(2)
        panels.append(rg.plot.label_matrix(both(tree), both.names, ax=axes[2]))
        weights = torch.full((4, 4), 0.25)
        panels.append(rg.plot.attention_graph(weights, tree, labels=second(tree), names=second.names, ax=axes[3]))
        shown = list(map(legend, panels))
        for one in shown:
            assert len(set(one.values())) == len(one)
            assert all(
                one[name] == other[name] for other in shown for name in {*one, *other} if name in one and name in other
            )
    alone = rg.plot.label_matrix(second(tree), second.names)
    assert legend(alone)["x"] == tuple(COLOURS[0])


def test_text_reads_on_its_ground():
    assert text_colour((1.0, 1.0, 0.9, 1.0)) == "black"
    assert text_colour((0.1, 0.1, 0.5, 1.0)) == "white"
