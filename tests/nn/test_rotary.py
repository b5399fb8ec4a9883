"""Rotary positions: the turn of pairs, and layers whose queries and keys are turned."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from tests.layers import attention_layer

from .helpers import F64, close, fill_tables

LABELER = rg.ClippedDistance(2)
POSITIONS = torch.tensor([-3, 0, 1, 40, 100_000])


def turned_by_hand(x, positions, base, layout):
    """Turn each pair of ``[B, H, N, D]`` as one complex number, at positions ``[B, N]``."""
    size = x.shape[-1]
    out = torch.empty_like(x)
    for b, n in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[2])).tolist():
        for i in range(size // 2):
            at = (i, i + size // 2) if layout == "half" else (2 * i, 2 * i + 1)
            angle = torch.tensor(float(positions[b, n]) / base ** (2 * i / size), dtype=F64)
            pair = torch.complex(x[b, :, n, at[0]], x[b, :, n, at[1]]) * torch.polar(torch.ones((), dtype=F64), angle)
            out[b, :, n, at[0]], out[b, :, n, at[1]] = pair.real, pair.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("base", [10000.0, 7.5])
def test_each_pair_is_turned(layout, base):
    rotary, x = rg.RotaryPositions(6, base=base, layout=layout), torch.randn(2, 3, 5, 6, dtype=F64)
    own = torch.stack([POSITIONS, POSITIONS.flip(0)])
    close(rotary(x, own), turned_by_hand(x, own, base, layout), 1e-9)  # at 100,000 an angle has fewer digits
    close(rotary(x, POSITIONS), turned_by_hand(x, POSITIONS.expand(2, -1), base, layout), 1e-9)
    assert rotary(x.bfloat16(), POSITIONS).dtype == torch.bfloat16


def layer_of(**options):
    torch.manual_seed(0)
    rotary = rg.RotaryPositions(4, layout="interleaved")
    layer = attention_layer(12, 3, labeler=LABELER, head_dim=4, rotary=rotary, dtype=F64, **options)
    for bias in (layer.content_bias, layer.position_bias):
        if bias is not None:
            torch.nn.init.normal_(bias)
    return fill_tables(layer)


def by_hand(layer, x, labels, offset=0, memory=None):
    """The layer with queries from ``offset`` on and keys from 0 on, both turned one pair at a time."""
    memory = x if memory is None else memory
    parts = zip((x, memory, memory), layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    q, k, v = ((y @ w.T + b).unflatten(-1, (-1, 4)).transpose(1, 2) for y, w, b in parts)
    offsets = torch.as_tensor(offset).expand(len(x))[:, None]
    biases = [0.0 if bias is None else bias[:, None] for bias in (layer.content_bias, layer.position_bias)]
    tables = layer.tables()
    plain = (q + biases[1]) @ tables.pop("key_table").mT * layer.head_dim**-0.5
    q = turned_by_hand(q + biases[0], torch.arange(x.shape[1]) + offsets, 10000.0, "interleaved")
    k = turned_by_hand(k, torch.arange(memory.shape[1]).expand(len(x), -1), 10000.0, "interleaved")
    z = rg.relation_attention(q, k, v, labels, **tables, row_scores=plain, impl="reference")
    return layer.out_proj(z.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("offset", [None, 2, torch.tensor([0, 3])], ids=["from 0", "from 2", "per batch row"])
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_a_layer_turns_queries_and_keys(offset, biases):
    layer, x = layer_of(content_bias=biases, position_bias=biases), torch.randn(2, 5, 12, dtype=F64, requires_grad=True)
    memory = torch.randn(2, 8, 12, dtype=F64, requires_grad=True)
    at = 0 if offset is None else offset
    labels = LABELER(5, 8, q_offset=offset)
    got, wanted = layer(x, memory, labels=labels), by_hand(layer, x, labels, at, memory)
    close(got, wanted)
    weight, leaves = torch.randn_like(got), [x, memory, *layer.parameters()]
    close(*(torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)))


def test_packed_sequences_count_from_their_own_first_row():
    layer, lengths = layer_of(content_bias=True, position_bias=True), [3, 0, 6]
    x = torch.randn(9, 12, dtype=F64)
    got = layer(x, labels=LABELER(9, ptr=torch.tensor([0, 3, 3, 9])))
    alone = [by_hand(layer, part[None], LABELER(len(part)))[0] for part in x.split(lengths) if len(part)]
    close(got, torch.cat(alone))


@pytest.mark.parametrize("grad", [False, True])
def test_a_cache_holds_turned_keys(grad):
    layer, x, cache = layer_of(), torch.randn(2, 9, 12, dtype=F64), rg.KVCache()
    with torch.set_grad_enabled(grad):
        steps = [layer(part, is_causal=True, cache=cache) for part in x.split([4, 1, 1, 2, 1], 1)]
        close(torch.cat(steps, 1), layer(x, is_causal=True))
        memory, static = torch.randn(2, 6, 12, dtype=F64), rg.KVCache(static=True)
        whole = layer(x, memory, labels=LABELER(9, 6), q_offset=0)
        for at in (0, 4):
            some = layer(x[:, at : at + 4], memory, labels=LABELER(4, 6, q_offset=at), cache=static)
            close(some, whole[:, at : at + 4])


def test_it_compiles_and_exports():
    layer, x = layer_of().eval(), torch.randn(2, 5, 12, dtype=F64)
    wanted = layer(x)
    close(torch.compile(layer, backend="eager", fullgraph=True)(x), wanted)
    close(torch.export.export(layer, (x,)).module()(x), wanted)


def test_refused():
    with pytest.raises(ValueError, match="head_dim must be even.*got 5"):
        rg.RotaryPositions(5)
    with pytest.raises(ValueError, match=r"head_dim = 4, got 8"):
        attention_layer(8, 2, rotary=rg.RotaryPositions(8))
    with pytest.raises(NotImplementedError, match="rotary cannot be combined with a query table"):
        attention_layer(8, 2, num_labels=3, tables=("query",), rotary=rg.RotaryPositions(4))
    with pytest.raises(ValueError, match="rotary must be None with score=Additive"):
        attention_layer(8, 2, score=rg.score.Additive.learned(2, 4), rotary=rg.RotaryPositions(4))
    with pytest.raises(ValueError, match=r"positions must have shape \[3\] or \[1, 3\], got \[4\]"):
        rg.RotaryPositions(4)(torch.randn(1, 2, 3, 4), torch.arange(4))
