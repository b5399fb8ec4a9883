"""Sinusoids and learned positions: values, offsets for decoding and for padding on the left."""

from __future__ import annotations

import copy
import functools
import math
import pickle

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from relgraph.nn import LearnedPositions, SinusoidalPositions

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


def test_nothing_is_saved_and_everything_is_copied():
    positions = SinusoidalPositions(4, 0.5)
    assert positions.state_dict() == {}
    x = torch.zeros(2, 4)
    for other in (copy.deepcopy(positions), pickle.loads(pickle.dumps(positions))):
        assert torch.equal(other.eval()(x), positions.eval()(x))
    assert positions.train()(torch.ones(50, 4)).eq(0).float().mean() == pytest.approx(0.5, abs=0.15)
    assert repr(positions) == "SinusoidalPositions(\n  4\n  (dropout): Dropout(p=0.5, inplace=False)\n)"


@pytest.mark.parametrize("make", [lambda: SinusoidalPositions(4), lambda: LearnedPositions(4, 20)])
def test_compiled_for_all_lengths(make):
    counter, positions = CompileCounterWithBackend("eager"), make()
    compiled = torch.compile(positions, backend=counter, fullgraph=True)
    for length in (3, 8, 5, 13):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), positions(x))
    assert counter.frame_count <= 2


class TestLearned:
    def make(self, width=6, length=9):
        torch.manual_seed(0)
        return LearnedPositions(width, length, dtype=F64)

    def test_rows_are_added(self):
        positions, x = self.make(), torch.randn(2, 7, 6, dtype=F64)
        torch.testing.assert_close(positions(x), x + positions.weight[:7])
        torch.testing.assert_close(positions(x[0], 2), x[0] + positions.weight[2:])
        torch.testing.assert_close(positions.encode(torch.tensor([[8, 0], [-1, 3]]))[1, 1], positions.weight[3])
        assert positions(x.float()).dtype == torch.float32

    def test_padding_on_the_left_gets_no_vector(self):
        positions, x = self.make(), torch.randn(2, 5, 6, dtype=F64)
        got = positions(x, torch.tensor([-3, 0]))
        torch.testing.assert_close(got[0], torch.cat([x[0, :3], positions(x[0, 3:])]))
        torch.testing.assert_close(got[1], positions(x[1]))
        (got[0] - x[0])[:3].sum().backward()
        assert positions.weight.grad.eq(0).all()

    def test_gradients(self):
        positions, x = self.make(3, 5), torch.randn(2, 4, 3, dtype=F64)
        run = functools.partial(torch.func.functional_call, positions)
        assert torch.autograd.gradcheck(lambda w: run({"weight": w}, (x, torch.tensor([-2, 1]))), positions.weight)

    def test_start_and_state(self):
        positions = LearnedPositions(64, 50, 0.5)
        assert positions.weight.std().item() == pytest.approx(0.125, rel=0.1)
        assert list(positions.state_dict()) == ["weight"]
        before = positions.weight.detach().clone()
        positions.reset_parameters()
        assert not torch.equal(positions.weight, before)
        assert positions.train()(torch.ones(50, 64)).eq(0).float().mean() == pytest.approx(0.5, abs=0.15)
        assert repr(positions).startswith("LearnedPositions(\n  64, max_len=50\n")

    @pytest.mark.parametrize("offset", [3, torch.tensor(3), torch.tensor([0, 3])])
    def test_beyond_the_last(self, offset):
        positions = self.make(length=5)
        assert positions(torch.randn(2, 2, 6, dtype=F64), offset).shape == (2, 2, 6)
        with pytest.raises(
            ValueError, match="x must lie within the max_len = 5 .* from 0 to 4, got a row at position 5"
        ):
            positions(torch.randn(2, 3, 6, dtype=F64), offset)
        with pytest.raises(ValueError, match="positions must lie within .* got a row at position 7"):
            positions.encode(torch.tensor([0, 7]))
