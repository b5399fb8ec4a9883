"""The image holds every pair's id, what it leaves open is in the legend, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

import relgraph as rg
from tests.cases import KINDS

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]


def image(ax):
    return np.asarray(ax.images[0].get_array())


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def coloured(ax, label):
    """The colour of a label in the image."""
    shown = ax.images[0]
    return shown.cmap(shown.norm(label))


def written(ax):
    return [text.get_text() for text in ax.texts]


def codes(labels, batch=0):
    ids, attend = labels.to_dense()
    at = batch if len(ids) > 1 else 0
    return ids.masked_fill(~attend, -2)[at].numpy()


WITHOUT_DENSE_FORM = ("none", "sum", "edges only parallel", "edges sum", "edges sum batch", "edges over edges")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT_DENSE_FORM])
def test_every_kind_is_drawn_as_its_dense_form(kind):
    labels = KINDS[kind](7)
    np.testing.assert_array_equal(image(rg.plot.label_matrix(labels)), codes(labels))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_row_of_a_batch(batch):
    labels = rg.Segments(2)(torch.tensor([[0, 1, 1], [1, 0, -1]]))
    np.testing.assert_array_equal(image(rg.plot.label_matrix(labels, batch=batch)), codes(labels, batch))


def test_names_tokens_and_axes():
    labeler = rg.TreeRelation()
    tree = rg.Graph.from_parents(torch.tensor([1, -1, 4, 4, 1, 6, 1]))
    ax = rg.plot.label_matrix(labeler(tree), labeler.names, tokens=WORDS)
    assert legend(ax) == list(labeler.names)
    assert [text.get_text() for text in ax.get_xticklabels()] == WORDS
    assert [text.get_text() for text in ax.get_yticklabels()] == WORDS
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert ax.yaxis_inverted()
    assert not written(ax)  # the names are too long for the cells


def test_short_names_stand_in_the_cells():
    labeler = rg.ClippedDistance(1)
    ax = rg.plot.label_matrix(labeler(2), labeler.names)
    assert written(ax) == ["0", "1", "-1", "0"]
    assert legend(ax) == ["-1", "0", "1"]


def test_colours_of_the_legend_are_those_of_the_image():
    ax = rg.plot.label_matrix(rg.DenseLabels(torch.tensor([[0, 1], [2, 0]]), 3), ["a", "b", "c"])
    for label, patch in enumerate(ax.get_legend().get_patches()):
        np.testing.assert_allclose(patch.get_facecolor(), coloured(ax, label))
    assert len({tuple(coloured(ax, label)) for label in range(3)}) == 3


def test_pairs_without_a_label_and_pairs_that_do_not_attend_look_different():
    labels = rg.DenseLabels(torch.tensor([[0, -1], [-1, -1]]), 1, attend=torch.tensor([[True, True], [True, False]]))
    ax = rg.plot.label_matrix(labels, ["edge"])
    assert image(ax).tolist() == [[0, -1], [-1, -2]]
    assert legend(ax) == ["edge", "no label", "does not attend"]
    assert tuple(coloured(ax, -1)) == to_rgba("white")
    assert coloured(ax, -2)[3] == 0
    ground = next(patch for patch in ax.patches if patch.get_hatch())
    assert (ground.get_xy(), ground.get_width(), ground.get_height()) == ((-0.5, -0.5), 2, 2)
    assert ground.get_zorder() < ax.images[0].get_zorder()
    assert [bool(patch.get_hatch()) for patch in ax.get_legend().get_patches()] == [False, False, True]


def test_labels_with_no_ids_at_all():
    assert legend(rg.plot.label_matrix(rg.Window(0)(2))) == ["no label", "does not attend"]


def test_of_parallel_edges_the_first_is_shown():
    labels = rg.EdgeLabels(torch.tensor([[0, 0, 1], [1, 1, 2]]), torch.tensor([1, 0, 0]), 2, q_len=3)
    shown = image(rg.plot.label_matrix(labels))
    assert shown[1, 0] == 1 and shown[2, 1] == 0


def test_borders_of_a_packed_batch():
    labels = rg.ClippedDistance(1)(5, ptr=torch.tensor([0, 2, 5]))
    ax = rg.plot.label_matrix(labels, rg.ClippedDistance(1).names)
    frames = [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    assert [(f.get_xy(), f.get_width(), f.get_height()) for f in frames] == [((-0.5, -0.5), 2, 2), ((1.5, 1.5), 3, 3)]
    assert image(ax)[0].tolist() == [1, 2, -2, -2, -2]


def test_many_distances_have_a_colour_bar_with_zero_on_it():
    labeler = rg.ClippedDistance(16)
    ax = rg.plot.label_matrix(labeler(40), labeler.names)
    assert ax.get_legend() is None
    (bar,) = ax.child_axes
    names = [text.get_text() for text in bar.get_yticklabels()]
    assert names == ["-16", "-12", "-8", "-4", "0", "4", "8", "12", "16"]
    assert bar.get_yticks().tolist() == [0, 4, 8, 12, 16, 20, 24, 28, 32]


def test_queries_that_are_not_the_keys():
    labels = rg.ClippedDistance(1)(2, 3, q_offset=1)
    ax = rg.plot.label_matrix(labels, tokens=(["c", "d"], ["a", "b", "c"]))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["c", "d"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b", "c"]
    strip = rg.plot.label_matrix(rg.ClippedDistance(1)(1, 30, q_offset=29))
    assert strip.get_aspect() == "auto" and ax.get_aspect() == 1


def test_positions_are_numbered_without_tokens():
    assert rg.plot.label_matrix(rg.ClippedDistance(1)(4)).get_xticks().tolist() == [0, 1, 2, 3]
    ticks = rg.plot.label_matrix(rg.ClippedDistance(1)(60)).get_xticks()
    assert all(float(tick).is_integer() for tick in ticks) and 3 < len(ticks) < 12


def test_tokens_are_thinned_where_they_would_overlap():
    tokens = [f"token{n}" for n in range(200)]
    ax = rg.plot.label_matrix(rg.ClippedDistance(1)(200), tokens=tokens)
    shown = [text.get_text() for text in ax.get_xticklabels()]
    assert shown == tokens[:: len(tokens) // (len(shown) - 1)][: len(shown)] and 15 < len(shown) < 60


def test_pairs_beyond_any_picture():
    with pytest.raises(ValueError, match="labels must be of at most 268,435,456 pairs to be drawn, got DistanceLabels"):
        rg.plot.label_matrix(rg.ClippedDistance(1)(10**5))
    with pytest.raises(ValueError, match="tokens must hold at most 1048576 items, got more"):
        rg.plot.label_matrix(rg.ClippedDistance(1)(3), tokens=range(10**30))
