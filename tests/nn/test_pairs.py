"""Triangle attention and attention with pair bias, against their equations as loops over pairs."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.impl.native import build
from relgraph.nn import PairBiasAttention, TriangleAttention
from tests.cases import F64

IMPLS = ["reference", "chunked", *([] if build.missing() else ["native"])]


def heads_of(layer, name, x):
    """A projection of a vector, split by heads."""
    return getattr(layer, f"{name}_proj")(x).view(layer.heads, layer.head_dim)


def gated(layer, x, z):
    """The output projection of the gated sum of values."""
    return layer.out_proj(torch.sigmoid(layer.gate_proj(x)) * z.flatten())


def attended(layer, query, keys, values, biases, tables=None, ids=None):
    """One softmax over the given keys, per head; zero without keys."""
    if not keys:
        return torch.zeros(layer.heads, layer.head_dim, dtype=F64)
    scores = []
    for at, (key, bias) in enumerate(zip(keys, biases, strict=True)):
        key = key if tables is None else key + tables["key_table"][ids[at]]
        score = (query * key).sum(-1) / layer.head_dim**0.5 + bias
        scores.append(score if tables is None else score + tables["bias_table"][:, ids[at]])
    weights = torch.stack(scores).softmax(0)
    return sum(weight[:, None] * value for weight, value in zip(weights, values, strict=True))


def triangle(layer, pair, hidden, ids):
    """Algorithms 13 and 14, a pair at a time."""
    tables = None if layer.tables is None else layer.tables()
    out = torch.zeros_like(pair)
    for b, one in enumerate(pair):
        n, z = len(one), layer.norm(one)
        rows = []
        for i in range(n):
            for j in range(n):
                starting = layer.node == "starting"
                of = [k for k in range(n) if not (hidden[b, i, k] if starting else hidden[b, k, j])]
                seen = [z[i, k] if starting else z[k, j] for k in of]
                biases = [layer.pair_bias(z[j, k] if starting else z[k, i]) for k in of]
                keys, values = ([heads_of(layer, name, x) for x in seen] for name in ("key", "value"))
                own = [] if ids is None else [int(ids[j if starting else i, k]) for k in of]
                z_ij = attended(layer, heads_of(layer, "query", z[i, j]), keys, values, biases, tables, own)
                rows.append(gated(layer, z[i, j], z_ij))
        out[b] = torch.stack(rows).view(n, n, -1)
    return out


def with_pair_bias(layer, x, pair, hidden):
    """Algorithm 7, an element at a time; ``x`` is ``[B, S, N, E]``."""
    out = torch.zeros_like(x)
    for b, rows in enumerate(x):
        z = layer.pair_norm(pair[b])
        for s, row in enumerate(rows):
            a, made = layer.norm(row), []
            of = [j for j in range(len(row)) if not hidden[b, s, j]]
            keys, values = ([heads_of(layer, name, a[j]) for j in of] for name in ("key", "value"))
            for i in range(len(row)):
                biases = [layer.pair_bias(z[i, j]) for j in of]
                made.append(gated(layer, a[i], attended(layer, heads_of(layer, "query", a[i]), keys, values, biases)))
            out[b, s] = torch.stack(made)
    return out


def assert_equal(got, wanted, leaves):
    """Values and all gradients, to 1e-12."""
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0.0)
    weight = torch.randn_like(wanted)
    for one, two in zip(*(torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)), strict=True):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("node", ["starting", "ending"])
@pytest.mark.parametrize("labeled", [False, True])
def test_triangle_attention(node, impl, labeled):
    tables = rg.RelationTables(3, 4, 2, kinds=("key", "bias"), per_head=("bias",), dtype=F64) if labeled else None
    layer = TriangleAttention(6, 2, 4, node, tables=tables, impl=impl, dtype=F64)
    pair = torch.randn(2, 5, 5, 6, dtype=F64, requires_grad=True)
    hidden = torch.rand(2, 5, 5) < 0.3
    hidden[1, 2], hidden[1, :, 3] = True, True
    ids = torch.randint(3, (5, 5)) if labeled else None
    got = layer(pair, key_padding_mask=hidden, labels=ids)
    assert_equal(got, triangle(layer, pair, hidden, ids), [pair, *layer.parameters()])
    torch.testing.assert_close(layer(pair[0], key_padding_mask=hidden[0], labels=ids), got[0])
    nothing = torch.zeros_like(hidden)
    torch.testing.assert_close(layer(pair, labels=ids), triangle(layer, pair, nothing, ids), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("rows", [None, 3])
def test_pair_bias_attention(rows, impl):
    layer = PairBiasAttention(6, 5, 2, bias=("query", "value", "output"), impl=impl, dtype=F64)
    lead = (2,) if rows is None else (2, rows)
    x = torch.randn(*lead, 4, 6, dtype=F64, requires_grad=True)
    pair = torch.randn(2, 4, 4, 5, dtype=F64, requires_grad=True)
    hidden = torch.rand(*lead, 4) < 0.3
    hidden[-1] = True
    got = layer(x, pair, key_padding_mask=hidden)
    wide = [y[:, None] if rows is None else y for y in (x, hidden)]
    wanted = with_pair_bias(layer, wide[0], pair, wide[1])
    assert_equal(got, wanted[:, 0] if rows is None else wanted, [x, pair, *layer.parameters()])
    torch.testing.assert_close(layer(x[0], pair[0], key_padding_mask=hidden[0]), got[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hidden_pairs_in_half_types(dtype):
    """What a hidden pair holds changes nothing."""
    layer = TriangleAttention(6, 2, 4, dtype=dtype)
    pair, hidden = torch.randn(1, 5, 5, 6, dtype=dtype), torch.rand(1, 5, 5) < 0.4
    other = pair.clone()
    other[0, 0, 1], hidden[0, 0, 1] = 9.0, True
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen[0, 1] = False
    biases = layer.pair_bias.weight
    with torch.no_grad():
        biases.zero_()
        got, wanted = (layer(z, key_padding_mask=hidden)[0, seen] for z in (other, pair))
    assert torch.equal(got, wanted)


def test_sizes_of_nothing():
    layer = TriangleAttention(6, 2, 4)
    for shape in ((0, 3, 3, 6), (2, 0, 0, 6)):
        assert layer(torch.randn(shape), key_padding_mask=torch.zeros(shape[:3], dtype=torch.bool)).shape == shape


def test_what_does_not_fit_is_refused():
    layer, beside = TriangleAttention(6, 2, 4), PairBiasAttention(6, 5, 2)
    pair = torch.randn(2, 3, 3, 6)
    with pytest.raises(ValueError, match=r"pair must have shape \[B, N, N, C\] or \[N, N, C\] with C = 6, got \[2, 3"):
        layer(pair[..., :5])
    with pytest.raises(ValueError, match="pair must have as many rows as columns"):
        layer(pair[:, :2])
    with pytest.raises(ValueError, match="pair must have the dtype of the layer, torch.float32, got torch.float64"):
        layer(pair.double())
    with pytest.raises(ValueError, match=r"key_padding_mask must be bool \(True hides\), got torch.float32"):
        layer(pair, key_padding_mask=pair[..., 0])
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape .* = \[2, 3, 3\], got \[3, 3\]"):
        layer(pair, key_padding_mask=pair[0, ..., 0] > 0)
    with pytest.raises(
        ValueError, match=r"pair must have a number for each pair of x, \[2, 4, 4, 5\], got \[2, 3, 3, 5"
    ):
        beside(torch.randn(2, 4, 6), pair[..., :5])
    with pytest.raises(TypeError, match=r"bias must be a sequence of names of \['query', .*\], got 'gate'"):
        PairBiasAttention(6, 5, 2, bias="gate")
    with pytest.raises(TypeError, match="tables must be RelationTables or None, got tuple"):
        TriangleAttention(6, 2, 4, tables=("key",))
