"""Tables with a batch axis: every batch row gets what a call with its own tables gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import relgraph as rg
from relgraph.impl.native import build
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


TABLES = ("kvqb", "vb", 7), ("kvb", "qk", 5), ("vq", "", 0)


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
    match = "impl='native' has no query_table with a batch axis over listed pairs; use impl='edges'"
    with pytest.raises(NotImplementedError, match=match):
        raw(case, "native")
    assert rg.which_impl(*case.inputs, case.labels, *case.tables).impl == "edges"
    case = make(KINDS["edges only"](7), kinds="kvb", batched="kvb")
    assert rg.which_impl(*case.inputs, case.labels, *case.tables).impl == "native"
