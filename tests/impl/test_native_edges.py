"""Edges-only attention by compiled kernels against the float64 reference: values, gradients, dropout, second order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS, op
from relgraph.impl.native import build, edges
from relgraph.impl.native.check import check_listed
from relgraph.plan import lower
from relgraph.score import ACTIVATIONS, Activation
from tests.cases import F64, KINDS, answer, call_of, make

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}"),
]

ALONE = [kind for kind in KINDS if kind.startswith("edges only")]
each_kind = pytest.mark.parametrize("kind", ALONE)


@pytest.fixture(autouse=True)
def routed(monkeypatch):
    """Calls that ask for ``edges`` are answered by the kernels."""
    monkeypatch.setitem(IMPLEMENTATIONS, "edges", edges.attend_listed)


@pytest.fixture
def as_op(monkeypatch):
    """The primitive as a custom op, as under torch.compile."""
    monkeypatch.setattr(op, "unwatched", lambda _: False)


def check(labels, *, keep=None, mass=True, batch=1, atol=1e-10, **options):
    """Outputs and every gradient."""
    case = make(labels, batch=batch, **options)
    wanted, got = answer(case, "reference", keep=keep, mass=mass), answer(case, "edges", keep=keep, mass=mass)
    close(got, wanted, atol)


def close(got, wanted, atol):
    for part in (0, 1):
        for a, b in zip(got[part], wanted[part], strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=atol)


@each_kind
def test_kinds_as_op(kind, as_op):
    check(KINDS[kind](7))


@pytest.mark.parametrize(("size", "value_size"), [(1, 3), (16, 16), (24, 3), (32, 64), (64, 32)])
def test_sizes(size, value_size):
    check(some_edges(40, 150), size=size, value_size=value_size, heads=2)


# ---- edge vectors ----


def with_vectors(impl, labels, leaves, **options):
    q, k, v, attr, edge_key, edge_value, tables = leaves
    maps = {name: x for name, x in (("edge_key", edge_key), ("edge_value", edge_value)) if x is not None}
    z = rg.relation_attention(q, k, v, labels, *tables, edge_attr=attr, **maps, impl=impl, **options)
    learned = [x for x in (q, k, v, attr, edge_key, edge_value, *tables) if x is not None]
    torch.manual_seed(3)
    return [z, *torch.autograd.grad(z, learned, torch.randn(z.shape, dtype=z.dtype))]


@pytest.mark.parametrize(
    ("maps", "tables", "batch"), [("key", 4, 1), ("value", 0, 2), ("key value", 0, 1), ("key value per head", 4, 2)]
)
def test_vectors(maps, tables, batch):
    labels = some_edges(20, 70)
    q, k, v = (leaf(batch, 2, 20, 5) for _ in range(3))
    lead = (2,) if "head" in maps else ()
    given = [leaf(4, 5), leaf(4, 5), leaf(4, 5), leaf(4)][:tables]
    leaves = (
        q, k, v, leaf(70, 3), leaf(*lead, 5, 3) if "key" in maps else None,
        leaf(*lead, 5, 3) if "value" in maps else None, given,
    )  # fmt: skip
    got, wanted = (with_vectors(impl, labels, leaves, scale=0.7) for impl in ("edges", "reference"))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("lead", "size", "batch"), [((), 5, 2), ((2,), 16, 1)])
def test_vectors_in_additive_scores(lead, size, batch):
    labels, attr = some_edges(20, 70), torch.randn(70, 3, dtype=F64)
    (q, k, v), (edge_key, edge_value) = (
        [leaf(batch, 2, 20, size) for _ in range(3)],
        [leaf(*lead, size, 3) for _ in "kv"],
    )
    tables, weight, maps = [leaf(4, size), leaf(4, size)], leaf(2, size), leaf(4, size, size)
    leaves = [q, k, v, *tables, weight, maps, edge_key, edge_value]
    found = {}
    for impl in ("edges", "reference"):
        z = rg.relation_attention(
            q, k, v, labels, *tables, edge_attr=attr, edge_key=edge_key, edge_value=edge_value, value_map=maps,
            score=rg.score.Additive(weight, "tanh"), impl=impl,
        )  # fmt: skip
        found[impl] = (z, *torch.autograd.grad(z.cos().sum(), leaves))
    for a, b in zip(found["edges"], found["reference"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


# ---- dropout ----


def dropped(labels, p, seed=0, heads=8, origin=(0, 0, 0, 0)):
    """What the weights are multiplied by, ``[H, P]``: each value is one of a unit vector."""
    csr = lower(labels).parts[0].csr
    problem = _problem(labels, p, heads)
    torch.manual_seed(seed)
    filled = edges.EdgeStructs(replace(problem, seed=torch.randint(1 << 62, ())))
    filled.struct.origin[:] = origin
    found = torch.empty(heads, csr.col.shape[0], dtype=F64)
    filled.library.relgraph_edges_factors(edges.ctypes.byref(filled.struct), edges.c_void_p(found.data_ptr()))
    return found


def _problem(labels, p, heads):
    seen = []
    x = torch.zeros(1, heads, labels.q_len, 1, dtype=F64)
    call = call_of(x, x, x, labels, dropout_p=p)
    run = edges._forward
    kernels = op._KERNELS[edges.KERNELS]
    op._KERNELS[edges.KERNELS] = kernels._replace(forward=lambda problem: seen.append(problem) or run(problem))
    try:
        edges.attend_listed(call)
    finally:
        op._KERNELS[edges.KERNELS] = kernels
    return seen[0]


def test_dropout_share_and_independence():
    labels = rg.EdgeLabels(torch.randint(500, (2, 20_000)), torch.zeros(20_000, dtype=torch.long), 1, q_len=500)
    factors = dropped(labels, 0.3)
    kept = (factors > 0).double()
    assert torch.allclose(factors.unique(), torch.tensor([0.0, 1 / 0.7], dtype=F64))
    assert abs(kept.mean() - 0.7) < 0.005  # 160,000 draws
    centred = kept - 0.7
    assert (centred[0] * centred[1]).mean().abs() < 0.01  # heads of one draw
    assert (centred[0] * centred[4]).mean().abs() < 0.01
    assert (centred[:, 1:] * centred[:, :-1]).mean().abs() < 0.005  # neighbours, parallel edges among them
    assert not torch.equal(factors, dropped(labels, 0.3, seed=1))


@pytest.mark.parametrize(("dropout_p", "direct"), [(0.0, False), (0.3, True)])
def test_second_derivatives(dropout_p, direct, monkeypatch):
    if not direct:
        monkeypatch.setattr(op, "unwatched", lambda _: False)
    labels = some_edges(3, 6)
    shapes = ((1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2), (4, 2), (2, 4, 2), (4, 2), (4,), (6, 1), (2, 1), (2, 2, 1))

    def run(*tensors):
        torch.manual_seed(5)
        maps = dict(zip(("edge_attr", "edge_key", "edge_value"), tensors[7:], strict=True))
        z, aux = rg.functional.relation_attention_with_aux(
            *tensors[:3], labels, *tensors[3:7], **maps, impl="edges", dropout_p=dropout_p, enable_gqa=True,
            need_label_mass=True, score=rg.score.Softcap(3.0),
        )  # fmt: skip
        return z, aux.label_mass

    leaves = [leaf(*shape) for shape in shapes]
    assert gradcheck(run, leaves, fast_mode=True)
    assert gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("score", ["maps", *ACTIVATIONS])
def test_second_derivatives_of_maps_and_additive_scores(score, monkeypatch):
    monkeypatch.setattr(op, "unwatched", lambda _: False)
    labels = some_edges(3, 6)
    shapes = [(2, 2, 3, 2), (2, 1, 3, 2), (2, 1, 3, 2), (4, 2), (2, 4, 2, 2)]
    shapes.append((4, 2, 2) if score == "maps" else (2, 2))

    attr = torch.randn(6, 1, dtype=F64)

    def run(query, key, value, table, maps, weight, edge_key):
        torch.manual_seed(5)
        made = rg.score.Bilinear(weight) if score == "maps" else rg.score.Additive(weight, score)
        return rg.relation_attention(
            query, key, value, labels, table, enable_gqa=True, score=made, value_map=maps, dropout_p=0.3,
            edge_attr=attr, edge_key=edge_key, impl="edges",
        )  # fmt: skip

    leaves = [leaf(*shape) for shape in (*shapes, (2, 2, 1))]
    assert gradcheck(run, leaves, fast_mode=True)
    assert gradgradcheck(run, leaves, fast_mode=True)


def leaf(*shape):
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def some_edges(n, count):
    """Edges among most of n nodes with four labels, some without, some repeated."""
    generator = torch.Generator().manual_seed(n)
    index = torch.randint(max(n - 2, 1), (2, count), generator=generator)
    index[:, -1] = index[:, 0]
    return rg.EdgeLabels(index, torch.randint(-1, 4, (count,), generator=generator), 4, q_len=n)


# ---- how the work is cut ----


@pytest.mark.parametrize("score", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize(
    ("count", "packed", "batched"), [(1, False, True), (1, True, False), (3, False, False), (3, True, True)]
)
def test_every_cut_gives_the_same(count, packed, batched, score, threads, monkeypatch):
    """Heads in one task or several, keys packed or where they lie: values and gradients are those of the reference."""
    monkeypatch.setattr(edges, "PAIRS_A_TASK", 3)
    monkeypatch.setattr(edges, "PAIRS_A_LABEL", 0)
    monkeypatch.setattr(edges, "MOST_PACKED", edges.MOST_PACKED if packed else 0)
    labels, of_rows = some_edges(7, 25), {"batch": torch.arange(25) % 2, "batch_size": 2} if batched else {}
    labels = rg.EdgeLabels(labels.edge_index, labels.ids, 4, q_len=7, **of_rows)
    leaves = [leaf(2, 2, 7, 3), leaf(2, 1, 7, 3), leaf(2, 1, 7, 5), leaf(4, 3), leaf(4, 5), leaf(4, 3)]
    options = {}
    if score == "bilinear":
        leaves += [leaf(4, 3, 3), leaf(2, 4, 5, 5)]
        options = {"score": rg.score.Bilinear(leaves[6]), "value_map": leaves[7]}
    elif score == "additive":
        leaves[5] = leaf(2, 3)
        options = {"score": rg.score.Additive(leaves[5], "silu")}
    found, tables = {}, leaves[3 : 5 if score == "additive" else 6]
    threads(count)
    for impl in ("native", "reference"):
        z = rg.relation_attention(*leaves[:3], labels, *tables, enable_gqa=True, impl=impl, **options)
        found[impl] = (z, *torch.autograd.grad(z.cos().sum(), leaves))
    for mine, wanted in zip(found["native"], found["reference"], strict=True):
        torch.testing.assert_close(mine, wanted)


def test_a_head_is_cut_where_threads_would_wait(monkeypatch):
    """Stretches of queries: none on one thread, none for few pairs, as many as room for their gradients allows."""
    problem = _problem(some_edges(50, 400), 0.0, heads=2)

    def cut(threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return edges.EdgeStructs(problem).struct.stretches

    assert cut(8) == 1  # 400 pairs are one task
    monkeypatch.setattr(edges, "PAIRS_A_TASK", 20)
    monkeypatch.setattr(edges, "PAIRS_A_LABEL", 1)
    assert (cut(1), cut(2), cut(8)) == (1, 2, 8)
    monkeypatch.setattr(edges, "MOST_PARTS", 2 * 2 * 50 * 2)
    assert cut(8) == 3


def test_gradients_of_rows_that_overlap_in_memory():
    x = torch.randn(1, 1, 40, dtype=F64)
    query = x.unfold(-1, 16, 1)[:, :, :5].detach().requires_grad_()
    key, labels = torch.randn(1, 1, 5, 16, dtype=F64), some_edges(5, 9)
    found = [
        torch.autograd.grad(rg.relation_attention(query, key, key, labels, impl=impl).sum(), query)[0]
        for impl in ("native", "reference")
    ]
    torch.testing.assert_close(*found)


WRONG = {
    "key": (lambda p: p.key.float(), "key must be torch.float64, got torch.float32"),
    "value": (lambda p: p.value.float(), "value must be torch.float64"),
    "label_keys": (lambda p: torch.ones(4, 1), "label_keys must be torch.float64"),
    "key_gates": (lambda p: torch.ones(9, 1, dtype=F64), "key_gates must have shape"),
    "value_gates": (lambda p: torch.ones(3, 4, 1, dtype=F64), "value_gates must have shape"),
    "value_maps": (lambda p: torch.ones(4, 1, 2, dtype=F64), "value_maps must have shape .4, 1, 1., got .4, 1, 2."),
    "score_maps": (lambda p: torch.ones(3, 4, 1, 1, dtype=F64), "score_maps must have shape .2, 4, 1, 1."),
    "score_weights": (lambda p: torch.ones(1, dtype=F64), "score_weights must be given with an activation"),
    "mask": (lambda p: torch.ones(1, 1, 5, 6, dtype=torch.bool), "mask must broadcast to"),
    "causal": (lambda p: torch.tensor([1, 2, 3]), "offset must have 1 or 1 integers"),
    "seed": (lambda p: None, "seed or keep must be given"),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_that_do_not_fit_never_reach_the_kernels(name):
    wrong, message = WRONG[name]
    problem = _problem(some_edges(5, 9), 0.5, heads=2)
    with pytest.raises(ValueError, match=message):
        check_listed(replace(problem, **{name: wrong(problem)}))


def test_a_spoilt_additive_score_never_reaches_the_kernels():
    problem = replace(_problem(some_edges(5, 9), 0.0, heads=2), score=Activation("tanh"))
    good, maps = {"score_weights": torch.ones(2, 1, dtype=F64)}, torch.ones(4, 1, 1, dtype=F64)
    for wrong, message in (
        ({}, "score_weights must be given"),
        ({"score_weights": torch.ones(3, dtype=F64)}, "score_weights must have shape .1., got .3."),
        (good | {"score_maps": maps}, "score_maps must be None with score_weights"),
        ({**good, "vector_maps": maps[0]}, "vector_maps must come with score_weights and with vectors"),
        (good | {"label_queries": maps[0]}, "label_queries and vectors in the score must be left out"),
    ):
        with pytest.raises(ValueError, match=message):
            check_listed(replace(problem, **wrong))
    check_listed(replace(problem, **good))
