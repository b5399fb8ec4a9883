"""Labels by a function of the positions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import relgraph as rg
from relgraph.graphs import Graph
from relgraph.labelers import ClippedDistance, FromFunction
from relgraph.labels import function

from .conformance import Case, LabelerSuite, before, parity


class TestConformance(LabelerSuite):
    cases = (
        Case(FromFunction(parity, 2), (5,)),
        Case(FromFunction(parity, 2, names=["even", "odd"]), (5, 3)),
        Case(FromFunction(before, 2), (4, 6), {"q_offset": 2}),
        Case(FromFunction(before, 3), (0, 6), {"q_offset": torch.tensor(1)}),
        Case(FromFunction(before, 7, names=tuple("abcdefg")), (3,), {"q_offset": torch.tensor([0, 2, 5])}),
    )


@given(st.integers(0, 6), st.integers(0, 6), st.integers(-3, 3))
def test_against_a_loop(q_len, k_len, offset):
    ids, attend = FromFunction(before, 2)(q_len, k_len, q_offset=offset).to_dense()
    for i in range(q_len):
        for j in range(k_len):
            at = i + offset
            assert ids[0, i, j] == (1 if j < at else -1 if j > at else 0)
    assert bool(attend.all())


def test_positions_broadcast():
    seen = []

    def look(i, j):
        seen.append((i.dtype, i.shape, i.flatten().tolist(), j.dtype, j.shape, j.flatten().tolist()))
        return i * 0 + j * 0

    FromFunction(look, 1)(2, 3, q_offset=7)
    assert seen == [(torch.int64, (2, 1), [7, 8], torch.int64, (1, 3), [0, 1, 2])]


def test_the_result_may_broadcast():
    assert FromFunction(lambda i, j: torch.tensor(1), 2)(2, 3).to_dense()[0].tolist() == [[[1] * 3] * 2]
    assert FromFunction(lambda i, j: j.to(torch.int8), 3)(2, 3).to_dense()[0].tolist() == [[[0, 1, 2]] * 2]
    assert FromFunction(lambda i, j: i, 2)(2, 3).to_dense()[0].tolist() == [[[0] * 3, [1] * 3]]
    batched = FromFunction(lambda i, j: torch.tensor([0, 1])[:, None, None], 2)(1, 2)
    assert batched.to_dense()[0].tolist() == [[[0, 0]], [[1, 1]]]


def test_truth_values_are_the_ids_0_and_1():
    kind = torch.tensor([4, 7, 4])
    same, ids = (FromFunction(fn, 2) for fn in (lambda i, j: kind[i] == kind[j], lambda i, j: (kind[i] == kind[j]) * 1))
    assert same(3).to_dense()[0].tolist() == [[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]
    packed = Graph(torch.zeros(2, 0, dtype=torch.int64), 5, ptr=torch.tensor([0, 2, 5]))
    for nodes in (3, packed):
        assert same(nodes) == ids(nodes)
    assert same(1, 3, q_offset=torch.tensor([0, 1])) == ids(1, 3, q_offset=torch.tensor([0, 1]))


def test_names():
    assert FromFunction(parity, 3).names == ("0", "1", "2")
    assert FromFunction(parity, 2, names=["even", "odd"]).names == ("even", "odd")
    assert repr(FromFunction(parity, 2, ["even", "odd"])) == "FromFunction(parity, 2, names=('even', 'odd'))"
    assert repr(FromFunction(partial(parity, 1), 2)).startswith("FromFunction(functools.partial(")


@pytest.mark.parametrize("local", [True, False])
def test_a_function_without_an_address_cannot_be_pickled(local):
    def inner(i, j):
        return parity(i, j)

    labeler = FromFunction(inner if local else lambda i, j: parity(i, j), 2)
    with pytest.raises(pickle.PicklingError, match="lambda or a local function; define it at the top of a module"):
        pickle.dumps(labeler)
    with pytest.raises(pickle.PicklingError, match="top of a module"):
        pickle.dumps(labeler & ClippedDistance(1))
    assert copy.deepcopy(labeler) is labeler
    assert copy.copy(labeler) is labeler


def test_refuses_bad_results():
    with pytest.raises(ValueError, match="fn returns may be truth values only if num_labels is 2, got num_labels = 3"):
        FromFunction(lambda i, j: i < j, 3)(2)
    with pytest.raises(ValueError, match=r"must broadcast to \[2, 3\], got shape \[3, 2\]"):
        FromFunction(lambda i, j: (i + j).T, 4)(2, 3)
    with pytest.raises(ValueError, match=r"must broadcast to \[2, 2, 3\], got shape \[3, 2, 3\]"):
        FromFunction(lambda i, j: torch.zeros(3, 2, 3, dtype=torch.int64), 4)(2, 3, q_offset=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"ids must lie in \[-1, 2\)"):
        FromFunction(lambda i, j: i + j, 2)(2)


OFFSETS = (None, 3, torch.tensor(2), torch.tensor([0, 5]))


def computed(monkeypatch, make, *, at_once=30):
    """What ``make`` returns where ids are computed, not written out, for two rows of 13 keys at a time."""
    with monkeypatch.context() as patched:
        patched.setattr(function, "FEW_PAIRS", 0)
        patched.setattr(function, "PAIRS_AT_ONCE", at_once)
        return make()


@pytest.mark.parametrize("q_offset", OFFSETS)
def test_many_pairs_are_computed_when_they_are_read(q_offset, monkeypatch):
    labeler, asked = FromFunction(lambda i, j: asked.append(i.numel() * j.numel()) or (i * j) % 7 - 1, 6), []
    written = labeler(11, 13, q_offset=q_offset)
    assert isinstance(written, rg.DenseLabels)
    asked.clear()
    labels = computed(monkeypatch, lambda: labeler(11, 13, q_offset=q_offset))
    assert isinstance(labels, rg.labels.FunctionLabels)
    assert asked == [26 if written.batch_size == 1 else 2 * 13]  # the first rows, to see that fn can be used
    assert labels.names == labeler.names
    assert sum(x.numel() for x in pytree.tree_leaves(labels)) == 11 * written.batch_size + 13
    asked.clear()
    assert computed(monkeypatch, labels.dense) == written
    assert max(asked) <= 30
    assert written.ids.dtype == torch.int8
    assert torch.equal(labels._batch_rows(0, 1).to_dense()[0], written.to_dense()[0][:1])


def test_a_graph_of_many_pairs(monkeypatch):
    labeler = FromFunction(lambda i, j: (i * 3 + j) % 5, 5)
    for ptr in (None, torch.tensor([0, 2, 2, 9, 12])):
        graph = Graph(torch.zeros(2, 0, dtype=torch.int64), 12, ptr=ptr)
        labels = computed(monkeypatch, lambda graph=graph: labeler(graph))
        assert isinstance(labels, rg.labels.FunctionLabels)
        assert labels.dense() == labeler(graph).dense()
        padded = rg.labels.padded(labels) if ptr is not None else labels
        assert ptr is None or torch.equal(padded.to_dense()[0][2, :7, :7], labels.to_dense()[0][0, 2:9, 2:9])


def test_batch_rows_of_a_function(monkeypatch):
    """The function itself gives each batch row ids of its own."""
    kinds = torch.tensor([[0, 1, 2] * 4, [2, 2, 1] * 4])
    labeler = FromFunction(lambda i, j: (kinds[:, i[:, 0], None] + kinds[:, j[0]][:, None]) % 3, 3)
    many = FromFunction(lambda i, j: (kinds[:, i.expand(-1, j.shape[-1])] + kinds[:, j.expand(len(i), -1)]) % 3, 3)
    written = labeler(12)
    labels = computed(monkeypatch, lambda: many(12))
    assert labels.batch_size == 2
    for other in (labels, computed(monkeypatch, labels.rows(0, 12).dense)):
        assert torch.equal(other.to_dense()[0], written.to_dense()[0])
    assert labels._batch_rows(1, 2).dense() == written._batch_rows(1, 2)
    edge = torch.tensor([[5, 7], [0, 3]])
    over = rg.EdgeLabels(edge, torch.tensor([-1, -1]), 1, q_len=12, default=-1)
    assert (over | labels).dense() == (over | written).dense()


def test_joins_stay_functions(monkeypatch):
    """What composing makes of them has the ids of the same labels written out."""
    labeler = FromFunction(lambda i, j: (i * j) % 7 - 1, 6)
    far, window = ClippedDistance(2)(11, 13, q_offset=1), rg.Window(3)(11, 13, q_offset=1)
    labels, written = computed(monkeypatch, lambda: labeler(11, 13)), labeler(11, 13)
    scattered = torch.arange(13) * 5 % 11
    at = ClippedDistance(2).at
    other = computed(monkeypatch, lambda: at(scattered[:11], scattered))
    for theirs in (far, window, other):
        for join in (rg.labels.product, rg.labels.first_of, rg.labels.restrict):
            for pair, wanted in (((labels, theirs), (written, theirs)), ((theirs, labels), (theirs, written))):
                made = join(*pair)
                assert isinstance(made, rg.labels.FunctionLabels)
                assert made.dense() == join(*(x.dense() for x in wanted))
    assert isinstance(labels * written, rg.DenseLabels)  # which are written out already
    assert other.dense() == at(scattered[:11], scattered)
    assert (labels + far).parts == (labels, far)


def test_refuses_bad_results_of_many_pairs(monkeypatch):
    """The first rows show them at the door, the others when they are attended."""

    def make(fn, labels=4):
        return computed(monkeypatch, lambda: FromFunction(fn, labels)(11, 13))

    with pytest.raises(ValueError, match=r"must broadcast to \[2, 13\], got shape \[13, 2\]"):
        make(lambda i, j: (i * 0 + j * 0).T)
    with pytest.raises(ValueError, match="the ids that fn returns must have an integer dtype, got torch.float32"):
        make(lambda i, j: i / (j + 1))
    with pytest.raises(ValueError, match="may be truth values only if num_labels is 2, got num_labels = 4"):
        make(lambda i, j: i < j)
    late = make(lambda i, j: (i > 9).long() * 4)
    x = torch.randn(1, 2, 11, 4), torch.randn(1, 2, 13, 4)
    for impl in ("dense", "chunked", None):
        with pytest.raises(ValueError, match=r"fn's ids must lie in \[-1, 4\), got values from 0 to 4"):
            rg.relation_attention(x[0], x[1], x[1], late, torch.randn(4, 4), impl=impl)
    with pytest.raises(pickle.PicklingError, match="cannot pickle labels by function: fn is a lambda"):
        pickle.dumps(late)
    assert copy.deepcopy(late) == late


@pytest.mark.slow
def test_memory_grows_with_positions_not_with_pairs():
    """64 MiB above inputs, outputs and gradients in forward and backward, where the ids of all pairs take 64 MiB."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) < 64


ROOT = Path(__file__).parents[2]
PEAK = """
import torch, relgraph as rg
from docs.benchmarks.measure import peak_mib

torch.set_num_threads(1)
labeler = rg.FromFunction(lambda i, j: (i * 7 + j * 3) % 33, 33)

def work(n):
    x = [torch.randn(1, 8, n, 64, requires_grad=True) for _ in range(3)]
    x += [torch.randn(33, 64, requires_grad=True) for _ in range(2)]
    grad = torch.randn(1, 8, n, 64)
    def run():
        labels = labeler(n)
        assert isinstance(labels, rg.labels.FunctionLabels)
        out = rg.relation_attention(*x[:3], labels, *x[3:])
        return out, torch.autograd.grad(out, x, grad)
    return run

work(1100)()
n = 8192
print(peak_mib(work(n)) - 4 * n * 8 * 64 * 4 / 2**20)
"""
