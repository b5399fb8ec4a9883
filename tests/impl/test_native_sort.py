"""Listed pairs sorted by compiled kernels, beside torch's operators."""

from __future__ import annotations

import pytest
import torch

from relgraph.impl.native import build
from relgraph.impl.native.sort import sort_pairs
from relgraph.plan import SORTERS, lower
from tests.cases import KINDS

needs_kernels = pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")


def by_torch(row, col, ids):
    order = sorted(range(len(row)), key=lambda e: (int(row[e]), int(col[e])))
    return row[order], col[order], ids[order].long(), torch.tensor(order, dtype=torch.int64)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
@pytest.mark.parametrize(
    ("pairs", "rows", "keys"), [(0, 0, 0), (0, 3, 2), (1, 1, 1), (40, 20, 23), (300, 3, 2), (5, 1000, 1)]
)
def test_pairs_are_sorted_as_by_python(pairs, rows, keys, dtype):
    torch.manual_seed(0)
    row, col = torch.randint(max(rows, 1), (pairs,)), torch.randint(max(keys, 1), (pairs,))
    ids = torch.randint(-1, 5, (pairs,)).to(dtype)
    found = sort_pairs(row, col, ids, rows, keys)
    assert found is not None
    for got, wanted in zip((found.row, found.col, found.ids, found.order), by_torch(row, col, ids), strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(found.row_ptr, torch.searchsorted(found.row, torch.arange(rows + 1)))
    assert torch.equal(found.role, torch.ones(pairs, dtype=torch.int8))


@needs_kernels
@pytest.mark.parametrize(("row", "col"), [(5, 0), (-1, 0), (0, 3), (0, -1)])
def test_pairs_out_of_range_are_left_to_torch(row, col):
    numbers = [torch.tensor([0, number]) for number in (row, col, 1)]
    assert sort_pairs(*numbers, 5, 3) is None


@needs_kernels
def test_columns_of_a_matrix_are_read_in_order():
    edges = torch.tensor([[4, 0], [1, 2], [1, 0]])
    found = sort_pairs(edges[:, 0], edges[:, 1], torch.tensor([7, 8, 9]), 5, 3)
    assert found is not None
    assert found.ids.tolist() == [9, 8, 7]


@needs_kernels
@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith("edges only")])
def test_plans_are_the_same_without_kernels(kind, monkeypatch):
    torch.manual_seed(0)
    here = lower(KINDS[kind](7)).parts[0].csr
    torch.manual_seed(0)
    monkeypatch.delitem(SORTERS, "cpu")
    there = lower(KINDS[kind](7)).parts[0].csr
    assert here is not None and there is not None
    for name in ("row_ptr", "row", "col", "ids", "role", "order"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name


def test_nothing_is_sorted_by_kernels_that_no_call_has_loaded(monkeypatch):
    monkeypatch.setattr(build, "_known", None)
    one = torch.zeros(1, dtype=torch.int64)
    assert sort_pairs(one, one, one, 1, 1) is None
    assert build._known is None
