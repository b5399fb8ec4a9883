"""Scores, rows and maps that are given, and masks that learn: every implementation against the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import relgraph as rg
from relgraph.impl.chunked import blocks
from relgraph.impl.eager import rows as by_rows
from relgraph.impl.native import build
from relgraph.score import ACTIVATIONS, compatibility
from tests.cases import F64, KINDS, Case, answer, assert_same, make

pytestmark = pytest.mark.usefixtures("poisoned")

ONE_LABEL = [k for k in KINDS if k not in ("sum", "none", "edges sum", "edges sum batch", "edges over edges")]


def implementations(kind):
    if kind == "edges only parallel":
        return ["edges"]
    return ["dense", "chunked", *(["edges"] if kind.startswith("edges only") else [])]


def native_can(case, kind):
    """Whether compiled kernels know the call."""
    options, listed = case.options, kind.startswith("edges only")
    score, mask = compatibility(options.get("score")), options.get("attn_mask")
    edge = options.get("edge")
    inside = edge is not None and score.additive and edge[1] is not None
    computed = edge is not None and isinstance(case.labels.default, rg.labels.FunctionLabels)
    others = computed or (inside and (not listed or edge[0].requires_grad))
    learns = mask is not None and mask.requires_grad
    return build.missing() is None and score.code is not None and not others and not learns


def leaf(*shape):
    return torch.randn(shape, dtype=F64, requires_grad=True)


def check(case, kind, extra=(), impls=None, **options):
    case.inputs += [x for x in extra if x is not None]  # leaves whose gradients are compared
    inputs, extra = case.inputs[:3], case.inputs[3:]

    class Both(Case):
        @property
        def leaves(self):
            return [*super().leaves, *extra]

    both = Both(case.labels, inputs, case.tables, case.options)
    wanted = answer(both, "reference", **options)
    for impl in impls or [*implementations(kind), *(["native"] if native_can(case, kind) else [])]:
        got = answer(both, impl, **options)
        assert_same(got[0], wanted[0], what=f"{impl} output")
        assert_same(got[1], wanted[1], what=f"{impl} gradient")


def turns(kinds, *rounds):
    """Each kind with one choice of each round, which takes turns: far fewer calls than all kinds with all choices."""
    return [
        (kind, choices[(turn + at) % len(choices)])
        for turn, kind in enumerate(kinds)
        for at, choices in enumerate(rounds)
    ]


@pytest.mark.parametrize(("kind", "activation"), turns(KINDS, *[[*ACTIVATIONS, torch.tanh]] * 2))
def test_additive(kind, activation):
    weight = leaf(2, 3)
    case = make(KINDS[kind](7), kinds="kvb", per_head="k", score=rg.score.Additive(weight, activation))
    check(case, kind, [weight])


@pytest.mark.parametrize(("kind", "how"), turns(ONE_LABEL, [((), None), ((2,), None)], [((), 2), ((2,), 2)]))
def test_maps_of_scores_and_of_values(kind, how):
    """One for all heads or one per head, free or over bases."""
    labels, (own, bases) = KINDS[kind](7), how
    weight = leaf(*own, labels.num_labels, 3, 3)
    maps = [leaf(*own, labels.num_labels, bases)] if bases else []
    maps.append(leaf(*own, bases or labels.num_labels, 4, 4))
    score = rg.score.Bilinear(weight) if bases is None else None
    check(make(labels, score=score, value_map=tuple(maps) if bases else maps[0]), kind, [weight] * bool(score) + maps)


@pytest.mark.skipif(build.missing() is not None, reason="no compiled kernels")
@pytest.mark.parametrize("score", ["additive", "maps"])
@pytest.mark.parametrize("kind", ["distance", "dense batch", "block", "edges over distance packed", "edges default"])
def test_kernels_go_tile_by_tile(kind, score, threads):
    """Several tiles of keys and blocks of rows, tiles of one label and of many, and threads that share the sums."""
    labels = KINDS[kind](300)
    case = make(labels, heads=2, kv_heads=1, kinds="kvb", per_head="v", dropout_p=0.3)
    keep = (torch.rand(1 if labels.packed else case.inputs[0].shape[0], 2, 300, labels.k_len) > 0.3).to(F64)
    if score == "additive":
        learned = [leaf(3)]
        case.options["score"] = rg.score.Additive(*learned, "tanh")
    else:
        learned = [leaf(2, labels.num_labels, 3, 3), leaf(labels.num_labels, 4, 4)]
        case.options |= {"score": rg.score.Bilinear(learned[0]), "value_map": learned[1]}
    for count in (1, 3):
        threads(count)
        check(replace(case, inputs=[*case.inputs]), kind, learned, impls=["native"], keep=keep)


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
    leads = ((), (1,), (4,))
    for at, score in enumerate((None, rg.score.Softcap(2.0), torch.sin, rg.score.Additive(leaf(4, 3)))):
        lead = leads[(at + [*KINDS].index(kind)) % 3]
        case.options |= {"score": score, "attn_mask": leaf(*lead, q_len, k_len)}
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
@pytest.mark.parametrize(("kind", "own"), turns(WITH_EDGES, ([], [2])))
def test_edge_vectors(kind, own, score):
    """Listed pairs carry a vector besides a label; pairs that are not listed attend as ever."""
    labels = KINDS[kind](7)
    attr, to_key, to_value = leaf(labels.ids.shape[0], 5), leaf(*own, 3, 5), leaf(*own, 4, 5)
    for given in ((to_key, to_value), (to_key, None), (None, to_value)):
        options = {"edge_attr": attr, "edge_key": given[0], "edge_value": given[1]}
        named = {"additive": rg.score.Additive(leaf(3)), "function": torch.sin}.get(score)
        tables = "kvb" if score == "additive" else "kvqb"
        check(make(labels, kinds=tables, score=named, edge=tuple(options.values())), kind, [attr, *given])


class Scaled(torch.nn.Module):
    """A function of scores with a parameter whose gradient a hook doubles."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.randn(1, dtype=F64))
        self.slope.register_hook(lambda grad: 2 * grad)

    def forward(self, x):
        return torch.tanh(x * self.slope)


def grown():
    """Scores with a module that learns."""
    module, scaled = torch.nn.PReLU(dtype=F64), Scaled()
    return {
        "module": (module, [module.weight]),
        "hooked": (scaled, [scaled.slope]),
        "activation": (rg.score.Additive(leaf(3), scaled), [scaled.slope]),
    }


@pytest.mark.parametrize("name", ["module", "hooked", "activation"])
@pytest.mark.parametrize("kind", ["distance", "edges only", "block"])
def test_a_module_learns(kind, name, monkeypatch):
    monkeypatch.setattr(by_rows, "BLOCK_NUMBERS", 30)
    score, held = grown()[name]
    case = make(KINDS[kind](7), kinds="kvb", score=score)
    grads = []
    for impl in ("reference", *implementations(kind)):
        z = rg.relation_attention(
            *case.inputs, case.labels, key_table=case.tables[0], value_table=case.tables[1], score=score, impl=impl
        )
        grads.append(torch.autograd.grad(z.sin().sum(), [*held, *case.inputs], retain_graph=True))
    for got in grads[1:]:
        assert_same(got, grads[0])
        assert all(g.abs().max() > 1e-3 for g in got)


@pytest.mark.parametrize("kind", ["distance", "dense batch", "edges only", "block"])
def test_gradients_against_differences(kind):
    """Also the mask that dropout draws: the same in forward and backward."""
    labels = KINDS[kind](5)
    weight, maps, matrix = leaf(2, 3), leaf(labels.num_labels, 4, 4), leaf(labels.num_labels, 3, 3)

    def call(impl, score, q, k, v, w, m, b):
        torch.manual_seed(0)
        made = rg.score.Additive(w, "tanh") if score == "additive" else rg.score.Bilinear(b)
        return rg.relation_attention(q, k, v, labels, score=made, value_map=m, dropout_p=0.3, impl=impl)

    case = make(labels, n=5)
    for impl in implementations(kind):
        for score in ("additive", "bilinear"):
            inputs = (*case.inputs, weight, maps, matrix)
            assert torch.autograd.gradcheck(partial(call, impl, score), inputs, fast_mode=True)


def test_second_derivatives():
    x = leaf(1, 2, 5, 3)
    for impl in ("dense", "reference"):
        assert torch.autograd.gradgradcheck(
            lambda x, impl=impl: rg.relation_attention(x, x, x, None, score=torch.tanh, impl=impl), [x], fast_mode=True
        )
    for score in (torch.tanh, rg.score.Softcap(2.0)):
        for q, k, v in ((x, x, x), (x.detach(), x, x.detach())):
            z = rg.relation_attention(q, k, v, None, score=score, impl="chunked")
            (grad,) = torch.autograd.grad(z.sin().sum(), [x], create_graph=True)
            with pytest.raises(NotImplementedError, match="impl='chunked' has no second derivative; use impl='dense'"):
                grad.sum().backward()


@pytest.mark.parametrize(
    "score", [torch.tanh, rg.score.Additive(torch.randn(16), "tanh")], ids=["function", "additive"]
)
def test_gradients_of_many_blocks_are_summed_in_float32(score, monkeypatch):
    monkeypatch.setattr(by_rows, "BLOCK_NUMBERS", 1)  # a block for each row
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 256, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    grads = []
    for impl, dtype in (("reference", F64), ("dense", torch.bfloat16), ("chunked", torch.bfloat16)):
        x = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        z = rg.relation_attention(*x, None, score=score, impl=impl)
        grads.append(torch.autograd.grad(z.float().square().sum() if dtype != F64 else z.square().sum(), x))
    for exact, at_once, summed in zip(*grads, strict=True):
        error, bound = ((g.double() - exact).square().mean().sqrt() for g in (summed, at_once))
        assert error < 1.5 * bound


@pytest.mark.parametrize(
    "score", [torch.sin, rg.score.Additive(torch.randn(3, dtype=F64))], ids=["function", "additive"]
)
def test_a_large_call_goes_in_blocks(score, monkeypatch):
    sizes = []
    real = by_rows.dense.attend
    monkeypatch.setattr(by_rows.dense, "attend", lambda call: (sizes.append(call.plan.q_len), real(call))[1])
    monkeypatch.setattr(by_rows, "BLOCK_NUMBERS", 1000)
    x = torch.randn(1, 2, 40, 3, dtype=F64)
    rg.relation_attention(x, x, x, rg.Window(30)(40), score=score, impl="chunked")
    assert sum(sizes) == 40
    assert max(sizes) == (1000 // (2 * 40) if score is torch.sin else 1000 // (2 * 40 * 3))


X = torch.randn(2, 2, 5, 4)
LABELS = rg.ClippedDistance(1)(5)
EDGES = rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 3, q_len=5, default=2)
SUM = rg.SumLabels(LABELS, LABELS)
SLOPE = torch.ones(1, requires_grad=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"score": "softcap"}, TypeError, "score must be one of relgraph.score, a function of scores or None, got str"),
        ({"score": rg.score.Softcap}, TypeError, "score must be one of .* got the class Softcap"),
        ({"score": lambda s: s.sum(-1)}, ValueError, "score must keep shape and dtype"),
        ({"score": lambda s: s.double()}, ValueError, "score must keep shape and dtype"),
        ({"score": lambda s: s.detach()}, ValueError, "score must be differentiable by torch"),
        ({"score": lambda s: s * SLOPE}, ValueError, "score must be an nn.Module if it needs a gradient"),
        ({"score": lambda s: s * SLOPE.exp()}, ValueError, "score must be an nn.Module if it needs a gradient"),
        ({"score": torch.nn.RReLU()}, ValueError, "score must repeat itself, .* got a random function"),
        ({"score": lambda s: s.mul_(2.0)}, ValueError, "score must leave its input as it is"),
        ({"score": torch.nn.Softmax(-1)}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: s - s.mean(-2, keepdim=True)}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: s.flip(-1)}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: s - s.amin()}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: s / s.abs().amax()}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: s + torch.arange(s.shape[-1])}, ValueError, "score must act on each number by itself"),
        ({"score": lambda s: None}, TypeError, "score must give a tensor, got NoneType"),
        ({"score": rg.score.Additive(torch.randn(4), torch.detach)}, ValueError, "activation must be differentiable"),
        (
            {"score": rg.score.Additive(torch.randn(4)), "query_table": torch.randn(3, 4)},
            ValueError,
            "query_table must be None with score=Additive",
        ),
        ({"score": rg.score.Bilinear(torch.randn(3, 4, 4)), "labels": SUM}, NotImplementedError, "one label per pair"),
        ({"score": rg.score.Bilinear(torch.randn(3, 4, 4)), "labels": None}, ValueError, "needs labels, got None"),
        (
            {"row_scores": torch.randn(2, 2, 5, 3), "key_table": torch.randn(3, 4)},
            ValueError,
            "row_scores must be None with a key_table",
        ),
        ({"value_map": torch.randn(3, 4, 4), "labels": SUM}, NotImplementedError, "value_map needs one label per pair"),
        ({"edge_attr": torch.randn(2, 3)}, ValueError, "edge_attr needs labels of one kind of edges, EdgeLabels"),
        ({"edge_attr": torch.randn(2, 3), "labels": EDGES}, ValueError, "edge_attr needs edge_key or edge_value"),
        ({"edge_key": torch.randn(4, 3), "labels": EDGES}, ValueError, "edge_key must be left out without edge_attr"),
        ({"score": torch.sin, "impl": "triton", "labels": None}, NotImplementedError, "impl='triton' has no score but dot products"),
        (
            {"value_map": torch.randn(3, 4, 4), "impl": "triton"},
            NotImplementedError,
            "impl='triton' has no value_map",
        ),
    ],
)  # fmt: skip
def test_bad_input(options, error, message, monkeypatch):
    from relgraph.impl.triton import limits

    monkeypatch.setattr(limits, "HAS_TRITON", True)
    options = {"labels": LABELS, **options}
    with pytest.raises(error, match=message):
        rg.relation_attention(X, X, X, **options)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_offsets_of_any_dtype(dtype, shape, monkeypatch):
    monkeypatch.setattr(by_rows, "BLOCK_NUMBERS", 700)
    offset = torch.full(shape, 100, dtype=dtype)
    q, k = torch.randn(2, 1, 60, 4, dtype=F64), torch.randn(2, 1, 160, 4, dtype=F64)
    labels = rg.ClippedDistance(90)(60, 160, q_offset=offset)
    options = {"is_causal": True, "bias_table": torch.randn(181, dtype=F64), "score": torch.tanh}
    got, wanted = (rg.relation_attention(q, k, k, labels, **options, impl=impl) for impl in ("chunked", "reference"))
    torch.testing.assert_close(got, wanted)


def test_a_graph_without_keys_reads_no_other_graphs_key():
    labels = rg.DistanceLabels(7, 1, lookup=[0, 1], left=0, q_ptr=torch.tensor([0, 4, 7]), ptr=torch.tensor([0, 1, 1]))
    query, key, value = (torch.randn(n, 1, 2, dtype=F64, requires_grad=True) for n in (7, 1, 1))
    call = {"bias_table": torch.randn(2, dtype=F64), "score": torch.atan}
    found, wanted = (
        rg.relation_attention(query, key, value, labels, **call, impl=impl) for impl in ("chunked", "reference")
    )
    torch.testing.assert_close(found, wanted)
    assert (found[4:] == 0).all()
    for x, y in zip(*(torch.autograd.grad(z.sum(), [query, key, value]) for z in (found, wanted)), strict=True):
        torch.testing.assert_close(x, y)
