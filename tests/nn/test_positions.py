"""Sinusoids: values, offsets for decoding and for padding on the left."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from relgraph.nn import SinusoidalPositions

F64 = torch.float64


def by_hand(position: float, width: int) -> list[float]:
    row = []
    for column in range(width):
        angle = position / 10000.0 ** ((column - column % 2) / width)
        row.append(math.cos(angle) if column % 2 else math.sin(angle))
    return row


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_values(width):
    got = SinusoidalPositions(width)(torch.zeros(2, 7, width, dtype=F64))
    wanted = torch.tensor([by_hand(p, width) for p in range(7)], dtype=F64)
    torch.testing.assert_close(got, wanted.expand(2, -1, -1), atol=1e-12, rtol=0)


def test_they_are_added():
    x, positions = torch.randn(2, 3, 4), SinusoidalPositions(4)
    torch.testing.assert_close(positions(x), x + positions(torch.zeros_like(x)))
    torch.testing.assert_close(positions(x[0]), positions(x)[0])


def test_piece_by_piece():
    x, positions = torch.randn(2, 9, 6, dtype=F64), SinusoidalPositions(6)
    pieces = [positions(x[:, :4], 0), positions(x[:, 4:5], 4), positions(x[:, 5:], torch.tensor(5))]
    torch.testing.assert_close(torch.cat(pieces, 1), positions(x))


def test_rows_padded_on_the_left_count_from_their_first_token():
    x, positions = torch.randn(5, 6, dtype=F64), SinusoidalPositions(6)
    padded = torch.stack([torch.cat([torch.zeros(3, 6, dtype=F64), x[:2]]), x])
    got = positions(padded, torch.tensor([-3, 0]))
    torch.testing.assert_close(got[0, 3:], positions(x[:2]))
    torch.testing.assert_close(got[1], positions(x))


def test_far_away_and_in_half_precision():
    got = SinusoidalPositions(4)(torch.zeros(1, 4, dtype=torch.bfloat16), 100_003)
    assert got.dtype == torch.bfloat16
    wanted = torch.tensor([by_hand(100_003, 4)])
    torch.testing.assert_close(got.float(), wanted, atol=2e-2, rtol=0)


def test_nothing_is_saved_and_everything_is_copied():
    positions = SinusoidalPositions(4, 0.5)
    assert positions.state_dict() == {}
    x = torch.zeros(2, 4)
    for other in (copy.deepcopy(positions), pickle.loads(pickle.dumps(positions))):
        assert torch.equal(other.eval()(x), positions.eval()(x))
    assert positions.train()(torch.ones(50, 4)).eq(0).float().mean() == pytest.approx(0.5, abs=0.15)
    assert repr(positions) == "SinusoidalPositions(\n  4\n  (dropout): Dropout(p=0.5, inplace=False)\n)"


def test_compiled_for_all_lengths():
    counter = CompileCounterWithBackend("aot_eager")
    positions = SinusoidalPositions(4)
    compiled = torch.compile(positions, backend=counter, fullgraph=True)
    for length in (3, 8, 5, 13):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), positions(x))
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    ("x", "offset", "error", "match"),
    [
        ([1.0], 0, TypeError, "x must be a Tensor, got list"),
        (torch.zeros(4), 0, ValueError, r"x must have shape \[B, N, 4\] or \[N, 4\], got \[4\]"),
        (torch.zeros(2, 5), 0, ValueError, r"got \[2, 5\]"),
        (torch.zeros(2, 4), 1.5, TypeError, "offset must be an int, got float"),
        (torch.zeros(2, 4), torch.zeros(2), ValueError, "offset must have an integer dtype, got torch.float32"),
        (
            torch.zeros(2, 3, 4),
            torch.zeros(3, dtype=torch.long),
            ValueError,
            "one number per batch row, 2, got 3 numbers",
        ),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), ValueError, "a scalar for x without a batch, got 3"),
    ],
)
def test_bad_input(x, offset, error, match):
    with pytest.raises(error, match=match):
        SinusoidalPositions(4)(x, offset)


def test_bad_arguments():
    with pytest.raises(ValueError, match="d_model must be at least 1, got 0"):
        SinusoidalPositions(0)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1.0"):
        SinusoidalPositions(4, 1.0)
    with pytest.raises(TypeError, match="positions must be a Tensor, got int"):
        SinusoidalPositions(4).encode(3)
    with pytest.raises(ValueError, match="positions must have a floating dtype, got torch.int64"):
        SinusoidalPositions(4).encode(torch.arange(3))
