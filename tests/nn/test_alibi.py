"""ALiBi's fixed biases as tables."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg

from .helpers import F64, close


def test_scores_fall_with_the_distance():
    labeler = rg.ClippedDistance((9, 0))
    tables = rg.nn.alibi_tables(labeler, 4, 3, dtype=F64)
    layer = rg.RelationAttention(12, 3, labeler=labeler, tables=tables, dtype=F64)
    x = torch.randn(2, 8, 12, dtype=F64)
    z, weights = layer(x, is_causal=True, need_weights=True)
    without = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=F64)
    without.load_state_dict(layer.state_dict(), strict=False)
    distance = (torch.arange(8) - torch.arange(8)[:, None]).abs()
    # one slope of the powers of two up to 3, 2^-4 and 2^-8, then one of the next power
    added = -torch.tensor([2**-4, 2**-8, 2**-2], dtype=F64)[:, None, None] * distance
    mask = added.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), float("-inf"))
    wanted = without(x, x, x, attn_mask=mask.repeat(2, 1, 1), average_attn_weights=False)
    close((z, weights), wanted)
    layer(x).sum().backward()
    assert all(row.grad is None for row in tables.parameters())


def test_what_gives_no_slope_is_refused():
    with pytest.raises(ValueError, match="different distances different ids, got 90 and 89 with id 14"):
        rg.nn.alibi_tables(rg.BucketedDistance(), 4, 2)
    with pytest.raises(TypeError, match="labeler must give ids by distance.*got Segments"):
        rg.nn.alibi_tables(rg.Segments(2), 4, 2)
