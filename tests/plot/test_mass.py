"""The mass that is drawn is the mass that is given, row by row under the right names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

import relgraph as rg

NAMES = ("self", "parent", "child")


def ticks(ax, which):
    return [text.get_text() for text in getattr(ax, f"get_{which}ticklabels")()]


def test_one_number_a_label():
    mass = torch.tensor([0.5, 0.25, 0.125])
    ax = rg.plot.label_mass(mass, NAMES)
    assert [bar.get_width() for bar in ax.patches] == mass.tolist()
    assert ticks(ax, "y") == list(NAMES) and ax.get_xlabel() == "attention"
    ax = rg.plot.label_mass(mass, rg.ClippedDistance(1).names)
    assert (ax.lines[1].get_xdata().tolist(), ax.lines[1].get_ydata().tolist()) == ([-1, 0, 1], mass.tolist())


def test_a_row_a_head():
    mass = torch.rand(4, 3, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, NAMES)
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass)
    assert ticks(ax, "y") == [f"head {head}" for head in range(4)] and ticks(ax, "x") == list(NAMES)
    assert ax.images[0].get_clim() == (0, mass.max())
    assert [text.get_text() for text in ax.texts] == [f"{x:.2f}" for x in mass.flatten().tolist()]


def test_layers_stand_under_each_other():
    mass = torch.rand(3, 2, 33, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, rg.ClippedDistance(16).names)
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass.flatten(0, 1))
    first = [f"layer {layer}   head 0" for layer in range(3)]
    assert ticks(ax, "y") == [first[0], "head 1", first[1], "head 1", first[2], "head 1"]
    assert [line.get_ydata()[0] for line in ax.lines] == [1.5, 3.5]
    assert ax.get_xlabel() == "distance" and "0" in ticks(ax, "x") and not ax.texts


def test_of_many_heads_layers_alone_are_named():
    ax = rg.plot.label_mass(torch.rand(12, 16, 3))
    assert ticks(ax, "y") == [f"layer {layer}   head 0" for layer in range(12)]


def test_what_a_layer_gives_is_averaged_over_queries():
    layer = rg.RelationAttention(8, 2, num_labels=3)
    _, mass = layer(torch.randn(3, 5, 8), labels=rg.ClippedDistance(1)(5), need_label_mass=True)
    ax = rg.plot.label_mass(mass, rg.ClippedDistance(1).names)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), mass.detach().mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()).sum(1), 1, rtol=1e-6)


def test_labels_beside_distances_come_after_a_line():
    labeler = rg.EdgeType(["bond"], default="unlabeled") | rg.ClippedDistance(1)
    mass = torch.rand(2, 4, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, labeler.names)
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass[:, [1, 2, 3, 0]])
    assert ticks(ax, "x") == ["-1", "0", "1", "bond"] and ax.lines[0].get_xdata()[0] == 2.5


def test_no_mass_at_all_is_drawn():
    assert np.asarray(rg.plot.label_mass(torch.zeros(2, 3)).images[0].get_array()).max() == 0


@pytest.mark.parametrize("shape", [(3,), (8, 33), (6, 8, 129)])
def test_given_axes_are_used_and_nothing_reaches_out_of_a_new_figure(shape):
    figure, ax = plt.subplots()
    assert rg.plot.label_mass(torch.rand(shape), ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    ax = rg.plot.label_mass(torch.rand(shape), [f"a rather long name {n}" for n in range(shape[-1])])
    ax.figure.canvas.draw()
    box, all_of_it = ax.get_tightbbox(), ax.figure.bbox
    assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= all_of_it.x1 + 1 and box.y1 <= all_of_it.y1 + 1


def test_refusals():
    with pytest.raises(TypeError, match="mass must be a Tensor, that of one part of the sum, got a tuple"):
        rg.plot.label_mass((torch.ones(2, 3),))
    with pytest.raises(TypeError, match="mass must be a Tensor, got float"):
        rg.plot.label_mass(0.5)
    with pytest.raises(ValueError, match=r"mass must have shape \[R\], \[H, R\], .* got \[1, 1, 1, 1, 1\]"):
        rg.plot.label_mass(torch.ones(1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="mass must not be negative, got values down to -0.5"):
        rg.plot.label_mass(torch.tensor([-0.5, 1.0]))
    with pytest.raises(ValueError, match="mass must be finite, got 1 numbers that are not"):
        rg.plot.label_mass(torch.tensor([float("nan"), 1.0]))
    with pytest.raises(ValueError, match="names must be one for each of the 2 labels, got 3"):
        rg.plot.label_mass(torch.ones(2), NAMES)
