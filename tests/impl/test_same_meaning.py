"""Every implementation against the reference, in float64: outputs, log-sum-exp, label masses and all gradients."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.impl import by_function
from relgraph.impl.chunked import blocks
from relgraph.labels import function
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, answer, assert_same, make, raw

FAST = ("dense", "chunked", "native")
SEEDS = 3  # one that passes proves little
pytestmark = pytest.mark.usefixtures("poisoned")


def check(case, impl, **options):
    wanted = answer(case, "reference", **options)
    got = answer(case, impl, **options)
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


# parallel edges that attend each on its own have no score a pair, and edges knows listed pairs alone: the others raise,
# see tests/impl/test_choose.py
PAIRS = [(kind, impl) for kind in KINDS for impl in FAST if kind != "edges only parallel"]
IN_BLOCKS = [kind for kind, impl in PAIRS if impl == "chunked"]
PAIRS += [(kind, "edges") for kind in KINDS if kind.startswith("edges only")] + [("edges only parallel", "native")]
each_kind_and_impl = pytest.mark.parametrize(("kind", "impl"), PAIRS)


def causal_options(labels, case_n):
    """is_causal, with an offset where the lengths differ and the labels bring none."""
    if labels is None or labels.q_len == labels.k_len or getattr(labels, "q_offset", None) is not None:
        return {"is_causal": True}
    return {"is_causal": True, "q_offset": labels.k_len - labels.q_len}


def check_every_option(kind, impl, n, heads):
    """Causal, masked, dropout by a given mask, shared key heads, at once."""
    labels = KINDS[kind](n)
    options = {"kv_heads": heads // 2, "size": 2, "value_size": 3, "batch": 1, "per_head": "vb", "dropout_p": 0.25}
    case = make(labels, n=n, heads=heads, **options, **causal_options(labels, n))
    batch, k_len = case.inputs[0].shape[0], n if labels is None else labels.k_len
    lead = () if labels is not None and labels.packed else (batch,)
    case.options["attn_mask"] = torch.rand(*lead, 1, n, k_len) > 0.2
    check(case, impl, keep=(torch.rand(1 if lead == () else batch, heads, n, k_len) > 0.25).to(F64))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@each_kind_and_impl
def test_kinds(kind, impl, n):
    check(make(KINDS[kind](n), n=n), impl)


SOME_TABLES = [
    ("", "", True),
    ("k", "k", False),
    ("v", "", True),
    ("q", "q", False),
    ("b", "", False),
    ("kb", "b", True),
    ("vq", "v", False),
    ("kvqb", "kvqb", True),
]
"""Which tables there are, which of them are per head, and whether label masses are asked for."""


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(("tables", "per_head", "mass"), SOME_TABLES)
@pytest.mark.parametrize("kind", ["distance", "edges sum", "edges only", "sum"])
def test_tables(kind, tables, per_head, mass, impl):
    """Over key heads that each head has for itself, or that all share."""
    if tables or kind in ("edges only", "sum"):  # labels that nothing reads must hide some pairs
        check(
            make(KINDS[kind](6), heads=3, kv_heads=3 if mass else 1, kinds=tables, per_head=per_head), impl, mass=mass
        )


@each_kind_and_impl
def test_odd_size_with_every_option(kind, impl):
    check_every_option(kind, impl, n=63, heads=2)
    check_every_option(kind, impl, n=5, heads=4)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_small_blocks(kind, rows, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", rows)
    labels = KINDS[kind](8)
    check(make(labels, n=8, **causal_options(labels, 8)), "chunked")


@pytest.mark.parametrize(("ids", "rows"), [(1, 1), (20, 2), (60, 1)])
@pytest.mark.parametrize("impl", ["chunked", "native"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "function" in kind])
def test_blocks_of_ids_by_function(kind, impl, ids, rows, monkeypatch):
    """Rows, graphs, batch rows and heads apart, and some of them together."""
    monkeypatch.setattr(by_function, "BLOCK_IDS", ids)
    monkeypatch.setattr(by_function, "FEWEST_ROWS", rows)
    monkeypatch.setattr(by_function, "BLOCK_BYTES", 8 * 8 * 7 * 2 if ids == 20 else 1)
    monkeypatch.setattr(function, "PAIRS_AT_ONCE", 9)
    check(make(KINDS[kind](8), n=8, heads=4, kv_heads=2, per_head="kvqb"), impl)
    check_every_option(kind, impl, n=9, heads=4)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    ("kind", "offset"),
    [
        ("edges only packed", torch.tensor([0, 1, -1, 2])),
        ("edges only", torch.tensor([1, -2])),
        ("edges default packed", torch.tensor([0, 1, -1, 2])),
        ("dense", torch.tensor([1, -2])),
        ("block", torch.tensor(1)),
        ("none", torch.tensor([0, 3])),
    ],
)
def test_causal_with_an_offset_a_row_or_a_graph(kind, offset, impl):
    check(make(KINDS[kind](7), is_causal=True, q_offset=offset), impl)


def masks(labels, n, batch, heads):
    q_len, k_len = (n, n) if labels is None else (labels.q_len, labels.k_len)
    lead = () if labels is not None and labels.packed else (batch,)
    empty_row = torch.rand(*lead, heads, q_len, k_len) > 0.4
    empty_row[..., 2, :] = False
    padding = torch.ones(*lead, 1, 1, k_len, dtype=torch.bool)
    padding[..., -2:] = False
    added = torch.randn(q_len, k_len, dtype=F64)
    added[1] = float("-inf")
    return {"rows that see nothing": empty_row, "padding": padding, "added": added}


@each_kind_and_impl
def test_masks(kind, impl):
    labels = KINDS[kind](7)
    case = make(labels)
    batch = 1 if labels is not None and labels.packed else case.inputs[0].shape[0]
    for mask in masks(labels, 7, batch, 2).values():
        case.options["attn_mask"] = mask
        check(case, impl)


@pytest.mark.parametrize("score", [None, rg.score.Additive(torch.linspace(-1.0, 1.0, 4))], ids=["dots", "additive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", [*FAST, "edges", "reference", None])
def test_a_mask_of_a_wider_dtype_is_converted(impl, dtype, score):
    """Over listed pairs and over all pairs; the numbers are those of a mask in float32."""
    impl = None if impl == "native" and score is not None else impl  # which has no additive score
    x, mask = torch.randn(1, 2, 9, 4, dtype=dtype), torch.randn(9, 9)
    for kind in ("edges only", "distance window") if impl != "edges" else ("edges only",):
        labels = KINDS[kind](9)
        wide, usual = (
            rg.relation_attention(x, x, x, labels, attn_mask=given, impl=impl, score=score)
            for given in (mask.double(), mask)
        )
        assert wide.dtype == dtype
        torch.testing.assert_close(wide, usual)


@pytest.mark.parametrize("impl", FAST)
def test_tables_of_some_parts_only(impl):
    case = make(KINDS["sum"](6))
    for index, part in enumerate((0, 1, 2, 1)):
        case.tables[index] = tuple(t if p == part else None for p, t in enumerate(case.tables[index]))
    check(case, impl)


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("scale", [0.0, 2.5, -1.0])
def test_scale(impl, scale):
    check(make(KINDS["distance"](5), scale=scale), impl)


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_rows_that_see_nothing_are_zero_and_give_zero_gradients(impl):
    case = make(KINDS["dense"](5), attn_mask=torch.zeros(5, 5, dtype=torch.bool))
    outputs, grads = answer(case, impl)
    assert (outputs[0] == 0).all()
    assert (outputs[1] == float("-inf")).all()
    assert (outputs[2] == 0).all()
    assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("kind", ["distance", "edges sum", "edges only", "dense batch"])
def test_gradcheck(kind, impl):
    case = make(KINDS[kind](3), size=2, value_size=2, batch=1)

    def fn(*leaves):
        return tuple(x for x in raw(case, impl) if not (x == float("-inf")).any())

    assert torch.autograd.gradcheck(fn, case.leaves)


@pytest.mark.parametrize("impl", ["reference", "dense"])
@pytest.mark.parametrize(("kind", "batched"), [("distance", ""), ("edges sum", ""), ("distance", "kvqb")])
def test_double_backward(kind, batched, impl):
    case = make(KINDS[kind](3), size=2, value_size=2, batch=1 + bool(batched), heads=1, kv_heads=1, batched=batched)
    assert torch.autograd.gradgradcheck(lambda *leaves: raw(case, impl)[0], case.leaves)


@pytest.mark.parametrize("impl", ["reference", "dense"])
def test_mask_gradient(impl):
    mask = torch.randn(5, 5, dtype=F64, requires_grad=True)
    case = make(KINDS["distance"](5), attn_mask=mask)
    (grad,) = torch.autograd.grad(raw(case, impl)[0].sum(), [mask])
    assert torch.autograd.gradcheck(lambda m: raw(make_with(case, m), impl)[0], [mask])
    assert grad.abs().sum() > 0


LEARNED = ["distance window", "distance packed", "dense batch", "none", "edges only", "edges only batch"]
LEARNED_IN = [(kind, "native") for kind in [*LEARNED, "edges only packed"]] + [("distance packed", "chunked")]


@pytest.mark.parametrize("shared", ["", "b", "h", "bh", "q", "bk", "hqk"])
@pytest.mark.parametrize(("kind", "impl"), LEARNED_IN)
def test_a_mask_that_learns(kind, impl, shared):
    """Its gradient is summed over the axes that it lacks; -inf hides pairs."""
    labels = KINDS[kind](9)
    k_len = 9 if labels is None else labels.k_len
    case = make(labels, n=9, heads=4, kinds="" if labels is None else "kb", score=rg.score.Softcap(2.0))
    axes = {"b": 1 if labels is not None and labels.packed else case.inputs[0].shape[0], "h": 4, "q": 9, "k": k_len}
    shape = [1 if axis in shared else n for axis, n in axes.items()]
    mask = torch.randn(shape[1:] if labels is not None and labels.packed else shape, dtype=F64)
    mask.view(-1)[3 :: max(mask.numel() // 3, 1)] = float("-inf")
    case.options["attn_mask"] = mask.requires_grad_()
    wanted, got = answer(case, "reference"), answer(case, impl)
    assert_same(got[0], wanted[0], atol=1e-12, what="output")
    assert_same(got[1], wanted[1], atol=1e-12, what="gradient")


def make_with(case, mask):
    case.options["attn_mask"] = mask
    return case


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("kind", ["distance", "dense batch", "edges default", "edges only", "sum"])
def test_error_in_lower_precision(kind, impl, dtype):
    """Near the reference in the same dtype and the size of the terms that cancel, over several seeds."""
    draws = (twins(KINDS[kind](40), dtype, heads=2, size=16, value_size=16) for _ in range(SEEDS))
    assert_within_budget(draws, lambda low: answer(low, impl))
