"""Layers with scores other than the dot product and maps of values: a loop over pairs, and all that a module survives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import relgraph as rg
from relgraph.labelers import ClippedDistance
from relgraph.labels import DenseLabels, EdgeLabels
from relgraph.nn import KVCache, LayerCache
from relgraph.score import Additive, Bilinear, LeakyReLU, Softcap
from tests.layers import attention_layer, decoder_layer, encoder_layer

from .helpers import F64, close

LABELER = ClippedDistance(2)
HEADS, SIZE, LABELS = 3, 4, 5
SCORES = {
    "softcap": lambda: Softcap(0.7),
    "leaky relu": lambda: LeakyReLU(0.3),
    "function": lambda: torch.sin,
    "module": lambda: nn.PReLU(dtype=F64),
    "additive": lambda: Additive(new_parameter(HEADS, SIZE), "tanh"),
    "additive, heads alike": lambda: Additive(new_parameter(SIZE)),
    "bilinear": lambda: Bilinear(new_parameter(HEADS, LABELS, SIZE, SIZE)),
    "bilinear, heads alike": lambda: Bilinear(new_parameter(LABELS, SIZE, SIZE)),
}
OPTIONS = {
    **{name: lambda make=make: {"score": make()} for name, make in SCORES.items()},
    "maps": lambda: {"value_map": True},
    "bases": lambda: {"value_map": 2},
    "additive and maps": lambda: {"score": Additive(new_parameter(HEADS, SIZE)), "value_map": 2},
}
EACH = pytest.mark.parametrize("name", OPTIONS)
SOME = pytest.mark.parametrize("name", ["function", "additive", "bilinear, heads alike", "bases"])


def new_parameter(*shape):
    return nn.Parameter(torch.randn(shape, dtype=F64))


def make(name=None, *, embed_dim=HEADS * SIZE, num_heads=HEADS, seed=0, **options):
    """Make a layer with random parameters."""
    torch.manual_seed(seed)
    own = {} if name is None else OPTIONS[name]()
    layer = attention_layer(embed_dim, num_heads, **{"num_labels": LABELS, "dtype": F64, **own, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def pair_by_pair(layer, x, labels, rows=None):
    """Compute self-attention one pair, head and batch row at a time."""
    ids, attend = labels.to_dense()
    head = layer.head_dim
    sizes = [layer.embed_dim, layer.num_kv_heads * head, layer.num_kv_heads * head]
    q, k, v = linear(x, layer.in_proj_weight, layer.in_proj_bias).split(sizes, -1)
    tables = {kind: getattr(layer.tables, kind) for kind in ("key", "value", "query", "bias")}

    def row(kind, h, label, shape):
        if tables[kind] is None or label < 0:
            return torch.zeros(shape, dtype=F64)
        found = tables[kind].rows
        return found[h, label] if tables[kind].heads is not None else found[label]

    out = []
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            parts = []
            for h in range(layer.num_heads):
                mine = slice(h * head, (h + 1) * head)
                shared = h * layer.num_kv_heads // layer.num_heads
                theirs = slice(shared * head, (shared + 1) * head)
                scores, values = [], []
                for j in range(x.shape[1]):
                    if not attend[b % len(attend), i, j]:
                        continue
                    label = int(ids[b % len(ids), i, j])
                    e = score_of_pair(
                        layer.score, h, label, q[b, i, mine], k[b, j, theirs],
                        row("key", h, label, head), row("query", h, label, head),
                    ) + row("bias", h, label, ())  # fmt: skip
                    if rows is not None and label >= 0:
                        e = e + rows[b, h, i, label]
                    if not isinstance(layer.score, (Additive, Bilinear)):
                        e = e if layer.score is None else finished(layer.score, e)
                    scores.append(e)
                    values.append(map_of_pair(layer, h, label) @ v[b, j, theirs] + row("value", h, label, head))
                parts.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            out.append(torch.cat(parts))
    return layer.out_proj(torch.stack(out).view(*x.shape[:2], -1))


def score_of_pair(score, h, label, query, key, key_row, query_row):
    if isinstance(score, Additive):
        weight = score.weight if score.weight.dim() == 1 else score.weight[h]
        summed = query + key + key_row
        acted = summed.tanh() if score.activation == "tanh" else torch.where(summed > 0, summed, 0.2 * summed)
        return (weight * acted).sum()
    dot = query @ key
    if isinstance(score, Bilinear) and label >= 0:
        weight = score.weight if score.weight.dim() == 3 else score.weight[h]
        dot = query @ weight[label] @ key
    return (dot + query @ key_row + key @ query_row) / math.sqrt(len(query))


def finished(score, e):
    if isinstance(score, Softcap):
        return score.cap * (e / score.cap).tanh()
    if isinstance(score, LeakyReLU):
        return torch.where(e > 0, e, score.negative_slope * e)
    return score(e)


def map_of_pair(layer, h, label):
    maps = layer.value_map
    if maps is None or label < 0:
        return torch.eye(layer.head_dim, dtype=F64)
    if maps.maps is not None:
        return maps.maps[h, label]
    return sum(maps.coefficients[label, k] * maps.bases[h, k] for k in range(maps.num_bases))


def some_labels():
    """Make labels with every id, and pairs without one."""
    ids = torch.randint(-1, LABELS, (2, 5, 5), generator=torch.Generator().manual_seed(1))
    return DenseLabels(ids, LABELS)


def some_pairs():
    pairs = torch.tensor([[0, 1, 2, 3, 4, 0], [0, 0, 1, 2, 3, 4]])
    return EdgeLabels(pairs, torch.tensor([0, 3, -1, 2, 4, 1]), LABELS, q_len=5)


def same(got, wanted, leaves):
    """Check outputs and gradients, and that no gradient is all zero."""
    close(got, wanted)
    weight = torch.randn_like(got)
    gradients = [torch.autograd.grad((z * weight).sum(), leaves) for z in (got, wanted)]
    close(*gradients)
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])


class TestAgainstPairByPair:
    @pytest.mark.parametrize(("impl", "num_kv_heads"), [("reference", 3), ("dense", 1), ("chunked", 1)])
    @EACH
    def test_every_pair(self, name, impl, num_kv_heads):
        kinds = ("key", "value", "bias") if "additive" in name else ("key", "value", "query", "bias")
        layer = make(name, tables=kinds, per_head=("value",), impl=impl, num_kv_heads=num_kv_heads)
        x = torch.randn(2, 5, HEADS * SIZE, dtype=F64, requires_grad=True)
        same(layer(x, labels=some_labels()), pair_by_pair(layer, x, some_labels()), [x, *layer.parameters()])

    @EACH
    def test_edges_alone(self, name):
        layer, x = make(name, impl="edges"), torch.randn(1, 5, HEADS * SIZE, dtype=F64, requires_grad=True)
        same(layer(x, labels=some_pairs()), pair_by_pair(layer, x, some_pairs()), [x, *layer.parameters()])

    @pytest.mark.parametrize("name", [None, "softcap", "additive", "bilinear", "bases"])
    def test_scores_by_row(self, name):
        layer = make(name, tables=("value", "bias"))
        x = torch.randn(2, 5, HEADS * SIZE, dtype=F64, requires_grad=True)
        rows = torch.randn(2, HEADS, 5, LABELS, dtype=F64, requires_grad=True)
        got = layer(x, labels=some_labels(), row_scores=rows)
        same(got, pair_by_pair(layer, x, some_labels(), rows), [x, rows, *layer.parameters()])
        alone = layer(x[0], labels=LABELER(5), row_scores=rows[0])
        close(alone, layer(x, labels=LABELER(5), row_scores=rows)[0])

    @pytest.mark.parametrize("name", ["additive", "bilinear", "maps", "bases"])
    def test_gradcheck(self, name):
        layer = make(name, embed_dim=4, num_heads=2, num_labels=3, **small(name))
        x = torch.randn(1, 3, 4, dtype=F64, requires_grad=True)
        learned = [p for n, p in layer.named_parameters() if n.startswith(("score", "value_map"))]

        def run(x, *_):
            return layer(x, labels=ClippedDistance(1)(3))

        assert torch.autograd.gradcheck(run, (x, *learned))
        assert torch.autograd.gradgradcheck(run, (x, *learned))


def small(name):
    """Make options for two heads of two, and three labels."""
    weights = {
        "additive": lambda: Additive(new_parameter(2, 2), "tanh"),
        "bilinear": lambda: Bilinear(new_parameter(2, 3, 2, 2)),
    }
    return {"score": weights[name]()} if name in weights else {}


class TestParameters:
    def test_maps_begin_as_the_identity(self):
        plain, x = attention_layer(12, 3, num_labels=5, dtype=F64), torch.randn(2, 6, 12, dtype=F64)
        for value_map in (True, 1, 3):
            layer = attention_layer(12, 3, num_labels=5, value_map=value_map, dtype=F64)
            layer.load_state_dict(plain.state_dict(), strict=False)
            close(layer(x, labels=LABELER(6)), plain(x, labels=LABELER(6)))
            layer(x, labels=LABELER(6)).square().sum().backward()
            learned = layer.value_map.maps if value_map is True else layer.value_map.coefficients
            assert learned.grad.abs().min() > 0

    def test_stacks_copy_and_layers_share(self):
        score = Additive.learned(HEADS, SIZE, dtype=F64)
        options = {"labeler": LABELER, "score": score, "value_map": 2, "dtype": F64}
        layer = encoder_layer(12, 3, 20, **options)
        stack = rg.RelationEncoder(layer, 3)
        assert len({id(layer.self_attn.score.weight) for layer in stack.layers}) == 3
        model = nn.ModuleList([layer, encoder_layer(12, 3, 20, **options)])
        assert [name for name, _ in model.named_parameters() if "score" in name] == ["0.self_attn.score.weight"]
        before = [one.self_attn.score.weight.detach().clone() for one in stack.layers]
        stack.reset_parameters()
        after = [one.self_attn.score.weight for one in stack.layers]
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not torch.equal(after[0], after[1])

    def test_reset(self):
        layer = make("additive and maps")
        layer.reset_parameters()
        assert layer.score.weight.abs().max() <= (6 / (HEADS + SIZE)) ** 0.5
        close(layer.value_map.bases[:, 0], torch.eye(SIZE, dtype=F64).expand(HEADS, SIZE, SIZE))
        close(layer.value_map.coefficients[0], torch.tensor([1.0, 0.0], dtype=F64))
        layer = make(score=Bilinear.learned(LABELS, HEADS, SIZE, dtype=F64), value_map=True)
        layer.reset_parameters()
        wanted = torch.eye(SIZE, dtype=F64).expand(HEADS, LABELS, SIZE, SIZE)
        close((layer.score.weight, layer.value_map.maps), (wanted, wanted))
        make("function").reset_parameters()

    def test_repr(self):
        text = repr(attention_layer(12, 3, num_labels=5, score=Softcap(2.0), value_map=2))
        assert "head_dim=4, score=Softcap(cap=2.0)\n" in text
        assert "(value_map): ValueMaps(5, 4, heads=3, num_bases=2)" in text
        text = repr(attention_layer(12, 3, num_labels=5, score=Additive.learned(3, 4), value_map=True))
        assert "(score): Additive([3, 4], activation='leaky_relu')" in text
        assert "(value_map): ValueMaps(5, 4, heads=3)\n" in text
        assert "score=sin" in repr(attention_layer(12, 3, score=torch.sin))


class TestLayers:
    def test_scores_by_row_of_a_sum(self):
        labeler = LABELER + ClippedDistance(1)
        layer, x = make(num_labels=labeler.num_labels, tables=("bias",)), torch.randn(2, 5, 12, dtype=F64)
        rows = [torch.randn(2, HEADS, 5, size, dtype=F64) for size in labeler.num_labels]
        z = layer(x, labels=labeler(5), row_scores=tuple(rows))
        given = [rows[0] + layer.tables.bias[0].rows, rows[1] + layer.tables.bias[1].rows]
        with torch.no_grad():
            layer.tables.bias[0].rows.zero_(), layer.tables.bias[1].rows.zero_()
        close(layer(x, labels=labeler(5), row_scores=given), z)
        half = layer(x, labels=labeler(5), row_scores=(given[0], None))
        close(half, layer(x, labels=labeler(5), row_scores=(given[0], torch.zeros_like(given[1]))))

    @SOME
    def test_autocast(self, name):
        layer, x = make(name).float(), torch.randn(2, 6, 12, requires_grad=True)
        wanted = layer(x, labels=LABELER(6))
        with torch.autocast("cpu", torch.bfloat16):
            got = layer(x, labels=LABELER(6))
        assert got.dtype == torch.bfloat16
        close(got.float(), wanted, atol=0.1)
        got.float().square().sum().backward()
        assert all(p.grad.dtype == torch.float32 and torch.isfinite(p.grad).all() for p in layer.parameters())

    @SOME
    def test_encoder_layer(self, name):
        layer = encoder_layer(12, 3, 20, 0.0, labeler=LABELER, dtype=F64, **OPTIONS[name]()).eval()
        x, cache = torch.randn(2, 5, 12, dtype=F64), KVCache()
        steps = [layer(x[:, i : i + 1], is_causal=True, cache=cache) for i in range(5)]
        close(torch.cat(steps, 1), layer(x, is_causal=True))
        attended = layer.norm1(x + layer.self_attn(x, labels=LABELER(5)))
        close(layer(x), layer.norm2(attended + layer.linear2(layer.linear1(attended).relu())))

    @SOME
    def test_decoder_layer(self, name):
        own = OPTIONS[name]()
        memory_own = {f"memory_{option}": value for option, value in own.items()}
        layer = decoder_layer(
            12, 3, 20, 0.0, labeler=LABELER, num_memory_labels=LABELS, dtype=F64, **own, **memory_own
        ).eval()
        x, memory, cache = torch.randn(2, 4, 12, dtype=F64), torch.randn(2, 6, 12, dtype=F64), LayerCache()
        labels = DenseLabels(torch.randint(-1, LABELS, (4, 6)), LABELS)
        wanted = layer(x, memory, labels=LABELER(4), memory_labels=labels, tgt_is_causal=True)
        own = layer.norm1(x + layer.self_attn(x, labels=LABELER(4), is_causal=True))
        both = layer.norm2(own + layer.multihead_attn(own, memory, labels=labels))
        close(wanted, layer.norm3(both + layer.linear2(layer.linear1(both).relu())))
        ids, steps = labels.to_dense()[0], []
        for i in range(4):
            given = DenseLabels(ids[:, i : i + 1], LABELS)
            steps.append(layer(x[:, i : i + 1], memory, memory_labels=given, tgt_is_causal=True, cache=cache))
        close(torch.cat(steps, 1), wanted)

    @pytest.mark.parametrize("norm_first", [False, True])
    def test_scores_by_row_of_an_encoder_layer(self, norm_first):
        own = {"labeler": LABELER, "tables": ("value",), "norm_first": norm_first}
        layer = encoder_layer(12, 3, 20, 0.0, dtype=F64, **own).eval()
        x = torch.randn(2, 5, 12, dtype=F64)
        rows = torch.randn(2, HEADS, 5, LABELS, dtype=F64, requires_grad=True)
        z, labels = layer(x, row_scores=rows), LABELER(5)
        if norm_first:
            attended = x + layer.self_attn(layer.norm1(x), labels=labels, row_scores=rows)
            wanted = attended + layer.linear2(layer.linear1(layer.norm2(attended)).relu())
        else:
            attended = layer.norm1(x + layer.self_attn(x, labels=labels, row_scores=rows))
            wanted = layer.norm2(attended + layer.linear2(layer.linear1(attended).relu()))
        same(z, wanted, [rows])
        close(layer(x[0], row_scores=rows[0]), z[0])
        packed = layer(
            x.flatten(0, 1), labels=LABELER(10, ptr=torch.tensor([0, 5, 10])), row_scores=torch.cat([*rows], 1)
        )
        close(packed, z.flatten(0, 1))
        cache, steps = KVCache(), []
        for i in range(5):
            at = slice(i, i + 1)
            steps.append(layer(x[:, at], is_causal=True, cache=cache, row_scores=rows[:, :, at]))
        close(torch.cat(steps, 1), layer(x, is_causal=True, row_scores=rows))


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "error", "match"),
        [
            ({"score": Additive(torch.ones(4)), "tables": ("query",)}, ValueError, "tables must leave out 'query'"),
            ({"score": Bilinear(torch.ones(5, 4, 4)), "num_labels": None}, ValueError, "Bilinear needs tables"),
            ({"score": Bilinear(torch.ones(5, 4, 4)), "num_labels": (5, 2)}, NotImplementedError, "sum of 2 labels"),
            ({"score": Additive(new_parameter(4) * 2.0)}, ValueError, "score.weight must be a parameter"),
            ({"value_map": True, "num_labels": None}, ValueError, "value_map must be False .* with num_labels=None"),
            ({"value_map": True, "num_labels": (5, 2)}, NotImplementedError, "value_map needs one label per pair"),
        ],
    )
    def test_options_that_do_not_go_together(self, given, error, match):
        with pytest.raises(error, match=match):
            attention_layer(12, 3, **{"num_labels": 5, **given})

    def test_a_weight_that_a_parametrization_computes(self):
        score = Additive.learned(3, 4, dtype=F64)
        nn.utils.parametrize.register_parametrization(score, "weight", nn.Tanh())
        layer, x = attention_layer(12, 3, num_labels=5, score=score, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
        for _ in range(2):
            score.zero_grad()
            layer(x, labels=LABELER(5)).sum().backward()
            assert all(parameter.grad.abs().sum() > 0 for parameter in score.parameters())

    def test_a_function_that_changes_the_shape(self):
        layer, x = make(score=lambda e: e[..., :1]), torch.randn(2, 5, 12, dtype=F64)
        with pytest.raises(ValueError, match="score must keep shape and dtype"):
            layer(x, labels=LABELER(5))
        decoder = decoder_layer(12, 3, 20, memory_score=lambda e: e.detach(), dtype=F64)
        with pytest.raises(ValueError, match="score must be differentiable by torch"):
            decoder(x, x)
