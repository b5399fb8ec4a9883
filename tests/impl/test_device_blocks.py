"""Blocks as large as a budget of memory allows, which other devices than a CPU are given: meaning, memory, dropout."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from docs.benchmarks.launches import SEQUENCES, counting
from relgraph.impl import budget, rule
from relgraph.impl.chunked import blocks
from tests.cases import F64, KINDS, answer, assert_same, make, raw
from tests.impl.test_blocks import most_held
from tests.impl.test_same_meaning import IN_BLOCKS, causal_options

pytestmark = pytest.mark.usefixtures("poisoned")

BYTES = {"a row": 1, "some rows": 6_000, "everything": 1 << 30}
"""Budgets: blocks of one row of a head, of some rows and heads, and one block."""


@pytest.fixture(params=BYTES, autouse=True)
def room(request, monkeypatch):
    """Bytes of a block, as of a device that is not a CPU."""
    monkeypatch.setattr(budget, "CPU_BYTES", BYTES[request.param])
    return BYTES[request.param]


def check(case, **options):
    wanted, got = answer(case, "reference", **options), answer(case, "chunked", **options)
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


@pytest.mark.parametrize("n", [0, 1, 8])
@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_kinds(kind, n):
    check(make(KINDS[kind](n), n=n))


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_odd_size_with_every_option(kind):
    """23 positions, causal, masked, dropout by a given mask, shared key heads, at once."""
    labels = KINDS[kind](23)
    case = make(labels, n=23, heads=4, kv_heads=2, size=2, value_size=3, batch=1, per_head="vb", dropout_p=0.25)
    case.options |= causal_options(labels, 23)
    batch, k_len = case.inputs[0].shape[0], 23 if labels is None else labels.k_len
    lead = () if labels is not None and labels.packed else (batch,)
    case.options["attn_mask"] = torch.rand(*lead, 1, 23, k_len) > 0.2
    check(case, keep=(torch.rand(1 if lead == () else batch, 4, 23, k_len) > 0.25).to(F64))


@pytest.mark.parametrize("offset", [torch.tensor(1), torch.tensor([1, -2])], ids=["one", "a row"])
@pytest.mark.parametrize("kind", ["none", "dense", "edges only", "edges sum"])
def test_causal_with_an_offset_that_the_host_does_not_read(kind, offset):
    check(make(KINDS[kind](7), is_causal=True, q_offset=offset))


@pytest.mark.parametrize("kind", ["distance", "sum", "distance packed"])
def test_a_mask_that_learns(kind):
    case = make(KINDS[kind](9), n=9)
    case.options["attn_mask"] = torch.randn(9, 9, dtype=F64, requires_grad=True)
    check(case)


@pytest.mark.parametrize(
    "score", [rg.score.Softcap(2.0), torch.sin, rg.score.Bilinear(torch.randn(5, 3, 3, dtype=F64))]
)
def test_scores(score):
    check(make(KINDS["distance"](9), n=9, score=score))


@pytest.mark.parametrize("kind", ["distance", "dense", "edges default", "sum", "block"])
def test_forward_and_backward_drop_the_same_weights_and_twice_alike(kind):
    """The output is linear in the value, so its gradient shows the weights that backward keeps."""
    labels = KINDS[kind](12)
    case = make(labels, n=12, kinds="k")
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        options = {"key_table": case.tables[0], "dropout_p": 0.5, "impl": "chunked", **case.options}
        z = rg.relation_attention(*case.inputs, labels, **options)
        found.append(
            (z, *torch.autograd.grad(z.sum(), [*case.inputs, *torch.utils._pytree.tree_leaves(case.tables[0])]))
        )
    torch.testing.assert_close((found[0][3] * case.inputs[2]).sum(), found[0][0].sum())
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_the_host_waits_for_no_device(kind):
    """From the second call with the same labels on; labels by distance and by blocks, listed, summed, nested."""
    labels = KINDS[kind](8)
    case = make(labels, n=8, **causal_options(labels, 8))
    for counted in (False, True):
        with counting() as operators:
            z = raw(case, "chunked")
            torch.autograd.grad(z[0].sum(), case.leaves, allow_unused=True)
        assert not counted or not operators.waits


OPTIONS = {
    "tables": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "mask": {"attn_mask": torch.ones(2, 8, 256, 256, dtype=torch.bool)},
    "score": {"score": rg.score.Softcap(5.0), "dropout_p": 0.1},
}


@pytest.mark.parametrize("room", [1 << 20, 4 << 20], indirect=False)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_block_keeps_to_its_budget(name, option, room, monkeypatch):
    """Beside what grows with the number of rows: inputs and gradients as they are computed, tables by row and label."""
    monkeypatch.setattr(budget, "CPU_BYTES", room)
    monkeypatch.setattr(blocks, "DEVICE_ROWS", 16)
    torch.utils.deterministic.fill_uninitialized_memory = False
    batch, heads, n, size = 2, 8, 256, 16
    labels = SEQUENCES[name](n)
    q, k, v = (torch.randn(batch, heads, n, size, requires_grad=True) for _ in range(3))
    tables = [torch.randn(labels.num_labels, size, requires_grad=True) for _ in range(3)]

    def call():
        z = rg.relation_attention(q, k, v, labels, *tables, **OPTIONS[option], impl="chunked")
        return z, *torch.autograd.grad(z.sum(), [q, k, v, *tables])

    call()
    rows = batch * heads * n * q.element_size()
    assert most_held(call) <= room + rows * (4 * size + 12 * (labels.num_labels + 1))
    assert room < 3 * rows * n  # it had to be cut


def test_dense_is_taken_up_to_what_fills_the_budget(room):
    labels = KINDS["distance"](64)
    x = torch.empty(1, 2, 64, 4, device="meta")
    most = rule.dense_scores(make_call(x, labels))
    assert most == room // (4 * 8)
    choice = rg.which_impl(x, x, x, labels, need_label_mass=True)
    wanted = f"B · H · N_q · N_k = 8,192 is {'at most' if most >= 8192 else 'more than'} {most:,} scores"
    if choice.impl in ("dense", "chunked"):
        assert choice.reason == wanted
        assert choice.impl == ("dense" if most >= 8192 else "chunked")


def make_call(x, labels):
    from relgraph.call import Call, Tables
    from relgraph.plan import lower

    return Call(x, x, x, lower(labels), (Tables(),), 1.0)
