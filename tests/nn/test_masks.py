"""Masks in the layer's polarity, as the one mask that functional takes."""

from __future__ import annotations

import torch

from relgraph.nn.masks import join_masks

INF = float("inf")


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
