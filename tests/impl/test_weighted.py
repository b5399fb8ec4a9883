"""Weighted labels: values and all gradients against loops over pairs, and what takes or refuses them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import relgraph as rg
from relgraph.impl.eager import edges, rows
from relgraph.plan import lower
from tests.cases import ALL, F64, WEIGHTED, answer, assert_same, make, several

Q, K, D, R = 5, 6, 3, 4
IMPLS = ("reference", "dense", "chunked")


def leaves(*shape):
    return torch.randn(shape, dtype=F64, requires_grad=True)


def by_loops(query, key, value, pairs, tables, scale):
    """Output and masses; ``pairs[b][i]`` lists (key, labels, weights) of the keys of a query."""
    (batch, heads, queries, _), outputs, masses = query.shape, [], []
    for b, h, i in ((b, h, i) for b in range(batch) for h in range(heads) for i in range(queries)):
        q, scores, values = query[b, h, i], [], []
        for j, labels, weights in pairs[b][i]:
            k, v = key[b, h, j], value[b, h, j]
            score = q @ k * scale
            for label, weight in zip(labels.tolist(), weights, strict=True):
                if label >= 0:
                    a_k, a_v, a_q, bias = (table[label] for table in tables)
                    score = score + weight * ((q @ a_k + k @ a_q) * scale + bias)
                    v = v + weight * a_v
            scores.append(score)
            values.append(v)
        alpha = torch.stack(scores).softmax(0) if scores else query.new_zeros(0)
        mass = [query.new_zeros(())] * R
        for a, (_, labels, weights) in zip(alpha, pairs[b][i], strict=True):
            for label, weight in zip(labels.tolist(), weights, strict=True):
                if label >= 0:
                    mass[label] = mass[label] + a * weight
        outputs.append((alpha[:, None] * torch.stack(values)).sum(0) if scores else value.new_zeros(D))
        masses.append(torch.stack(mass))
    return [torch.stack(x).view(batch, heads, queries, -1) for x in (outputs, masses)]


@pytest.mark.parametrize("layout", ["all pairs", "own edges", "shared edges"])
def test_the_equations_by_loops(layout, monkeypatch):
    torch.manual_seed(3)
    query, key, value = leaves(2, 2, Q, D), leaves(2, 2, K, D), leaves(2, 2, K, D)
    tables = [leaves(R, D), leaves(R, D), leaves(R, D), leaves(R)]
    attend = torch.rand(2, Q, K) > 0.3
    attend[:, 2] = False
    if layout == "shared edges":
        attend[1] = attend[0]
    ids, weights = torch.randint(-1, R, (1, Q, K, 3)), leaves(1 if layout == "shared edges" else 2, Q, K, 3)
    every = weights.expand(2, -1, -1, -1)
    pairs = [
        [[(j, ids[0, i, j], every[b, i, j]) for j in range(K) if attend[b, i, j]] for i in range(Q)] for b in (0, 1)
    ]
    if layout == "all pairs":
        labels = rg.WeightedLabels(ids, weights, R, attend=attend)
    else:
        b, i, j = attend[: weights.shape[0]].nonzero()[torch.randperm(int(attend[: weights.shape[0]].sum()))].unbind(1)
        own = {"batch": b, "batch_size": 2} if layout == "own edges" else {}
        labels = rg.WeightedLabels.over_edges(
            torch.stack([j, i]), ids[0, i, j], weights[b, i, j], R, q_len=Q, k_len=K, **own
        )
    learned, out = [query, key, value, weights, *tables], torch.randn(2, 2, Q, D + R, dtype=F64)
    wanted = by_loops(query, key, value, pairs, tables, 0.7)
    grads = torch.autograd.grad((torch.cat(wanted, -1) * out).sum(), learned)
    others = () if layout == "all pairs" else ("edges", "edges row by row")
    for impl in (*IMPLS, "native", None, *others):
        monkeypatch.setattr(edges, "LABELS_A_PAIR", 0.0 if impl == "edges row by row" else 1e9)
        z, aux = rg.relation_attention_with_aux(
            query, key, value, labels, *tables, scale=0.7, need_label_mass=True, impl=impl and impl.split(" ")[0]
        )
        got = [z, aux.label_mass]
        assert_same(got, wanted, 1e-12, f"{impl} output")
        total = (torch.cat(got, -1) * out).sum()
        assert_same(torch.autograd.grad(total, learned, retain_graph=True), grads, 1e-12, f"{impl} gradient")


@pytest.mark.parametrize("kind", [kind for kind in WEIGHTED if "parallel" not in kind])
def test_small_blocks(kind, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK_NUMBERS", 100)
    case = make(ALL[kind](8), n=8)
    for got, wanted in zip(answer(case, "chunked"), answer(case, "reference"), strict=True):
        assert_same(got, wanted)


def test_many_labels():
    """So many that kernels would read slices of a table by distance."""
    case = make(rg.WeightedLabels(*several(9, 9, labels=600), 600), n=9)
    for got, wanted in zip(answer(case, "native"), answer(case, "reference"), strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("kind", ["weighted batch", "weighted in a sum", "weighted edges", "weighted edges batch"])
@pytest.mark.parametrize("score", ["additive", "softcap", "rows", "batched"])
def test_with_other_options(kind, score):
    labels = ALL[kind](7)
    case = make(labels, kinds="vb" if score == "rows" else "kvb" if score == "additive" else "kvqb", per_head="v")
    if score == "batched":
        case = make(labels, per_head="v", batched="kqb")
    elif score == "rows":
        sizes = labels.num_labels if isinstance(labels, rg.SumLabels) else (labels.num_labels,)
        given = tuple(leaves(2, 2, 7, size) for size in sizes)
        case.options["row_scores"] = given if len(given) > 1 else given[0]
    else:
        weight = leaves(2, 3)
        case.options["score"] = rg.score.Additive(weight, "tanh") if score == "additive" else rg.score.Softcap(2.0)
    wanted = answer(case, "reference")
    impls, refused = ("dense", "chunked", "native"), "additive"
    if "edges" in kind:
        impls, refused = (*impls, "edges"), "batched"
    for impl in impls:
        if impl == "native" and score == refused:
            continue
        for got, true in zip(answer(case, impl), wanted, strict=True):
            assert_same(got, true, what=impl)


def test_weights_are_no_part_of_what_is_remembered():
    """Labels with other weights use the same plan, get results of their own, and no graph outlives its weights."""
    for make_labels in (WEIGHTED["weighted"], WEIGHTED["weighted edges"]):
        first = make_labels(7)
        lower(first)
        x, table = torch.randn(1, 2, 7, 4, dtype=F64), torch.randn(3, 4, dtype=F64)

        def attend(labels, impl=None, x=x, table=table):
            return rg.relation_attention(x, x, x, labels, table, table, impl=impl)

        for impl in (None, "dense", "chunked"):
            made = torch.randn_like(first.weights, requires_grad=True) * 2
            gone, second = weakref.ref(made), first.with_weights(made)
            z = attend(second, impl)
            assert (z - attend(first, impl)).abs().max() > 0.01
            torch.testing.assert_close(z, attend(second, "reference"))
            assert second._plan is first._plan
            assert torch.autograd.grad(z.sum(), made)[0].abs().sum() > 0
            del made, second, z
            gc.collect()
            assert gone() is None


def test_a_layer_learns_the_weights():
    layer = rg.RelationAttention(8, 2, num_labels=3).double()
    ids, given = several(5, 5)
    weights = given.requires_grad_()
    x = torch.randn(2, 5, 8, dtype=F64)
    _, mass = layer(x, labels=rg.WeightedLabels(ids, weights, 3), need_label_mass=True)
    assert mass.shape == (2, 2, 5, 3)
    assert torch.autograd.gradcheck(lambda w: layer(x, labels=rg.WeightedLabels(ids, w, 3)), weights)
    one = layer(x, labels=rg.WeightedLabels(ids[..., :1], torch.ones(5, 5, 1), 3))
    torch.testing.assert_close(one, layer(x, labels=rg.DenseLabels(ids[..., 0], 3)))


def test_edge_attention_takes_them():
    labels = WEIGHTED["weighted edges parallel"](6)
    x, table = torch.randn(6, 2, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    z, alpha = rg.edge_attention(x, x, x, labels, table, table, need_weights=True)
    same = rg.relation_attention(*[x.transpose(0, 1)[None]] * 3, labels, table, table, impl="reference")
    torch.testing.assert_close(z, same[0].transpose(0, 1))
    assert alpha.shape == (labels.ids.shape[0], 2)
    with pytest.raises(ValueError, match="labels must have default=None and no batch axis, got WeightedLabels"):
        rg.edge_attention(x, x, x, WEIGHTED["weighted"](6), table)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("value_map needs one label per pair, got weighted labels", {"value_map": torch.zeros(3, 4, 4)}),
        ("score=Bilinear needs one label", {"score": rg.score.Bilinear(torch.zeros(3, 4, 4))}),
    ],
)
def test_what_refuses_them(message, options):
    x = torch.randn(1, 2, 5, 4)
    with pytest.raises(NotImplementedError, match=message):
        rg.relation_attention(x, x, x, WEIGHTED["weighted"](5), torch.randn(3, 4), **options)


def test_kernels_say_which_they_refuse():
    x, table = torch.randn(1, 2, 5, 16), torch.randn(3, 16)
    labels = WEIGHTED["weighted"](5)
    refused = rg.which_impl(x, x, x, labels, table).refused
    assert refused["triton"].endswith("has no weighted labels; use impl='chunked'")
    refused = rg.which_impl(x, x, x, rg.SumLabels(labels, labels), (table, table)).refused
    assert "has weighted labels over all pairs in at most one part" in refused["native"]
    refused = rg.which_impl(x, x, x, labels, score=rg.score.Additive(torch.ones(16))).refused
    assert "has weighted labels over all pairs with dot products only" in refused["native"]
