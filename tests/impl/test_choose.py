"""The rule that picks an implementation, and what each one refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import relgraph as rg
from relgraph.call import Call, EdgeVectors, Tables, ValueMap
from relgraph.impl.native import build
from relgraph.impl.rule import DENSE_SCORES, SMALL_SCORES, choose
from relgraph.plan import lower, plain
from tests.cases import KINDS, make, raw


def call(batch=1, heads=1, q_len=4, k_len=4, **options):
    q, k = torch.zeros(batch, heads, q_len, 2), torch.zeros(batch, heads, k_len, 2)
    return Call(q, k, k, plain(q_len, k_len), (Tables(),), 1.0, **options)


def test_small_calls_go_dense_without_kernels_and_large_ones_in_blocks(on_a_cpu, monkeypatch):
    small, rows = "native" if on_a_cpu == "native" else "dense", DENSE_SCORES // 64
    for sizes in ({"q_len": 64}, {"batch": 4, "q_len": 16}):
        assert choose(call(k_len=rows, **sizes), None) == small
        assert choose(call(k_len=rows + 1, **sizes), None) == on_a_cpu
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choose(call(q_len=64, k_len=SMALL_SCORES // 64), None) == "dense"


LARGE = {"q_len": 2048, "k_len": 2048}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_kernels_take_every_type(on_a_cpu, dtype):
    given = call(**LARGE, mask=torch.zeros(1, 1, 1, 2048, dtype=torch.bool), score=rg.score.Softcap(3.0))
    x = given.query.to(dtype)
    assert choose(replace(given, query=x, key=x, value=x), None) == on_a_cpu


def test_what_the_kernels_do_not_do_goes_in_blocks(on_a_cpu):
    given = call(**LARGE)
    refused = {
        "named activations, got a function of your own; use impl='chunked'": [
            replace(given, score=rg.score.compatibility(score))
            for score in (rg.score.Additive(torch.zeros(2), torch.sin), torch.sin)
        ],
        "no key_table with a batch axis with score=Additive; use impl='chunked'": [
            replace(given, score=rg.score.Additive(torch.zeros(2)), tables=(Tables(key=torch.zeros(1, 1, 3, 2)),))
        ],
        "no edge_key over all pairs with score=Additive; use impl='chunked'": [
            replace(
                given,
                score=rg.score.Additive(torch.zeros(2)),
                edge=EdgeVectors(torch.zeros(3, 2), torch.zeros(2, 2), None),
            )
        ],
    }
    for reason, calls in refused.items():
        for one in calls:
            with pytest.raises(NotImplementedError, match=f"^impl='native' .*{re.escape(reason)}$"):
                choose(one, "native")
            assert choose(one, None) == "chunked"
    with pytest.raises(NotImplementedError, match="'native' never holds all attention weights; use impl='dense'"):
        choose(call(need_weights=True), "native")
    maps = ValueMap(None, torch.zeros(3, 2, 2))
    for taken in (
        replace(given, score=rg.score.Additive(torch.zeros(2), "gelu"), value_map=maps),
        replace(given, score=rg.score.Bilinear(torch.zeros(3, 2, 2))),
    ):
        assert choose(taken, None) == on_a_cpu
    plan = lower(KINDS["edges only"](4))
    listed, additive = replace(call(), plan=plan), rg.score.Additive(torch.zeros(2))
    for more, reason in (
        ({"score": rg.score.compatibility(torch.sin)}, "got a function of your own; use impl='edges'"),
        (
            {"score": additive, "edge": EdgeVectors(torch.zeros(2, 2, requires_grad=True), torch.zeros(2, 2), None)},
            "gives no gradient to edge_attr with edge_key and score=Additive; use impl='edges'",
        ),
    ):
        with pytest.raises(NotImplementedError, match=f"'native' .*{reason}"):
            choose(replace(listed, **more), "native")
    edge = EdgeVectors(torch.zeros(2, 2), None, torch.zeros(2, 2))
    assert choose(replace(listed, score=additive, edge=edge, value_map=maps), None) == on_a_cpu.replace(
        "chunked", "edges"
    )


def test_calls_that_the_kernels_cannot_take_do_not_load_them(monkeypatch):
    def fail():
        raise AssertionError("the kernels were asked for")

    monkeypatch.setattr(build, "_known", None)
    monkeypatch.setattr(build, "load", fail)
    large, x = call(**LARGE), torch.empty(1, 1, 2048, 2, device="meta")
    assert choose(replace(large, score=rg.score.compatibility(torch.sin)), None) == "chunked"
    with pytest.raises(AssertionError, match="the kernels were asked for"):
        choose(replace(large, query=x, key=x, value=x), None)  # shapes alone stand for a CPU


def test_one_row_against_a_long_past_is_compiled_unless_it_learns(on_a_cpu):
    one = call(batch=4, heads=8, q_len=1, k_len=8192)
    learning = replace(one, query=one.query.clone().requires_grad_())
    assert choose(one, None) == ("native" if on_a_cpu == "native" else "dense")
    assert choose(learning, None) == "dense"
    with torch.no_grad():
        assert choose(learning, None) == choose(one, None)


@pytest.mark.parametrize("length", [0, 1, 4, 2048])
def test_on_a_gpu_the_fused_kernels_take_every_size(on_a_gpu, length):
    assert choose(call(q_len=length, k_len=length), None) == "triton"
    assert choose(call(q_len=1, k_len=length), None) == "triton"
    learning = call(q_len=length, k_len=length, mask=torch.zeros(1, 1, 1, length), dropout_p=0.1, is_causal=True)
    assert choose(replace(learning, query=learning.query.clone().requires_grad_()), None) == "triton"


def test_on_a_gpu_listed_pairs_go_to_the_fused_kernels_too(on_a_gpu):
    query = torch.zeros(1, 1, 4, 2)
    edges = Call(query, query, query, lower(KINDS["edges only"](4)), (Tables(),), 1.0)
    assert choose(edges, None) == "triton"
    assert choose(replace(edges, edge=EdgeVectors(torch.zeros(5, 2), None, None)), None) in ("edges", "native")


def test_on_a_gpu_what_the_fused_kernels_do_not_do_goes_on_down_the_table(on_a_gpu, no_kernels):
    large = call(**LARGE)
    assert choose(replace(large, need_weights=True), None) == "dense"
    assert choose(replace(large, score=rg.score.compatibility(torch.sin)), None) == "chunked"
    assert choose(replace(large, query=large.query.double()), None) == "chunked"
    assert choose(replace(call(), query=call().query.double()), None) == "dense"


def test_on_a_gpu_an_exported_program_depends_on_no_kernels(on_a_gpu, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert choose(call(**LARGE), None) == "dense"


def test_additive_scores_count_all_their_numbers(no_kernels):
    side = int((DENSE_SCORES / 2) ** 0.5)
    score = rg.score.Additive(torch.zeros(2))
    assert choose(call(q_len=side, k_len=side, score=score), None) == "dense"
    assert choose(call(q_len=side, k_len=side + 1, score=score), None) == "chunked"
    assert choose(call(q_len=side, k_len=side + 1, score=rg.score.compatibility(torch.sin)), None) == "dense"


def test_edges_alone_touch_listed_pairs_only(on_a_cpu):
    listed = "native" if on_a_cpu == "native" else "edges"
    plan = lower(KINDS["edges only"](4))
    query = torch.zeros(2, 1, 4, 2)
    edges = Call(query, query, query, plan, (Tables(),), 1.0)
    assert choose(edges, None) == listed
    assert choose(replace(edges, need_weights=True), None) == "dense"
    with pytest.raises(NotImplementedError, match="impl='edges' never holds all attention weights; use impl='dense'"):
        choose(replace(edges, need_weights=True), "edges")
    with pytest.raises(NotImplementedError, match="impl='edges' attends only over listed pairs .* use impl='chunked'"):
        choose(call(), "edges")


@pytest.mark.parametrize("impl", ["dense", "chunked"])
def test_parallel_edges_that_attend_alone_have_no_score_a_pair(impl):
    case = make(KINDS["edges only parallel"](4))
    torch.testing.assert_close(raw(case, None)[0], raw(case, "reference")[0])
    with pytest.raises(NotImplementedError, match=f"impl='{impl}' has one score per pair, .* use impl='edges'"):
        raw(case, impl)


def test_unknown_name():
    with pytest.raises(
        ValueError,
        match=r"unknown impl 'flash'; expected one of \['reference', 'dense', 'chunked', 'edges', 'native', 'triton'\]",
    ):
        choose(call(), "flash")


def test_torch_func_works_on_plain_torch_and_is_refused_elsewhere():
    x = torch.randn(2, 1, 2, 4, 3, dtype=torch.float64)
    labels = KINDS["distance"](4)
    table = torch.randn(5, 3, dtype=torch.float64)

    def loss(table, impl):
        return rg.relation_attention(x[0], x[0], x[0], labels, table, table, impl=impl).square().sum()

    wanted = torch.autograd.grad(loss(t := table.clone().requires_grad_(), "dense"), [t])[0]
    for impl in ("reference", "dense"):
        torch.testing.assert_close(torch.func.grad(loss)(table, impl), wanted)
        batched = torch.vmap(lambda one, impl=impl: rg.relation_attention(one, one, one, labels, table, impl=impl))(x)
        torch.testing.assert_close(batched[1], rg.relation_attention(x[1], x[1], x[1], labels, table, impl=impl))
    for impl in (None, "chunked"):
        with pytest.raises(NotImplementedError, match="torch.func transforms .* need impl='reference' or 'dense'"):
            torch.func.grad(loss)(table, impl)


IDS = torch.tensor([[0, 1, 1, -1], [2, 0, 1, 1], [2, 2, 0, 1], [2, 2, 2, 0]])
X, TABLE = torch.ones(1, 2, 4, 6), torch.ones(3, 6)
EDGE = torch.tensor([[0], [1]])
LAYER = rg.RelationAttention(12, 2, num_labels=3)

MAPPED = {
    "labels": lambda ids: rg.relation_attention(X, X, X, ids, TABLE, impl="dense"),
    "labels of the layer": lambda ids: LAYER(X.view(1, 4, 12), labels=ids),
    "ids": lambda ids: rg.DenseLabels(ids, 3).ids,
    "ids of blocks": lambda ids: rg.BlockLabels(ids.flatten(), 3, torch.tensor([0, 4])).ids,
    "ids of edges": lambda ids: rg.EdgeLabels(EDGE, ids[0, :1], 3, q_len=4).ids,
    "edge_index": lambda ids: rg.EdgeLabels(ids[:2, :1], EDGE[0], 3, q_len=4).ids,
    "edge_index of a graph": lambda ids: rg.Graph(ids[:2, :1], 4).edge_index,
    "ptr": lambda ids: rg.ClippedDistance(1)(4, ptr=ids[0, :2]).k_ptr,
}


@pytest.mark.parametrize("name", MAPPED)
def test_labels_are_not_mapped_over(name):
    ids = torch.stack([IDS, IDS])
    refused = rf"{name.partition(' ')[0]} must not be mapped over by torch\.func\.vmap: .*ids \[B, N_q, N_k\]"
    for mapped in (
        torch.vmap(MAPPED[name]),
        lambda ids: torch.func.grad(lambda _: torch.vmap(MAPPED[name])(ids).sum())(TABLE),
    ):
        with pytest.raises(NotImplementedError, match=refused):
            mapped(ids)


def test_forward_mode_works_on_plain_torch_and_is_refused_elsewhere():
    from torch.autograd import forward_ad

    x, table = torch.randn(1, 2, 4, 3), torch.randn(5, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(table, torch.ones_like(table))
        for impl in ("reference", "dense"):
            z = rg.relation_attention(x, x, x, KINDS["distance"](4), None, dual, impl=impl)
            torch.testing.assert_close(forward_ad.unpack_dual(z).tangent, torch.ones_like(z))
        for impl in (None, "chunked"):
            with pytest.raises(NotImplementedError, match="forward-mode derivatives need impl='reference' or 'dense'"):
                rg.relation_attention(x, x, x, KINDS["distance"](4), None, dual, impl=impl)
        rg.relation_attention(x, x, x, KINDS["distance"](4), None, table, impl="chunked")  # no tangent: nothing is lost
