"""Which weights dropout keeps, drawn by place: a hash of seed, batch row, head, query and key, in plain torch.

A pair's number depends on nothing else. So forward and backward, blocks of any size and every part of a larger problem
agree on the mask, and so do all implementations that draw here. Positions of a packed batch count through the batch.

Each query of each head has a hash of 64 bits, in two halves, and each key one of 32 bits. These are made once for a
call. Per pair three multiplications mix them, which costs less than a generator of random numbers on a CPU:

    x = (first half ^ key) · M_0
    x = ((x + (x >> 16)) ^ second half) · M_1
    x = (x + (x >> 15)) · M_2

The second half keeps queries apart whose first halves are the same up to an exchange of keys. Products wrap around, and
``x + (x >> k)`` brings high bits down where ``x ^ (x >> k)`` would lose the sign, as torch shifts signed numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 divided by the golden ratio, as a signed number, whose multiples are far apart."""

WIDE = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""Factors of the last steps of SplitMix64 (Steele, Lea, Flood 2014), which mix 64 bits."""

NARROW = (-1640531535, -2048144789, -1028477387)
"""Odd factors that mix 32 bits."""

HALF = (1 << 32) - 1


class Hashes(NamedTuple):
    """The hashes from which the numbers of pairs are made.

    Attributes:
        rows: ``[B, H, N_q, 2]`` int32, two halves for each query of each head.
        keys: ``[B or 1, N_k]`` int32.
    """

    rows: Tensor
    keys: Tensor


def hashes(seed: Tensor, origin: Sequence[int | Tensor], rows: torch.Size, keys: int, device: torch.device) -> Hashes:
    """The hashes of a problem, or of a part of one; the host waits for nothing.

    Args:
        seed: one number.
        origin: batch row, head, query and key of the larger problem that the first ones here are.
        rows: how many batch rows, heads and queries.
        keys: how many keys.
        device: device of the hashes.
    """
    batch, head, query, key = (
        torch.arange(count, device=device) + begin for count, begin in zip((*rows, keys), origin, strict=True)
    )
    state = _mixed(seed.reshape(()) + GOLDEN)
    by_row = state
    for place in (batch[:, None, None, None], head[:, None, None], query[:, None]):
        by_row = _mixed(by_row + place * GOLDEN)
    return Hashes(by_row.view(torch.int32), _permuted(key + state)[None])


def _mixed(x: Tensor) -> Tensor:
    """Each number with all its 64 bits in each of them."""
    x = (x ^ _shifted(x, 30)) * WIDE[0]
    x = (x ^ _shifted(x, 27)) * WIDE[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """``x >> by`` with zeros from above."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _permuted(x: Tensor) -> Tensor:
    """The lower 32 bits of int64, mixed so that no two become the same, as int32."""
    x = x & HALF
    for shift, factor in zip((16, 15), NARROW, strict=False):
        x = ((x ^ (x >> shift)) * factor) & HALF
    x = x ^ (x >> 16)
    return ((x << 32) >> 32).to(torch.int32)


def numbers(first: Tensor, second: Tensor, keys: Tensor, room: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The number of every pair, int32, of which all are equally likely.

    Args:
        first: first halves of rows, for each pair or to be broadcast.
        second: second halves.
        keys: hashes of keys.
        room: two tensors to work in, the first of which becomes the result.
    """
    into, spare = (None, None) if room is None else room
    x = torch.bitwise_xor(first, keys, out=into)
    x.mul_(NARROW[0]).add_(torch.bitwise_right_shift(x, 16, out=spare))
    x.bitwise_xor_(second).mul_(NARROW[1])
    return x.add_(torch.bitwise_right_shift(x, 15, out=spare)).mul_(NARROW[2])


def smallest_kept(dropout_p: float) -> int:
    """Pairs whose number is at least this one are kept."""
    return min(round(dropout_p * (1 << 32)), HALF) - (1 << 31)


def keep_mask(found: Hashes, dropout_p: float) -> Tensor:
    """Which pairs are kept, ``[B, H, N_q, N_k]``."""
    drawn = numbers(found.rows[..., :1], found.rows[..., 1:], found.keys[:, None, None])
    return drawn >= smallest_kept(dropout_p)


def parted(second: Tensor, again: Tensor) -> Tensor:
    """Second halves for parallel edges, so that each draws another number; the n-th has n in ``again``."""
    return second ^ (again * NARROW[1]).to(torch.int32)
