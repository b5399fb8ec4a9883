"""torch.compile without graph breaks and with few recompilations, torch.export, and opcheck of the custom ops."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.utils import counters

import relgraph as rg
from relgraph.labels import DenseLabels, EdgeLabels, SumLabels
from relgraph.plan import encode, lower
from tests.cases import F64, distance, make

IMPLS = ["reference", "dense", "chunked", None]


@pytest.fixture(autouse=True)
def _fresh():
    dynamo.reset()
    counters.clear()
    yield
    dynamo.reset()


def inputs(n, heads=2, size=4):
    return [torch.randn(2, heads, n, size, dtype=F64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("impl", IMPLS)
def test_labels_built_inside_over_changing_lengths(impl):
    """Two graphs serve every length: one fixed, one dynamic."""
    tables = [torch.randn(5, 4, dtype=F64, requires_grad=True) for _ in range(2)]

    def fn(q, k, v):
        z, aux = rg.relation_attention_with_aux(
            q, k, v, distance(q.shape[2]), *tables, is_causal=True, need_label_mass=True, impl=impl
        )
        return z.square().sum() + aux.label_mass.sin().sum()

    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    for n in (5, 6, 9, 13, 30):
        leaves = inputs(n)
        wanted = torch.autograd.grad(fn(*leaves), [*leaves, *tables])
        got = torch.autograd.grad(compiled(*leaves), [*leaves, *tables])
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


@pytest.mark.parametrize("impl", ["dense", "chunked"])
def test_labels_given_over_changing_lengths(impl):
    table = torch.randn(9, 4, dtype=F64)

    def fn(q, k, v, labels):
        return rg.relation_attention(q, k, v, labels, table, table, impl=impl)

    builders = [
        lambda n: distance(n, reach=4),
        lambda n: DenseLabels(torch.randint(0, 9, (n, n)), 9),
        lambda n: EdgeLabels(torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]), 9, q_len=n, default=8),
        lambda n: distance(n, reach=4, q_offset=torch.tensor([0, 1])),
    ]
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    for build in builders:
        for n in (5, 6, 9, 13):
            leaves, labels = inputs(n), build(n)
            torch.testing.assert_close(compiled(*leaves, labels), fn(*leaves, labels))
    assert counters["stats"]["unique_graphs"] <= 2 * len(builders)


def test_sums_packed_batches_and_dropout_compile():
    def fn(q, k, v, ptr, a, b):
        n = q.shape[0]
        labels = SumLabels(distance(n, ptr=ptr), distance(n, reach=1, ptr=ptr))
        return rg.relation_attention(q, k, v, labels, (a, b), impl="chunked", dropout_p=0.1)

    leaves = [torch.randn(7, 2, 4, dtype=F64, requires_grad=True) for _ in range(3)]
    a, b = torch.randn(5, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    out = torch.compile(fn, fullgraph=True, backend="aot_eager")(*leaves, torch.tensor([0, 3, 7]), a, b)
    assert out.shape == (7, 2, 4)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a C++ compiler")
def test_inductor():
    table = torch.randn(5, 4, dtype=F64, requires_grad=True)

    def fn(q, k, v):
        return rg.relation_attention(q, k, v, distance(q.shape[2]), table, table, impl="chunked")

    leaves = inputs(6)
    got = torch.compile(fn, fullgraph=True)(*leaves)
    torch.testing.assert_close(got, fn(*leaves))
    for a, b in zip(
        torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(fn(*leaves).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(a, b)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(5, 4))

    def forward(self, x, labels=None):
        labels = distance(x.shape[2]) if labels is None else labels
        return rg.relation_attention(x, x, x, labels, self.table, self.table)


def test_export_with_a_dynamic_length():
    net = Net()
    program = torch.export.export(net, (torch.randn(2, 2, 10, 4),), dynamic_shapes={"x": {2: torch.export.Dim.DYNAMIC}})
    for n in (3, 10, 300):
        x = torch.randn(2, 2, n, 4)
        torch.testing.assert_close(program.module()(x), net(x))


def test_export_takes_labels_as_an_input():
    net, x = Net(), torch.randn(2, 2, 6, 4)

    def labels():
        return DenseLabels(torch.randint(0, 5, (6, 6)), 5)

    program = torch.export.export(net, (x, labels()))
    other = labels()
    torch.testing.assert_close(program.module()(x, other), net(x, other))


@pytest.mark.parametrize("kind", ["distance", "dense", "edges only", "edges sum", "sum", "distance per row"])
@pytest.mark.parametrize("needs", [(True, True), (False, False)], ids=["sums", "bare"])
def test_opcheck(kind, needs):
    from tests.cases import KINDS

    labels = KINDS[kind](5)
    case = make(labels)
    tensors, ints = encode(lower(labels))
    columns = sum(p.num_labels + 1 for p in lower(labels).parts)
    q, k, v = case.inputs
    tables = [torch.randn(*x.shape[:3], columns, dtype=F64, requires_grad=True) for x in (q, k)]
    seed = torch.tensor(3)
    arguments = (
        q, k, v, *tables, torch.rand(5, k.shape[2])[None, None] > 0.2, None, seed, None, tensors, ints, 0, 0.5, 0.25,
        True, *needs,
    )  # fmt: skip
    result = torch.library.opcheck(torch.ops.relgraph.chunked.default, arguments)
    assert set(result.values()) == {"SUCCESS"}
