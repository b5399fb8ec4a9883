"""Rows of ``dense`` under a memory bound, which ``chunked`` takes on other devices than a CPU: meaning, memory, waits."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from docs.benchmarks.launches import SEQUENCES, counting
from relgraph.impl import budget
from tests.cases import F64, KINDS, make, raw
from tests.impl.test_blocks import most_held
from tests.impl.test_same_meaning import IN_BLOCKS, causal_options, check, check_every_option

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_odd_size_with_every_option(kind, monkeypatch):
    monkeypatch.setattr(budget, "CPU_BYTES", 6_000)
    check_every_option(kind, "chunked", n=23, heads=4)


@pytest.mark.parametrize("kind", ["distance", "sum", "distance packed"])
def test_a_mask_with_a_gradient(kind, monkeypatch):
    monkeypatch.setattr(budget, "CPU_BYTES", 1)
    case = make(KINDS[kind](9), n=9)
    case.options["attn_mask"] = torch.randn(9, 9, dtype=F64, requires_grad=True)
    check(case, "chunked")


@pytest.mark.parametrize("kind", ["none", "distance", "distance per row", "distance packed", "dense", "dense batch"])
def test_the_host_waits_for_no_device(kind, monkeypatch):
    """From the second call with the same labels on."""
    monkeypatch.setattr(budget, "CPU_BYTES", 6_000)
    labels = KINDS[kind](8)
    case = make(labels, n=8, **causal_options(labels, 8))
    for counted in (False, True):
        with counting() as operators:
            z = raw(case, "chunked")
            torch.autograd.grad(z[0].sum(), case.leaves, allow_unused=True)
        assert not counted or not operators.waits


@pytest.mark.parametrize("options", [{"is_causal": True}, {"score": rg.score.Softcap(5.0), "dropout_p": 0.1}])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_block_keeps_to_its_budget(name, options, monkeypatch):
    """The bound leaves out what grows with the number of rows: inputs and gradients, tables by row and label."""
    room, (batch, heads, n, size) = 4 << 20, (2, 8, 256, 16)
    monkeypatch.setattr(budget, "CPU_BYTES", room)
    torch.utils.deterministic.fill_uninitialized_memory = False
    labels = SEQUENCES[name](n)
    q, k, v = (torch.randn(batch, heads, n, size, requires_grad=True) for _ in range(3))
    tables = [torch.randn(labels.num_labels, size, requires_grad=True) for _ in range(3)]

    def call():
        z = rg.relation_attention(q, k, v, labels, *tables, **options, impl="chunked")
        return z, *torch.autograd.grad(z.sum(), [q, k, v, *tables])

    call()
    rows = batch * heads * n * q.element_size()
    assert most_held(call) <= room + rows * (4 * size + 12 * (labels.num_labels + 1))
    assert room < 3 * rows * n  # it had to be cut


@pytest.mark.parametrize("room", [1, 6_000, 1 << 30])
def test_dense_is_taken_up_to_what_fills_the_budget(room, monkeypatch):
    monkeypatch.setattr(budget, "CPU_BYTES", room)
    labels = KINDS["distance"](64)
    x = torch.empty(1, 2, 64, 4, device="meta")
    case = rg.which_impl(x, x, x, labels, need_label_mass=True)
    most = room // (4 * 8)
    if case.impl in ("dense", "chunked"):
        compared = "at most" if most >= 8192 else "more than"
        assert case.reason == f"B · H · N_q · N_k = 8,192 is {compared} {most:,} scores"
        assert case.impl == ("dense" if most >= 8192 else "chunked")


class ByDistance(torch.nn.Module):
    def forward(self, x):
        return rg.relation_attention(x, x, x, rg.ClippedDistance(2)(x.shape[2]), bias_table=torch.arange(5.0))


def test_traced_code_has_one_graph_for_all_lengths(monkeypatch):
    """Rows would break the graph of a compiled call, and fix the lengths of an exported one."""
    monkeypatch.setattr(budget, "CPU_BYTES", 600)
    x, longer = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 30, 4)
    wanted = ByDistance()(longer)
    program = torch.export.export(ByDistance(), (x,), dynamic_shapes=[{2: torch.export.Dim("n", min=4, max=64)}])
    torch.testing.assert_close(program.module()(longer), wanted)
    torch.testing.assert_close(torch.compile(ByDistance(), backend="eager", fullgraph=True)(longer), wanted)
