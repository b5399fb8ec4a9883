"""The mass that is drawn is the mass that is given, row by row under the right names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import relgraph as rg
from tests.layers import encoder_layer

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
    ax = rg.plot.label_mass(mass, NAMES, axes="HR")
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass)
    assert ticks(ax, "y") == [f"head {head}" for head in range(4)] and ticks(ax, "x") == list(NAMES)
    assert ax.images[0].get_clim() == (0, mass.max())
    assert [text.get_text() for text in ax.texts] == [f"{x:.2f}" for x in mass.flatten().tolist()]


def test_layers_stand_under_each_other():
    mass = torch.rand(3, 2, 33, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, rg.ClippedDistance(16).names, axes="LHR")
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass.flatten(0, 1))
    first = [f"layer {layer}   head 0" for layer in range(3)]
    assert ticks(ax, "y") == [first[0], "head 1", first[1], "head 1", first[2], "head 1"]
    assert [line.get_ydata()[0] for line in ax.lines] == [1.5, 3.5]
    assert ax.get_xlabel() == "distance" and "0" in ticks(ax, "x") and not ax.texts


def test_of_many_heads_layers_alone_are_named():
    ax = rg.plot.label_mass(torch.rand(12, 16, 3), axes="LHR")
    assert ticks(ax, "y") == [f"layer {layer}   head 0" for layer in range(12)]


def test_what_a_layer_gives_is_averaged_over_queries():
    layer = rg.RelationAttention(8, 2, num_labels=3)
    _, mass = layer(torch.randn(3, 5, 8), labels=rg.ClippedDistance(1)(5), need_label_mass=True)
    ax = rg.plot.label_mass(mass, rg.ClippedDistance(1).names)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), mass.detach().mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()).sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("axes", ["LHR", "HNR", "NHR", "BHR", "RLH", "NLR", "BNR", "HBR"])
def test_axes_say_what_is_what(axes):
    mass = torch.rand(2, 3, 4, dtype=torch.float64)
    gone = [at for at, letter in enumerate(axes) if letter in "BN"]
    kept = "".join(letter for letter in axes if letter not in "BN")
    rows = torch.einsum(f"{kept}->{''.join(sorted(kept, key='LHR'.index))}", mass.mean(gone) if gone else mass)
    ax = rg.plot.label_mass(mass, axes=axes)
    if rows.dim() == 1:
        np.testing.assert_allclose([bar.get_width() for bar in ax.patches], rows)
        return
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), rows.reshape(-1, rows.shape[-1]))
    word = "layer" if "H" not in kept else "head"
    assert ticks(ax, "y")[-1] == f"{word} {rows.shape[-2] - 1}"


def test_all_five_axes():
    mass = torch.rand(2, 3, 2, 5, 4, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, axes="LBHNR")
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), mass.mean((1, 3)).flatten(0, 1))


def test_a_record_names_its_layers():
    labeler = rg.ClippedDistance(1)
    model = rg.RelationEncoder(encoder_layer(8, 2, 16, labeler=labeler), num_layers=2).eval()
    with rg.record_attention(model) as record:
        model(torch.randn(3, 5, 8))
        model(torch.randn(1, 2, 8))
    ax = rg.plot.label_mass(record, labeler.names)
    every = [
        torch.cat([call.label_mass.transpose(0, 1).flatten(1, 2) for call in calls], 1) for calls in record.values()
    ]
    assert every[0].shape == (2, 3 * 5 + 2, 3)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), torch.cat(every).mean(1), rtol=1e-5)
    first = [f"layers.{layer}.self_attn   head 0" for layer in range(2)]
    assert ticks(ax, "y") == [first[0], "head 1", first[1], "head 1"]


def test_a_record_of_graph_layers_and_of_heads_unequal():
    near = rg.pyg.RelationConv(4, 2, heads=3, num_relations=3)
    model = nn.ModuleDict(
        {"near": near, "far": rg.RelationAttention(4, 2, num_labels=3), "plain": rg.RelationAttention(4, 2, tables=())}
    )
    x = torch.randn(5, 4)
    with rg.record_attention(model) as record:
        model["near"](x, torch.tensor([[0, 1, 2, 3], [1, 2, 2, 0]]), torch.tensor([0, 1, 2, 2]))
        model["far"](x, labels=rg.ClippedDistance(1)(5))
        model["plain"](x)
    ax = rg.plot.label_mass(record)
    drawn = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(drawn[:3].sum(1), 3 / 5, rtol=1e-5)  # three of five nodes have edges that lead to them
    np.testing.assert_allclose(drawn[:3, 0], 1 / 5, rtol=1e-5)
    np.testing.assert_allclose(drawn[3:].sum(1), 1, rtol=1e-5)
    assert ticks(ax, "y") == ["near   head 0", "head 1", "head 2", "far   head 0", "head 1"]
    assert [line.get_ydata()[0] for line in ax.lines] == [2.5]


def test_one_part_of_a_sum():
    labeler = rg.ClippedDistance(1) + rg.ClippedDistance(2)
    layer = rg.RelationAttention(8, 2, num_labels=labeler.num_labels)
    with rg.record_attention(layer) as record:
        _, mass = layer(torch.randn(1, 4, 8), labels=labeler(4), need_label_mass=True)
    for given in (mass, record):
        ax = rg.plot.label_mass(given, labeler.names[1], part=1)
        np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), mass[1].detach().mean((0, 2)), rtol=1e-6)
        assert ticks(ax, "x") == ["-2", "-1", "0", "1", "2"] and ticks(ax, "y") == ["head 0", "head 1"]


def test_padding_does_not_count():
    layer, labels = rg.RelationAttention(8, 2, num_labels=3).eval(), rg.ClippedDistance(1)
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [2], [3]])
    with torch.no_grad(), rg.record_attention(layer) as record:
        _, mass = layer(x, labels=labels(5), need_label_mass=True)
    counts = torch.stack([mass[0].sum(1), mass[1, :, :2].sum(1), mass[2, :, :3].sum(1)]).sum(0)
    for given in (record, mass):
        drawn = rg.plot.label_mass(given, padding=padding).images[0].get_array()
        np.testing.assert_allclose(np.asarray(drawn), counts / 10, rtol=1e-6)
    by_layer = rg.plot.label_mass(mass.transpose(0, 2)[None], axes="LNHBR", padding=padding).images[0].get_array()
    np.testing.assert_array_equal(np.asarray(by_layer), np.asarray(drawn))


def test_padding_that_is_not_finite_does_not_count():
    mass = torch.tensor([[0.25, 0.75], [torch.nan, torch.nan]])[None, None]
    ax = rg.plot.label_mass(mass, padding=torch.tensor([[False, True]]))
    assert np.asarray(ax.images[0].get_array()).tolist() == [[0.25, 0.75]]


def test_labels_beside_distances_come_after_a_line():
    labeler = rg.EdgeType(["bond"], attend="all") | rg.ClippedDistance(1)
    mass = torch.rand(2, 4, dtype=torch.float64)
    ax = rg.plot.label_mass(mass, labeler.names, axes="HR")
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), mass[:, [1, 2, 3, 0]])
    assert ticks(ax, "x") == ["-1", "0", "1", "bond"] and ax.lines[0].get_xdata()[0] == 2.5


def test_no_mass_at_all_is_drawn():
    image = rg.plot.label_mass(torch.zeros(2, 3), axes="HR").images[0]
    assert np.asarray(image.get_array()).max() == 0 and image.get_clim() == (0, 1)


def test_small_shares_are_written_with_a_third_digit():
    ax = rg.plot.label_mass(torch.tensor([[0.012, 0.016, 0.002]]), axes="HR")
    assert [text.get_text() for text in ax.texts] == ["0.012", "0.016", "0.002"]
