"""Masks in the layer's polarity, as the one mask that functional takes."""

from __future__ import annotations

import torch

from relgraph.nn.masks import check_padding, check_pairs, join_masks

INF = float("inf")


def test_nothing_is_nothing():
    assert join_masks(None, None) is None
    assert check_padding(None, 2, 3, unbatched=False) is None
    assert check_pairs(None, 2, 2, 3, 3, unbatched=False) is None


def test_bool_masks_turn_around():
    padding = torch.tensor([[False, True], [False, False]])
    pairs = torch.tensor([[False, True], [True, False]])[None, None]
    assert torch.equal(join_masks(None, padding), ~padding[:, None, None])
    assert torch.equal(join_masks(pairs, None), ~pairs)
    both = join_masks(pairs, padding)
    assert both.shape == (2, 1, 2, 2)
    assert both[0, 0].tolist() == [[True, False], [False, False]]
    assert both[1, 0].tolist() == [[True, False], [False, True]]


def test_floats_are_added_and_bools_join_them_as_minus_infinity():
    pairs = torch.tensor([[0.5, 0.0], [0.0, -1.0]])[None, None]
    assert join_masks(pairs, None) is pairs
    with_bool = join_masks(pairs, torch.tensor([[False, True]]))
    assert with_bool[0, 0].tolist() == [[0.5, -INF], [0.0, -INF]]
    with_float = join_masks(pairs, torch.tensor([[1.0, -INF]]))
    assert with_float[0, 0].tolist() == [[1.5, -INF], [1.0, -INF]]
    from_bool = join_masks(torch.tensor([[[[False, True]]]]), torch.tensor([[2.0, 0.0]], dtype=torch.float64))
    assert from_bool.tolist() == [[[[2.0, -INF]]]]
    assert from_bool.dtype == torch.float64


def test_shapes_of_pairs():
    mask = torch.zeros(3, 4)
    assert check_pairs(mask, 2, 5, 3, 4, unbatched=False).shape == (1, 1, 3, 4)
    flat = torch.randn(10, 3, 4)
    assert torch.equal(check_pairs(flat, 2, 5, 3, 4, unbatched=False)[1, 3], flat[8])
    assert check_pairs(torch.zeros(5, 3, 4), 1, 5, 3, 4, unbatched=True).shape == (1, 5, 3, 4)
    for batch, heads in ((1, 1), (2, 1), (1, 5), (2, 5)):
        mask = torch.zeros(batch, heads, 3, 4)
        assert check_pairs(mask, 2, 5, 3, 4, unbatched=False) is mask


def test_padding_without_a_batch():
    assert check_padding(torch.zeros(4), 1, 4, unbatched=True).shape == (1, 4)
