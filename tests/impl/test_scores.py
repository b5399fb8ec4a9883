"""Scores, rows and maps that are given, and masks that learn: every implementation against the reference."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.impl.chunked import blocks, by_rows
from tests.cases import F64, KINDS, answer, assert_same, make

pytestmark = pytest.mark.usefixtures("poisoned")

ONE_LABEL = [k for k in KINDS if k not in ("sum", "none", "edges sum", "edges sum batch", "edges over edges")]


def implementations(kind):
    if kind == "edges only parallel":
        return ["edges"]
    return ["dense", "chunked", *(["edges"] if kind.startswith("edges only") else [])]


def leaf(*shape):
    return torch.randn(shape, dtype=F64, requires_grad=True)


def check(case, kind, extra=(), **options):
    case.inputs += [x for x in extra if x is not None]  # leaves whose gradients are compared
    inputs, extra = case.inputs[:3], case.inputs[3:]

    class Both(type(case)):
        leaves = property(lambda self: [*super().leaves, *extra])

    both = Both(case.labels, inputs, case.tables, case.options)
    wanted = answer(both, "reference", **options)
    for impl in implementations(kind):
        got = answer(both, impl, **options)
        assert_same(got[0], wanted[0], what=f"{impl} output")
        assert_same(got[1], wanted[1], what=f"{impl} gradient")


FUNCTIONS = {
    "softcap": rg.score.Softcap(1.5),
    "leaky relu": rg.score.LeakyReLU(0.2),
    "function": lambda scores: torch.sin(scores) + scores,
    "module": torch.nn.Softplus(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_finished_scores(kind, name):
    check(make(KINDS[kind](7), score=FUNCTIONS[name]), kind)


@pytest.mark.parametrize("activation", ["leaky_relu", torch.tanh], ids=["leaky relu", "tanh"])
@pytest.mark.parametrize("kind", KINDS)
def test_additive(kind, activation):
    weight = leaf(2, 3)
    case = make(KINDS[kind](7), kinds="kvb", per_head="k", score=rg.score.Additive(weight, activation))
    check(case, kind, [weight])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kind", ONE_LABEL)
def test_bilinear(kind, per_head):
    labels = KINDS[kind](7)
    weight = leaf(*([2] if per_head else []), labels.num_labels, 3, 3)
    check(make(labels, score=rg.score.Bilinear(weight)), kind, [weight])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("bases", [None, 2])
@pytest.mark.parametrize("kind", ONE_LABEL)
def test_value_maps(kind, bases, per_head):
    labels, own = KINDS[kind](7), [2] if per_head else []
    maps = [leaf(*own, labels.num_labels, bases)] if bases else []
    maps.append(leaf(*own, bases or labels.num_labels, 4, 4))
    check(make(labels, value_map=tuple(maps) if bases else maps[0]), kind, maps)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "none"])
def test_rows_of_scores(kind):
    labels = KINDS[kind](7)
    case = make(labels, kinds="vqb")
    sizes = labels.num_labels if isinstance(labels.num_labels, tuple) else (labels.num_labels,)
    q_len, batch = labels.q_len, case.inputs[0].shape[0]
    rows = [leaf(q_len, 2, r) if labels.packed else leaf(batch, 2, q_len, r) for r in sizes]
    case.options["row_scores"] = tuple(rows) if len(sizes) > 1 else rows[0]
    check(case, kind, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_at_once(kind):
    """Causal, masked by a mask that learns, dropout, shared key heads."""
    labels = KINDS[kind](7)
    case = make(labels, heads=4, kv_heads=2, kinds="kvb", per_head="vb", dropout_p=0.3)
    if labels is None or labels.q_len == labels.k_len:
        case.options["is_causal"] = True
    q_len, k_len = (7, 7) if labels is None else (labels.q_len, labels.k_len)
    batch = case.inputs[0].shape[0]
    packed = labels is not None and labels.packed
    keep = (torch.rand(1 if packed else batch, 4, q_len, k_len) > 0.3).to(F64)
    for lead in ((), (1,), (4,)):
        mask = leaf(*lead, q_len, k_len)
        for score in (None, rg.score.Softcap(2.0), torch.sin, rg.score.Additive(leaf(4, 3))):
            case.options |= {"score": score, "attn_mask": mask}
            check(case, kind, keep=keep)


@pytest.mark.parametrize("size", [1, 40, 300])
@pytest.mark.parametrize(
    "kind", ["distance per row", "dense batch", "edges sum batch", "edges over distance packed", "sum"]
)
def test_any_size_of_blocks(kind, size, monkeypatch):
    monkeypatch.setattr(by_rows, "BLOCK_NUMBERS", size)
    monkeypatch.setattr(blocks, "BLOCK_SCORES", size)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 2)
    for score in (torch.sin, rg.score.Softcap(1.0), rg.score.Additive(leaf(3))):
        check(make(KINDS[kind](7), kinds="kvb", score=score), kind)


WITH_EDGES = [k for k in KINDS if k.startswith("edges") and k not in ("edges over edges", "edges only parallel")] + [
    "edges only parallel"
]


@pytest.mark.parametrize("score", [None, "additive", "function"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kind", WITH_EDGES)
def test_edge_vectors(kind, per_head, score):
    """Listed pairs carry a vector besides a label; pairs that are not listed attend as ever."""
    labels, own = KINDS[kind](7), [2] if per_head else []
    attr, to_key, to_value = leaf(labels.ids.shape[0], 5), leaf(*own, 3, 5), leaf(*own, 4, 5)
    for given in ((to_key, to_value), (to_key, None), (None, to_value)):
        options = {"edge_attr": attr, "edge_key": given[0], "edge_value": given[1]}
        named = {"additive": rg.score.Additive(leaf(3)), "function": torch.sin}.get(score)
        tables = "kvb" if score == "additive" else "kvqb"
        check(make(labels, kinds=tables, score=named, edge=tuple(options.values())), kind, [attr, *given])
