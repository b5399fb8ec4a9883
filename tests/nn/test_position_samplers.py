"""Drawn positions: what is drawn, and layers that count by them."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import relgraph as rg
from relgraph.nn import RandomPositions, ShiftedPositions

from .helpers import F64, close, fill_tables
from .test_rotary import turned_by_hand

X = torch.randn(3, 5, 12, dtype=F64)
SAMPLERS = (RandomPositions(9), RandomPositions(5), ShiftedPositions(7), ShiftedPositions(0))


def test_random_positions_are_every_ordered_subset_equally_often():
    torch.manual_seed(0)
    sampler, counts = RandomPositions(5), {}
    for _ in range(250):
        for row in sampler(X[:, :3]).tolist():
            counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert counts.keys() == {tuple(c) for c in torch.combinations(torch.arange(5), 3).tolist()}
    total = sum(counts.values())
    assert all(abs(n - total / 10) < 6 * (total * 0.09) ** 0.5 for n in counts.values())


def test_shifted_positions_are_every_shift_equally_often():
    torch.manual_seed(0)
    drawn = torch.cat([ShiftedPositions(3)(X) for _ in range(100)])
    assert torch.equal(drawn - drawn[:, :1], torch.arange(5).expand(300, -1))
    counts = drawn[:, 0].bincount()
    assert len(counts) == 4 and all(abs(counts - 75) < 6 * 7.5)
    assert ShiftedPositions(3)(X[0]).shape == (5,)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_the_seed_repeats_a_draw_and_evaluation_draws_nothing(sampler):
    torch.manual_seed(4)
    first = sampler(X)
    torch.manual_seed(4)
    assert torch.equal(sampler(X), first)
    state = torch.get_rng_state()
    assert sampler.eval()(X) is None
    positions = rg.SinusoidalPositions(12, sampler=sampler).eval()
    assert torch.equal(positions(X), rg.SinusoidalPositions(12)(X))
    assert torch.equal(torch.get_rng_state(), state)
    sampler.train()


@pytest.mark.parametrize("sampler", [RandomPositions(9), ShiftedPositions(9)], ids=repr)
def test_absolute_positions_draw_and_leave_padding(sampler):
    positions = rg.nn.LearnedPositions(12, 16, dtype=F64, sampler=sampler)
    got = positions(torch.zeros(3, 5, 12, dtype=F64), offset=torch.tensor([-2, 0, -5]))
    for row, padding in zip(got, (2, 0, 5), strict=True):
        assert torch.equal(row[:padding], torch.zeros(padding, 12, dtype=F64))
        at = [(positions.weight == vector).all(1).nonzero().item() for vector in row[padding:]]
        assert at == sorted(set(at)) and len(at) == 5 - padding
        assert isinstance(positions.sampler, RandomPositions) or at == list(range(at[0], at[0] + len(at)) if at else [])


def layer_of(labeler, **options):
    torch.manual_seed(0)
    return fill_tables(rg.RelationAttention(12, 3, labeler=labeler, dtype=F64, **options))


LABELERS = (rg.ClippedDistance(3), rg.BucketedDistance(8, 12), rg.ClippedDistance(2) + rg.Window(4, 4))
ROTARY = rg.RotaryPositions(4)


@pytest.mark.parametrize("labeler", [*LABELERS, None], ids=repr)
@pytest.mark.parametrize("rotary", [None, ROTARY], ids=["", "rotary"])
def test_a_layer_counts_by_positions(labeler, rotary):
    if labeler is None and rotary is None:
        return
    layer, x, at = layer_of(labeler, rotary=rotary), X.clone().requires_grad_(), RandomPositions(30)(X)
    labels = None if labeler is None else labeler.at(at)
    parts = zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    q, k, v = ((x @ w.T + b).unflatten(-1, (3, 4)).transpose(1, 2) for w, b in parts)
    tables, rows = ({}, None) if labeler is None else (layer.tables(), None)
    if rotary is not None:
        key_tables = tables.pop("key_table", None)
        rows = None if key_tables is None else torch.utils._pytree.tree_map(lambda table: q @ table.mT / 2, key_tables)
        q, k = (turned_by_hand(y, at, 10000.0, "half") for y in (q, k))
    z = rg.relation_attention(q, k, v, labels, **tables, row_scores=rows, is_causal=True, impl="reference")
    wanted, got = layer.out_proj(z.transpose(1, 2).flatten(-2)), layer(x, positions=at, is_causal=True)
    close(got, wanted)
    weight, leaves = torch.randn_like(got), [x, *layer.parameters()]
    close(*(torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)))
    close(layer(x[0], positions=at[0]), layer(x, positions=at)[0])


@pytest.mark.parametrize("rotary", [None, ROTARY], ids=["", "rotary"])
def test_a_stack_uses_one_draw_and_a_shift_changes_nothing(rotary):
    attention = layer_of(LABELERS[0], rotary=rotary)
    layer = rg.RelationEncoderLayer(12, 3, 16, 0.0, dtype=F64, attention=attention)
    encoder, at = rg.RelationEncoder(layer, 2), RandomPositions(30)(X)
    wanted = X
    for part in encoder.layers:
        wanted = part(wanted, positions=at)
    close(encoder(X, positions=at), wanted)
    close(encoder(X, positions=ShiftedPositions(40)(X)), encoder(X))
    with mock.patch.object(rg.ClippedDistance, "at", side_effect=AssertionError):
        close(encoder(X, positions=None), encoder(X))


class Model(torch.nn.Module):
    def __init__(self, sampler):
        super().__init__()
        self.sampler, self.positions = sampler, rg.SinusoidalPositions(12, sampler=sampler)
        self.layer = layer_of(LABELERS[0], rotary=ROTARY)

    def forward(self, x):
        return self.layer(self.positions(x), positions=self.sampler(x))


@pytest.mark.parametrize("sampler", SAMPLERS[::2], ids=repr)
def test_it_compiles_and_exports(sampler):
    model = Model(sampler)

    def seeded(call):
        torch.manual_seed(3)
        return call(X)

    wanted = seeded(model)
    close(seeded(torch.compile(model, backend="eager", fullgraph=True)), wanted)
    close(seeded(torch.export.export(model, (X,)).module()), wanted)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="x must have at most longest = 4 rows, got 5"):
        RandomPositions(4)(X)
    absolute = rg.SinusoidalPositions(12, sampler=RandomPositions(9))
    for offset in (2, torch.tensor([0, 2, 0])):
        with pytest.raises(ValueError, match="offset must be at most 0 in training with RandomPositions.*got 2"):
            absolute(X, offset)
    with pytest.raises(ValueError, match="x must lie within the max_len = 6"):
        rg.nn.LearnedPositions(12, 6, sampler=ShiftedPositions(10**9))(X)
    model = rg.RelationTransformer(12, 3, 1, 1, 16, positions=(absolute, None))
    labels = rg.ClippedDistance(16)(5, ptr=torch.tensor([0, 2, 5]))
    with pytest.raises(NotImplementedError, match="positions must have no sampler for packed src"):
        model.encode(X[0].float(), src_labels=labels)


def test_positions_that_do_not_fit_are_refused():
    layer, at = layer_of(LABELERS[0]), torch.arange(5)
    with pytest.raises(ValueError, match=r"positions must have shape \[5\] or \[3, 5\], as query has, got \[4\]"):
        layer(X, positions=at[:4])
    with pytest.raises(ValueError, match="positions must be None for a layer that has no rotary"):
        layer(X, labels=LABELERS[0](5), positions=at)
    with pytest.raises(TypeError, match="positions must be None for a layer with ShortestPath"):
        rg.RelationAttention(12, 3, labeler=rg.ShortestPath(2), dtype=F64)(X, positions=at)
    for given in ({"key": X.clone()}, {"q_offset": 2}, {"cache": rg.KVCache()}):
        with pytest.raises(NotImplementedError, match=f"positions must be None with {next(iter(given))}"):
            layer(X, positions=at, **given)
