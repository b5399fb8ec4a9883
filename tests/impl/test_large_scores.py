"""Scores far from 0: gradients keep the accuracy of fused attention, and NaN stays NaN."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from tests.cases import F64, edges

LABELS = {
    "none": lambda n: None,
    "distance": lambda n: rg.ClippedDistance(8)(n),
    "dense": lambda n: rg.DenseLabels(torch.randint(-1, 17, (n, n)), 17),
    "edges default": lambda n: rg.EdgeLabels(*edges(n)[:2], 17, q_len=n, default=5),
}


def gradients(attention, inputs, incoming):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = attention(*leaves)
    return torch.autograd.grad(output, leaves, incoming.to(output))


def errors(found, truth):
    return [float((a.double() - t).norm()) for a, t in zip(found, truth, strict=True)]


@pytest.mark.parametrize(("size", "ties"), [(1.0, True), (1e2, False), (1e4, True), (1e10, True), (1e14, False)])
@pytest.mark.parametrize("impl", ["dense", "chunked", "native"])
@pytest.mark.parametrize("kind", LABELS)
def test_gradients_of_large_scores(kind, impl, ties, size):
    """At most twice the error of fused attention, which sees the same scores as labels of zeros leave them.

    If two scores nearly meet, one rounding changes the weights of that row, by more or less luck. So the most that one
    of four roundings changes in float64 is allowed too. It changes no weight if one score is far above the others.
    """
    n, draws = 96, 3
    squares = torch.zeros(3, 3, dtype=F64)
    unit = torch.finfo(torch.float32).eps
    for _ in range(draws):
        labels = LABELS[kind](n)
        inputs = [torch.randn(1, 2, n, 16) for _ in range(3)]
        inputs[:2] = [x * size**0.5 for x in inputs[:2]]
        if ties:
            inputs[1][:, :, 1::2] = inputs[1][:, :, ::2]
        incoming = torch.randn(1, 2, n, 16)
        tables = [None] * 4 if labels is None else [torch.zeros(17, 16)] * 3 + [torch.zeros(17)]
        terms = inputs[0].double().abs() @ inputs[1].double().abs().mT / 4  # a sum is rounded by the size of its terms
        roundings = [unit * terms * torch.empty_like(terms).uniform_(-1, 1) for _ in range(4)]
        if ties:
            for noise in roundings:
                noise[..., 1::2] = noise[..., ::2]

        def ours(q, k, v, labels=labels, tables=tables):
            return rg.relation_attention(q, k, v, labels, *tables, impl=impl)

        def exact(q, k, v, noise=None):
            return rg.relation_attention(q, k, v, None, attn_mask=noise, impl="reference")

        wide = [x.double() for x in inputs]
        truth = gradients(exact, wide, incoming)
        found = errors(gradients(ours, inputs, incoming), truth)
        fused = errors(gradients(scaled_dot_product_attention, inputs, incoming), truth)
        each = [errors(gradients(partial(exact, noise=noise), wide, incoming), truth) for noise in roundings]
        moved = [max(worst) for worst in zip(*each, strict=True)]
        squares += torch.tensor([found, fused, moved], dtype=F64).T ** 2
    for name, (found, fused, moved) in zip(("dq", "dk", "dv"), squares.sqrt().tolist(), strict=True):
        assert found <= 2 * fused + 2 * moved + unit, f"{name}: {found:.1e}, fused {fused:.1e}, rounding {moved:.1e}"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", "edges"])
def test_scores_that_are_no_numbers(impl, bad):
    """Their row gives NaN, for its log-sum-exp too; -inf is kept for rows that see nothing."""
    index = torch.tensor([[0, 1, 2, 1], [0, 1, 1, 3]])
    labels = rg.EdgeLabels(index, torch.zeros(4, dtype=torch.long), 1, q_len=4)
    q, k, v = torch.randn(1, 1, 4, 3), torch.rand(1, 1, 4, 3), torch.randn(1, 1, 4, 3)
    q[0, 0, 1] = bad
    z, aux = rg.relation_attention_with_aux(q, k, v, labels, torch.randn(1, 3), impl=impl, need_lse=True)
    assert z[0, 0, 1].isnan().all()
    assert aux.lse[0, 0].isnan().tolist() == [False, True, False, False]
    assert (aux.lse[0, 0] == float("-inf")).tolist() == [False, False, True, False]
    assert (z[0, 0, 2] == 0).all()


@pytest.mark.parametrize("offset", [1e3, 1e5, 1e6])
@pytest.mark.parametrize("impl", ["dense", "chunked", "native"])
def test_exact_scores_over_a_large_offset(impl, offset):
    """Scores that a float holds exactly are not rounded on their way."""
    n = 64
    squares = torch.zeros(4, 2, dtype=F64)
    for _ in range(4):
        q, k = (torch.randint(-1, 2, (1, 2, n, 16)).float() for _ in range(2))
        v, incoming = torch.randn(1, 2, n, 16), torch.randn(1, 2, n, 16)
        q[..., 0], k[..., 0] = 1.0, offset

        def results(attention, q, k, v, incoming=incoming):
            return [attention(q, k, v).detach(), *gradients(attention, (q, k, v), incoming)]

        def ours(q, k, v):
            return rg.relation_attention(q, k, v, None, scale=1.0, impl=impl)

        def exact(q, k, v):
            return rg.relation_attention(q, k, v, None, scale=1.0, impl="reference")

        def fused(q, k, v):
            return scaled_dot_product_attention(q, k, v, scale=1.0)

        truth = results(exact, q.double(), k.double(), v.double())
        found, theirs = (errors(results(f, q, k, v), truth) for f in (ours, fused))
        squares += torch.tensor([found, theirs], dtype=F64).T ** 2
    sizes = [float(t.norm()) for t in truth]
    unit = torch.finfo(torch.float32).eps
    for (found, theirs), size in zip(squares.sqrt().tolist(), sizes, strict=True):
        assert found <= 2 * theirs + unit * size, (found, theirs)


# ---- infinities ----

N, HIDDEN = 9, 5
INF = float("inf")


def infinite(kind, how, *, negative=True):
    """A call with infinite scores, the same call with finite scores and a mask of the pairs in question, and these."""
    size = -INF if negative else INF
    ids = torch.randint(0, 3, (N, N))
    ids = torch.where(torch.rand(N, N) < 0.3, 1, ids)
    every = torch.cartesian_prod(torch.arange(N), torch.arange(N)).T
    labels = {
        "distance": lambda: rg.DistanceLabels(N, lookup=[0, 1, 2], left=1),
        "dense": lambda: rg.DenseLabels(ids, 3),
        "over": lambda: rg.EdgeLabels(every[:, ::3], ids.T.flatten()[::3], 3, q_len=N, default=2),
        "edges": lambda: rg.EdgeLabels(every, ids.T.flatten(), 3, q_len=N),
    }[kind]()
    named = {"key_table": (3, 4), "value_table": (3, 4), "bias_table": (3,)}
    call = {name: torch.randn(1, 2, N, 4) for name in ("query", "key", "value")}
    call |= {name: torch.randn(shape) for name, shape in named.items()}
    call["query"] = call["query"].abs() + 0.1
    finite = dict(call)
    pairs = torch.zeros(N, N, dtype=torch.bool)
    if how == "key":
        pairs[:, HIDDEN] = True
        call["key"] = call["key"].index_fill(2, torch.tensor([HIDDEN]), size)
    elif how == "bias":
        pairs = labels.to_dense()[0][0] == 1
        call["bias_table"] = call["bias_table"].index_fill(0, torch.tensor([1]), size)
    else:
        pairs[HIDDEN], pairs[0, 2] = True, True
        call["attn_mask"] = torch.zeros(N, N).masked_fill(pairs, size)
    return {**call, "labels": labels}, {**finite, "labels": labels, "attn_mask": ~pairs}, pairs


def results(impl, call, *, gradients=True, **options):
    """Output, log-sum-exp, label masses, and the gradients of all leaves but the query."""
    call = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in call.items()}
    leaves = [call[name].requires_grad_() for name in ("key", "value", "key_table", "value_table", "bias_table")]
    z, aux = rg.relation_attention_with_aux(**call, impl=impl, need_lse=True, need_label_mass=True, **options)
    found = [z.detach(), aux.lse.detach(), aux.label_mass.detach()]
    return [*found, *torch.autograd.grad(z.cos().sum(), leaves)] if gradients else found


LOCAL = ("reference", "dense", "chunked", "native")
SCORES = {"": None, "softcap": rg.score.Softcap(3.0), "relu": rg.score.LeakyReLU(0.0)}
KINDS_AND_IMPLS = [(kind, impl) for kind in ("distance", "dense", "over", "edges") for impl in LOCAL]
KINDS_AND_IMPLS += [("edges", "edges")]


@pytest.mark.parametrize(("how", "score"), [("key", "softcap"), ("bias", ""), ("mask", "relu")])
@pytest.mark.parametrize(("kind", "impl"), KINDS_AND_IMPLS)
def test_a_score_of_minus_infinity_hides_its_pair(kind, impl, how, score):
    """As a mask does, whatever made it: values and gradients, but for that of the query, which -inf keys multiply."""
    call, masked, _ = infinite(kind, how)
    wanted = results("reference", masked, score=SCORES[score])
    for mine, other in zip(results(impl, call, score=SCORES[score]), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["key", "bias", "mask"])
@pytest.mark.parametrize(("kind", "impl"), KINDS_AND_IMPLS)
def test_a_score_of_infinity_makes_its_row_nan(kind, impl, how):
    call, masked, pairs = infinite(kind, how, negative=False)
    found, usual = (
        results(name, given, gradients=False)[:2]
        for name, given in ((impl, call), ("reference", {**masked, "attn_mask": None}))
    )
    rows = pairs.any(1)
    assert rows.any()
    for mine, other in zip(found, usual, strict=True):
        assert mine[:, :, rows].isnan().all()
        torch.testing.assert_close(mine[:, :, ~rows], other[:, :, ~rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", [float("nan"), INF, -INF])
@pytest.mark.parametrize("by", ["mask", "order"])
@pytest.mark.parametrize(("kind", "impl"), KINDS_AND_IMPLS)
def test_a_hidden_pair_may_have_any_score(kind, impl, by, what):
    call, masked, pairs = infinite(kind, "key")
    options = {"attn_mask": ~pairs} if by == "mask" else {"is_causal": True}
    rows = N if by == "mask" else HIDDEN  # in causal order the later rows see that key
    wanted = results("reference", {**masked, **options}, gradients=False)
    call["key"] = call["key"].index_fill(2, torch.tensor([HIDDEN]), what)
    for mine, other in zip(results(impl, {**call, **options}, gradients=False), wanted, strict=True):
        torch.testing.assert_close(mine[:, :, :rows], other[:, :, :rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "impl"), KINDS_AND_IMPLS)
def test_products_that_overflow_are_infinite(kind, impl):
    call, masked, _ = infinite(kind, "key")
    call["query"] = masked["query"] = call["query"] + 8.0
    call["key"] = call["key"].clamp(min=-3e38)
    for mine, other in zip(results(impl, call), results("reference", masked), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
