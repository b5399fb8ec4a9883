"""How the chunked implementation cuts a call, what its parts share, and its numbers at the edges of a dtype."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import relgraph as rg
from relgraph.impl.chunked import blocks, ids
from relgraph.impl.chunked.rows import operand_dtype
from tests.cases import F64, KINDS, answer, assert_same, distance, make, raw

pytestmark = pytest.mark.usefixtures("poisoned")

WRITTEN = rg.DenseLabels(torch.arange(49).view(7, 7) % 3, 3)


@pytest.fixture
def built(monkeypatch):
    """The ids of units that were built, in a list."""
    found = []

    class Counted(ids.UnitIds):
        def __init__(self, *args):
            found.append(self)
            super().__init__(*args)

    monkeypatch.setattr(blocks, "UnitIds", Counted)
    return found


@pytest.mark.parametrize(
    ("labels", "options", "wanted"),
    [
        (distance(7), {}, 1),
        (WRITTEN, {"is_causal": True, "q_offset": torch.tensor([0, 1, 2, 3, -1])}, 5),
        (distance(7, q_offset=torch.tensor([0, 1, 0, 2, 1])), {}, 5),
        (WRITTEN, {}, 1),
        (rg.DenseLabels(torch.arange(5 * 49).view(5, 7, 7) % 3, 3), {}, 5),
    ],
    ids=["distance", "causal offsets", "offsets", "written", "written a row"],
)
def test_batch_rows_with_the_same_labels_share_what_is_known_of_them(labels, options, wanted, built, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_SCORES", 2 * 7 * 7)  # a batch row a unit
    case = make(labels, n=7, batch=5, **options)
    got = raw(case, "chunked")
    assert len(built) == wanted
    assert_same(got, raw(case, "reference"))


@pytest.mark.parametrize(("rows", "scores"), [(3, 1), (7, 40), (3, 200), (7, 1 << 19)])
@pytest.mark.parametrize("kind", ["distance", "dense batch", "edges default", "sum", "none"])
def test_any_size_of_blocks(kind, scores, rows, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_SCORES", scores)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", rows)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 2)
    case = make(KINDS[kind](7), n=7, batch=3) if kind in ("distance", "dense", "none") else make(KINDS[kind](7), n=7)
    got, wanted = answer(case, "chunked"), answer(case, "reference")
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


def problem(dtype):
    """What enters :func:`operand_dtype`, of a call in ``dtype``."""
    found = []
    x = torch.randn(1, 1, 2, 2, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        inner = blocks.groups
        patch.setattr(blocks, "groups", lambda it: found.append(it) or inner(it))
        rg.relation_attention(x, x, x, None, impl="chunked")
    return found[0]


@pytest.mark.parametrize("able", [True, False])
def test_bfloat16_is_multiplied_where_the_processor_can(able, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True} if able else {})
    assert operand_dtype(problem(torch.bfloat16)) == (torch.bfloat16 if able else torch.float32)
    assert operand_dtype(problem(torch.float16)) == torch.float32
    assert operand_dtype(problem(torch.float32)) == torch.float32
    assert operand_dtype(problem(F64)) == F64


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("rows", [5, 256])
def test_error_in_bfloat16_over_several_blocks(able, rows, monkeypatch):
    """At most twice the error of the reference in bfloat16, and a quarter of its eps."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able})
    monkeypatch.setattr(blocks, "BLOCK_ROWS", rows)
    exact = make(distance(64), n=64, heads=4, kv_heads=2, size=16, value_size=16)
    low = make(distance(64), n=64, heads=4, kv_heads=2, size=16, value_size=16, dtype=torch.bfloat16)
    for a, b in zip(low.leaves, exact.leaves, strict=True):
        a.data.copy_(b.data)
        b.data.copy_(a.data)
    truth, ours, theirs = answer(exact, "reference"), answer(low, "chunked"), answer(low, "reference")
    for part in (0, 1):
        for t, a, b in zip(truth[part], ours[part], theirs[part], strict=True):
            error, allowed = ((x.double() - t).norm() / t.norm() for x in (a, b))
            assert error <= 2 * allowed + torch.finfo(torch.bfloat16).eps / 4, (error, allowed)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_rows_masked_by_the_least_finite_number_see_all_alike(dtype):
    """Many write it for -inf; such a row is softmax over equal scores, and has its gradients."""
    mask = torch.zeros(40, 40, dtype=dtype)
    mask[3] = torch.finfo(dtype).min
    mask[5, :20] = torch.finfo(dtype).min
    labels, table = rg.ClippedDistance(2)(40), torch.randn(5, 8, dtype=dtype)
    x = torch.randn(1, 1, 40, 8, dtype=dtype, requires_grad=True)
    found = []
    for impl in ("reference", "chunked"):
        z = rg.relation_attention(x, x, x, labels, table, table, attn_mask=mask, impl=impl)
        found.append((z, *torch.autograd.grad(z.square().sum(), x)))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4 if dtype == torch.float32 else 1e-10, rtol=0.0)


def most_held(call):
    """The most bytes of tensors at a time that the call allocates and its results do not hold."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        results = call()
    sizes = {}

    def collect(events):
        for event in events:
            collect(event.children)
            if event.tag == torch._C._profiler._EventType.Allocation:
                sizes[event.start_time_ns, len(sizes)] = event.extra_fields.alloc_size

    collect(profiled.profiler.kineto_results.experimental_event_tree())
    held = most = 0
    for _, size in sorted(sizes.items()):
        held += size
        most = max(most, held)
    return most - sum(x.nbytes for x in results)


def test_a_mask_that_learns_needs_no_more_than_itself():
    """Beyond inputs, outputs and gradients: two blocks, and the gradients of keys and values of one head."""
    n, mask = 2048, torch.randn(1, 1, 2048, 2048, requires_grad=True)
    *x, grad = (torch.randn(1, 8, n, 64, requires_grad=True) for _ in range(4))

    def call(mask):
        z = rg.relation_attention(*x, None, attn_mask=mask, impl="chunked")
        return z, *torch.autograd.grad(z, [*x, mask] if mask.requires_grad else x, grad)

    most = [most_held(lambda given=given: call(given)) for given in (mask, mask.detach())]
    assert most[0] <= 0.4 * mask.nbytes
    assert most[0] <= most[1] + 1024
