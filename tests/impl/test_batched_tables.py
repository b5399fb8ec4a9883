"""Tables with a batch axis: every batch row gets what a call with its own tables gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import relgraph as rg
from relgraph.impl.native import build
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, Case, answer, assert_same, distance, edges, make, raw

UNPACKED = [kind for kind in KINDS if "packed" not in kind and "block" not in kind and kind != "none"]
NATIVE = pytest.param("native", marks=pytest.mark.skipif(build.missing() is not None, reason="no compiled kernels"))
IMPLS = ["reference", "dense", "chunked", "edges", NATIVE]


def by_row(case: Case, batched: str, **options) -> list[Tensor]:
    """Outputs of the reference, one call for each batch row, of which only that row is taken."""
    whole = []
    for b in range(case.inputs[0].shape[0]):
        initials = zip("kvqb", case.tables, strict=True)
        tables = [of_row(table, b) if initial in batched else table for initial, table in initials]
        whole.append([x[b] for x in raw(replace(case, tables=tables), "reference", **options)])
    return [torch.stack(rows) for rows in zip(*whole, strict=True)]


def of_row(table, b: int):
    """The table of a batch row, as calls take it that have one for all rows."""
    if isinstance(table, tuple):
        return tuple(of_row(part, b) for part in table)
    return None if table is None else table[b, 0] if table.shape[1] == 1 else table[b]


def gradients(outputs: list[Tensor], case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=F64) for x in outputs]
    pieces = zip(outputs, weights, strict=True)
    total = sum((x.masked_fill(x == float("-inf"), 0.0) * weight).sum() for x, weight in pieces)
    return list(torch.autograd.grad(total, case.leaves, materialize_grads=True))


def check(case: Case, impl: str | None, batched: str, **options) -> None:
    outputs, grads = answer(case, impl, **options)
    wanted = by_row(case, batched, **options)
    assert_same(outputs, wanted, what="output")
    assert_same(grads, gradients(wanted, case), what="gradient")


def refused(case: Case, impl: str) -> bool:
    choice = rg.which_impl(*case.inputs, case.labels, *case.tables, **case.options, impl=None)
    return impl in choice.refused


TABLES = ("kvqb", "vb", 7), ("kb", "qk", 2), ("vq", "", 0)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("kind", "tables"),
    [(kind, tables) for turn, kind in enumerate(UNPACKED) for tables in (TABLES[0], TABLES[1 + turn % 2])],
)
def test_every_kind_of_labels(impl, kind, tables):
    """All tables, and in turns some tables of fewer nodes."""
    batched, per_head, n = tables
    case = make(KINDS[kind](n), n=n, heads=4, kv_heads=2, batched=batched, per_head=per_head)
    if refused(case, impl):
        only_edges = case.labels is not None and kind.startswith("edges only")
        assert impl == "edges" if not only_edges else impl != "edges"
        with pytest.raises(NotImplementedError, match=f"impl='{impl}'"):
            answer(case, impl)
        return
    check(case, impl, batched)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("initial", "kvqb")
def test_one_kind_at_a_time_with_other_options(impl, initial):
    labels = KINDS["edges only batch"](9) if impl == "edges" else distance(9)
    options = {"is_causal": True, "scale": 0.7, "dropout_p": 0.4, "attn_mask": torch.rand(2, 1, 9, 9) > 0.2}
    case = make(labels, heads=3, kv_heads=3, kinds=initial, batched=initial, **options)
    check(case, impl, initial, keep=(torch.rand(2, 3, 9, 9) > 0.4).double())


@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", "edges"])
@pytest.mark.parametrize(
    "kind", ["distance", "edges sum", "edges sum batch", "edges only batch", "edges only parallel"]
)
@pytest.mark.parametrize("what", ["additive", "bilinear", "maps", "function", "rows"])
def test_other_scores_and_maps(impl, kind, what):
    labels = KINDS[kind](6)
    if "sum" in kind and what in ("bilinear", "maps"):
        pytest.skip("a map is for one label")
    count = labels.num_labels
    kinds = {"additive": "kvb", "rows": "vqb"}.get(what, "kvqb")
    options = {
        "additive": {"score": rg.score.Additive(torch.randn(3, dtype=F64))},
        "bilinear": {"score": rg.score.Bilinear(torch.randn(count, 3, 3, dtype=F64))},
        "maps": {"value_map": torch.randn(count, 4, 4, dtype=F64)},
        "function": {"score": torch.atan},
        "rows": {"row_scores": torch.randn(2, 2, 6, count, dtype=F64)},
    }[what]
    case = make(labels, n=6, kinds=kinds, batched=kinds, per_head="k", **options)
    if not refused(case, impl):
        check(case, impl, kinds)


@pytest.mark.parametrize("impl", IMPLS)
def test_biases_of_the_query(impl):
    labels = KINDS["edges only batch"](9) if impl == "edges" else distance(9)
    given_ = {name: torch.randn(2, 3, dtype=F64) for name in ("content_bias", "position_bias")}
    case = make(labels, batched="kv", per_head="b")
    kinds = dict(zip(("key_table", "value_table", "query_table", "bias_table"), case.tables, strict=True))
    got = rg.relation_attention(*case.inputs, labels, **kinds, **given_, impl=impl)
    for b in range(2):
        own = {name: of_row(x, b) if name[0] in "kv" else x for name, x in kinds.items()}
        row = rg.relation_attention(*case.inputs, labels, **own, **given_, impl="reference")
        torch.testing.assert_close(got[b], row[b], atol=1e-10, rtol=0.0)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_mixture(data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    initials = st.sets(st.sampled_from("kvqb"), min_size=1)
    kinds = "".join(sorted(data.draw(initials)))
    batched, per_head = "".join(data.draw(initials)), "".join(data.draw(initials))
    labels = KINDS[data.draw(st.sampled_from(["distance", "dense batch", "sum", "edges sum batch", "edges default"]))](
        5
    )
    heads, kv_heads = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 3)]))
    case = make(labels, n=5, heads=heads, kv_heads=kv_heads, kinds=kinds, batched=batched, per_head=per_head)
    check(case, data.draw(st.sampled_from(["dense", "chunked", None])), batched)


def test_one_table_for_all_rows_is_the_same():
    case = make(distance(7), per_head="kv")
    lead = [x.expand(2, *x.shape) if x.dim() == (3 if at < 3 else 2) else x[None, None].expand(2, 1, *x.shape)
            for at, x in enumerate(case.tables)]  # fmt: skip
    assert_same(raw(replace(case, tables=lead), None), raw(case, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("impl", ["dense", "chunked", NATIVE])
def test_half_types(impl, dtype):
    pairs = [twins(distance(40), n=40, size=8, value_size=8, batched="kvqb", dtype=dtype) for _ in range(3)]
    assert_within_budget(pairs, lambda low: answer(low, impl), weights=dtype)


def test_double_backward_and_transforms():
    case = make(distance(4), n=4, batched="kvqb")

    def call(*leaves):
        return rg.relation_attention(*leaves[:3], case.labels, *leaves[3:], impl="dense")

    leaves = [x.detach().requires_grad_() for x in case.leaves]
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    grad = torch.func.grad(lambda table: call(*leaves[:3], table, *leaves[4:]).square().sum())(leaves[3])
    torch.testing.assert_close(grad, torch.autograd.grad(call(*leaves).square().sum(), leaves[3])[0])


def test_packed_inputs_have_no_batch_axis():
    labels, x = distance(7, ptr=torch.tensor([0, 3, 7])), torch.zeros(7, 4, 3)
    match = r"key_table must have shape .* = \[5, 3\] or \[4, 5, 3\], as inputs have no batch axis, got \[1, 4, 5, 3\]"
    with pytest.raises(ValueError, match=match):
        rg.relation_attention(x, x, x, labels, torch.zeros(1, 4, 5, 3))
    alone = rg.EdgeLabels(*edges(7)[:2], 5, q_len=7)
    with pytest.raises(ValueError, match=match):
        rg.edge_attention(x, x, x, alone, torch.zeros(1, 4, 5, 3))


@pytest.mark.skipif(build.missing() is not None, reason="no compiled kernels")
def test_native_names_what_it_does_not_do():
    case = make(KINDS["edges only"](7), kinds="q", batched="q")
    with pytest.raises(
        NotImplementedError,
        match="impl='native' has no query_table with a batch axis over listed pairs; use impl='edges'",
    ):
        raw(case, "native")
    assert rg.which_impl(*case.inputs, case.labels, *case.tables).impl == "edges"
    case = make(KINDS["edges only"](7), kinds="kvb", batched="kvb")
    assert rg.which_impl(*case.inputs, case.labels, *case.tables).impl == "native"


@pytest.mark.parametrize("impl", ["reference", "dense", "chunked"])
def test_an_empty_batch_with_parallel_edges(impl):
    case = make(KINDS["edges sum"](5), n=5, batched="kvb", kinds="kvb")
    case = replace(
        case, inputs=[x[:0] for x in case.inputs], tables=[None if x is None else x[:0] for x in case.tables]
    )
    case.options["score"] = rg.score.Additive(torch.ones(3, dtype=F64))
    z, *_ = raw(case, impl)
    assert z.shape == (0, 2, 5, 4)
