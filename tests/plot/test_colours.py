"""Labels that are few can be told apart, inverses resemble what they invert, distances run through one scale."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps

import relgraph as rg
from relgraph.plot._colours import label_colours
from relgraph.plot._names import naming
from relgraph.plot._style import PALETTE, lighter, text_colour


def of(names, present=None, **options):
    return label_colours(naming(names, len(names)), range(len(names)) if present is None else present, **options)


def test_a_dozen_labels_have_a_dozen_colours():
    got = of([f"label {n}" for n in range(12)], present=[3])
    np.testing.assert_allclose(got.colours, PALETTE)
    assert got.swatches == tuple(range(12)) and got.scale == ()
    assert len(np.unique(PALETTE, axis=0)) == 12


def test_an_inverse_is_a_lighter_shade():
    got = of(("a", "b", "a⁻¹", "b⁻¹", "self"))
    np.testing.assert_allclose(got.colours, np.concatenate([PALETTE[:2], lighter(PALETTE[:2]), PALETTE[2:3]]))
    np.testing.assert_allclose(lighter(np.array([0.0, 1.0, 0.5, 1.0]), 0.5), [0.5, 1.0, 0.75, 1.0])


def test_of_many_labels_those_in_the_picture_get_colours():
    names = rg.labelers.dependency_relations().names
    shown = [names.index(name) for name in ("det", "nsubj", "nsubj⁻¹")]
    got = of(names, present=shown)
    assert got.swatches == tuple(sorted(shown))
    np.testing.assert_allclose(got.colours[names.index("nsubj")], PALETTE[1])
    assert not got.colours[names.index("obj")].any()


def test_many_labels_in_one_picture_run_through_a_colour_map():
    names = rg.Grid(2).names
    got = of(names)
    assert got.swatches == () and got.scale == tuple(range(25))
    np.testing.assert_allclose(got.colours, colormaps["viridis"](np.linspace(0, 1, 25)))


def test_distances_diverge_from_zero():
    got = of(rg.ClippedDistance(16).names)
    assert got.scale == tuple(range(33)) and got.swatches == ()
    np.testing.assert_allclose(got.colours[16], colormaps["RdYlBu_r"](0.5))
    np.testing.assert_allclose(got.colours[[0, 32]], colormaps["RdYlBu_r"]([0.06, 0.94]))
    few = of(rg.ClippedDistance(2).names)
    assert few.swatches == (0, 1, 2, 3, 4) and few.scale == ()


def test_both_sides_of_zero_share_a_scale():
    got = of(rg.ClippedDistance((1, 3)).names)
    np.testing.assert_allclose(got.colours[0], colormaps["RdYlBu_r"](0.5 - 0.44 / 3))
    np.testing.assert_allclose(got.colours[4], colormaps["RdYlBu_r"](0.94))


def test_labels_beside_distances_have_other_colours():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(16)
    got = of(labeler.names)
    assert got.swatches == (0,) and got.scale == tuple(range(1, 34))
    assert abs(got.colours[1:, :3] - got.colours[0, :3]).sum(1).min() > 0.3


def test_only_what_is_present_when_asked():
    assert of(("a", "b", "c"), present=[2], only_present=True).swatches == (2,)


def test_text_reads_on_its_ground():
    assert text_colour((1.0, 1.0, 0.9, 1.0)) == "black"
    assert text_colour((0.1, 0.1, 0.5, 1.0)) == "white"
