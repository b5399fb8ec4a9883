"""Which rows each process holds."""

from __future__ import annotations

import torch

from relgraph.distributed import Layout


def test_a_process_may_hold_no_rows():
    layout = Layout((((0, 3), (5, 6)), (), ((3, 5),)))
    x = torch.randn(2, 6, 4)
    assert layout == Layout((((0, 3), (5, 6)), ((0, 0),), ((3, 5),)))
    assert layout.lengths == [4, 0, 2]
    assert layout.positions(1).dtype == torch.int64 and layout.positions(1).shape == (0,)
    assert layout.shard(x, 1).shape == (2, 0, 4)
    assert torch.equal(layout.shard(x, 0), x[:, [0, 1, 2, 5]])


def test_equal_shares_end_at_the_nearest_row():
    assert Layout.by_cost([0, 1, 2, 0], 2).lengths == [2, 2]
    assert Layout.by_cost([3, 1, 1, 1], 2).lengths == [1, 3]
    assert Layout.by_cost([1, 5, 1], 3).lengths == [1, 1, 1]
