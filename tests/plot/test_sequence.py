"""Attention over tokens: the weights of all pairs, or of one query, at the tokens they belong to."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.colors import to_rgba

import relgraph as rg

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]


def ticks(ax, which):
    return [text.get_text() for text in getattr(ax, f"get_{which}ticklabels")()]


def image(ax):
    return np.asarray(ax.images[0].get_array())


def test_a_matrix_of_all_pairs():
    weights = torch.rand(2, 7, 7, dtype=torch.float64, requires_grad=True)
    ax = rg.plot.attention_tokens(weights, WORDS)
    np.testing.assert_allclose(image(ax), weights.detach().mean(0))
    assert ticks(ax, "x") == ticks(ax, "y") == WORDS
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query") and ax.yaxis_inverted()
    assert ax.images[0].get_clim() == (0, weights.detach().mean(0).max())


def test_bars_of_one_query():
    weights = torch.rand(7, 7, dtype=torch.float64)
    ax = rg.plot.attention_tokens(weights, WORDS, query=4)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], weights[4])
    own = [bar.get_facecolor() == to_rgba("#D55E00") for bar in ax.patches]
    assert own == [at == 4 for at in range(7)]
    assert (ax.get_title(), ax.get_ylabel()) == ("attention of “dog” (4)", "attention") and ticks(ax, "x") == WORDS


def test_keys_that_are_not_the_queries():
    weights = torch.rand(2, 3, dtype=torch.float64)
    ax = rg.plot.attention_tokens(weights, (["x", "y"], ["a", "b", "c"]), query=1)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], weights[1])
    assert len({bar.get_facecolor() for bar in ax.patches}) == 1
    ax = rg.plot.attention_tokens(weights, (["x", "y"], ["a", "b", "c"]))
    assert (ticks(ax, "y"), ticks(ax, "x")) == (["x", "y"], ["a", "b", "c"])


def test_positions_without_tokens():
    ax = rg.plot.attention_tokens(torch.eye(3), None)
    assert ax.get_xticks().tolist() == [0, 1, 2]
    assert rg.plot.attention_tokens(torch.eye(3), None, query=2).get_title() == "attention of token 2"


def test_tokens_that_are_no_strings():
    assert ticks(rg.plot.attention_tokens(torch.eye(3), [7, ("b", 1), None]), "x") == ["7", "('b', 1)", "None"]
    pairs = [("a", 1), ("b", 2)]
    assert ticks(rg.plot.attention_tokens(torch.eye(2), pairs), "x") == ["('a', 1)", "('b', 2)"]
    sides = rg.plot.attention_tokens(torch.ones(2, 3), ([1, 2], [3, 4, 5]))
    assert (ticks(sides, "y"), ticks(sides, "x")) == (["1", "2"], ["3", "4", "5"])


def test_without_any_attention_the_scale_goes_to_one():
    assert rg.plot.attention_tokens(torch.zeros(2, 2), None).images[0].get_clim() == (0, 1)
