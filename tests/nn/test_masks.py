"""Masks in the layer's polarity, as the one mask that functional takes."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("shape", [(3, 5), (4, 3), (2, 3, 4), (9, 3, 4), (3, 5, 3, 4), (2, 2, 3, 4), (4,)])
def test_pairs_of_another_shape(shape):
    wanted = r"attn_mask must have shape .*, \[3, 4\], \[10, 3, 4\] or \[2, 5, 3, 4\], got "
    with pytest.raises(ValueError, match=wanted):
        check_pairs(torch.zeros(shape), 2, 5, 3, 4, unbatched=False)


def test_padding_of_another_shape():
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape \[B, N_k\] = \[2, 4\], got \[4, 2\]"):
        check_padding(torch.zeros(4, 2), 2, 4, unbatched=False)
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape \[N_k\] = \[4\], got \[1, 4\]"):
        check_padding(torch.zeros(1, 4), 1, 4, unbatched=True)


def test_kinds_and_dtypes():
    with pytest.raises(TypeError, match="attn_mask must be a Tensor, got list"):
        check_pairs([[True]], 1, 1, 1, 1, unbatched=False)
    with pytest.raises(ValueError, match="floats of at most 0, .* up to 1: if 1 marks what attends, pass mask == 0"):
        check_padding(torch.tensor([[1.0, 1.0, 0.0]]), 1, 3, unbatched=False)  # from a Hugging Face tokenizer
    with pytest.raises(ValueError, match=r"key_padding_mask must be bool .* got torch.uint8"):
        check_padding(torch.zeros(1, 4, dtype=torch.uint8), 1, 4, unbatched=False)
