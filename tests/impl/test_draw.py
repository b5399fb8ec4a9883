"""The numbers that dropout draws by place: each kept or not by its share, and no two places alike."""

from __future__ import annotations

import math

import pytest
import torch

from relgraph.impl import draw


def kept(seed, *sizes, p=0.5, origin=(0, 0, 0, 0)):
    batch, heads, queries, keys = sizes
    made = draw.hashes(torch.tensor(seed), origin, torch.Size((batch, heads, queries)), keys, torch.device("cpu"))
    return draw.keep_mask(made, p)


@pytest.mark.parametrize("p", [1e-4, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 3, (1 << 62) - 1])
def test_the_share_that_is_kept(seed, p):
    share = kept(seed, 2, 4, 256, 256, p=p).double().mean().item()
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / (2 * 4 * 256 * 256))


def test_all_is_dropped_or_kept_at_the_ends():
    assert draw.smallest_kept(0.0) == -(1 << 31)
    assert draw.smallest_kept(1.0 - 2**-53) == (1 << 31) - 1


def correlation(one, other):
    """In standard deviations of what independent masks give."""
    one, other = (x.flatten().double() - x.double().mean() for x in (one, other))
    return ((one * other).sum() / (one.norm() * other.norm()) * math.sqrt(one.numel())).abs().item()


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_places_are_independent(p):
    mask = kept(5, 2, 4, 128, 256, p=p)
    others = [kept(6, 2, 4, 128, 256, p=p), kept(5 + (1 << 40), 2, 4, 128, 256, p=p)]
    pairs = [(mask, other) for other in others]
    pairs += [(mask[0], mask[1]), (mask[:, :2], mask[:, 2:]), (mask[:, 1:], mask[:, :-1])]
    for step in (1, 2, 3, 4, 8, 16, 64):
        pairs += [
            (mask[:, :, step:], mask[:, :, :-step]), (mask[..., step:], mask[..., :-step]),
            (mask[:, :, step:, step:], mask[:, :, :-step, :-step]),
        ]  # fmt: skip
    worst = max(correlation(*pair) for pair in pairs)
    assert worst < 4.5
    assert correlation(mask, mask) > 100


def test_rows_and_columns_vary_as_coins_do():
    """A hash of row xor key alone would give each row the same count, or whole rows again."""
    mask = kept(7, 1, 4, 512, 512).double()
    for counts in (mask.sum(-1), mask.sum(-2)):
        assert 0.85 < counts.var() / (512 / 4) < 1.15
    assert mask.flatten(0, 2).unique(dim=0).shape[0] == 4 * 512
    assert mask.mT.flatten(0, 2).unique(dim=0).shape[0] == 4 * 512


def test_no_two_of_many_keys_share_a_hash():
    made = draw.hashes(torch.tensor(3), (0, 0, 0, 0), torch.Size((1, 1, 1)), 1 << 20, torch.device("cpu"))
    assert made.keys.unique().numel() == 1 << 20


def test_parallel_edges_draw_apart():
    made = draw.hashes(torch.tensor(3), (0, 0, 0, 0), torch.Size((1, 2, 300)), 200, torch.device("cpu"))
    masks = []
    for n in range(4):
        second = draw.parted(made.rows[..., 1:], torch.tensor(n, dtype=torch.int32))
        drawn = draw.numbers(made.rows[..., :1], second, made.keys[:, None, None])
        masks.append(drawn >= draw.smallest_kept(0.5))
    assert torch.equal(masks[0], draw.keep_mask(made, 0.5))
    assert max(correlation(masks[a], masks[b]) for a in range(4) for b in range(a)) < 4.5


def test_an_origin_in_tensors_is_that_in_numbers():
    origin = (1, 2, 300, 1 << 20)
    tensors = tuple(torch.tensor(n) for n in origin)
    assert torch.equal(kept(4, 2, 2, 9, 9, origin=origin), kept(4, 2, 2, 9, 9, origin=tensors))
