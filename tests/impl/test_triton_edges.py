"""Edges-only attention in Triton kernels against the float64 reference, with the error of impl='edges' as its budget."""

from __future__ import annotations

import os

import pytest
import torch

from relgraph.impl import op
from relgraph.impl.triton.edges import PAIRS
from relgraph.labels import EdgeLabels
from relgraph.plan import encode, plan_memo
from tests.budget import twins
from tests.cases import F64, KINDS, answer, edges, make, moved, raw

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

ALONE = [kind for kind in KINDS if kind.startswith("edges only")]
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("poisoned")]


def check(labels, dtype=torch.float32, *, keep=None, mass=True, batch=1, **options):
    """Outputs and every gradient: at most twice the error of impl='edges' in the same dtype, and a floor."""
    exact, low = twins(labels, dtype, batch=batch, **options)
    single = None if keep is None else keep.float()
    truth, theirs = answer(exact, "reference", keep=keep, mass=mass), answer(low, "edges", keep=single, mass=mass)
    ours = answer(moved(low, DEVICE), "triton", keep=None if single is None else single.to(DEVICE), mass=mass)
    within_budget(ours, theirs, truth, dtype)


def within_budget(ours, theirs, truth, dtype=torch.float32):
    # Triton 3.6's interpreter cuts bfloat16 off where a GPU rounds: one eps
    floor = max(16 * torch.finfo(torch.float32).eps, torch.finfo(dtype).eps)
    for part in (0, 1):
        for t, a, b in zip(truth[part], ours[part], theirs[part], strict=True):
            assert a.shape == t.shape
            assert a.dtype == b.dtype
            a, b, t = (x.detach().double().cpu() for x in (a, b, t))
            assert torch.equal(a == float("-inf"), t == float("-inf"))
            finite = t != float("-inf")
            error, allowed = ((x - t)[finite].norm() for x in (a, b))
            assert error <= 2 * allowed + floor * (1 + t[finite].norm()), (error, allowed)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["edges only parallel", "edges only packed"])
def test_none_or_one_to_attend(kind, n):
    check(KINDS[kind](n), batch=2)


@pytest.mark.parametrize("kind", ALONE)
def test_every_option_at_once(kind):
    labels, n = KINDS[kind](4), 4
    batch = labels.batch_size
    lead = () if labels.packed else (batch,)
    keep = (torch.rand(batch, 2, n, n) > 0.25).to(F64)
    mask = torch.rand(*lead, 1, n, n) > 0.2
    sizes = {"heads": 2, "kv_heads": 1, "size": 2, "value_size": 3, "per_head": "vb"}
    check(labels, keep=keep, mass=False, is_causal=True, attn_mask=mask, dropout_p=0.25, **sizes)


def test_many_pairs_a_query():
    """Several wider tiles: about 40 pairs per query, parallel ones among them, and 100 labels."""
    index = torch.stack([torch.randint(6, (80,)), torch.randint(2, (80,))])
    check(EdgeLabels(index, torch.randint(-1, 100, (80,)), 100, q_len=2, k_len=6), heads=1, kv_heads=1)


@pytest.mark.parametrize(("size", "value_size"), [(17, 3), (64, 256)])
def test_head_sizes(size, value_size):
    check(KINDS["edges only"](3), heads=1, kv_heads=1, size=size, value_size=value_size)


@pytest.mark.parametrize(
    ("kinds", "per_head", "mass"),
    [("", "", True), ("kb", "k", False), ("q", "", True), ("v", "v", False), ("vqb", "qb", True)],
)
def test_some_of_the_tables(kinds, per_head, mass):
    """Two heads share a key head."""
    check(KINDS["edges only"](3), kinds=kinds, per_head=per_head, mass=mass, heads=2, kv_heads=1)


@pytest.mark.parametrize(
    ("kind", "offset", "mask"),
    [
        ("edges only", torch.tensor([1, -2]), "rows that see nothing"),
        ("edges only batch", torch.tensor([0, 2]), "added"),
        ("edges only packed", torch.tensor([0, 1, -1, 1]), "padding"),
    ],
)
def test_masks_and_causal_order(kind, offset, mask):
    labels = KINDS[kind](4)
    batch = 2 if kind == "edges only" else labels.batch_size
    lead = () if labels.packed else (batch,)
    seen = torch.rand(*lead, 2, 4, 4) > 0.4
    seen[..., 2, :] = False
    padding = torch.ones(*lead, 1, 1, 4, dtype=torch.bool)
    padding[..., -1:] = False
    added = torch.randn(4, 4)
    added[1] = float("-inf")
    options = {"attn_mask": {"rows that see nothing": seen, "padding": padding, "added": added}[mask]}
    check(labels, is_causal=offset is not None, q_offset=offset, batch=batch, **options)


def test_own_dropout_is_the_same_forward_and_backward():
    """With v = identity the output shows what was dropped; given to the reference, it makes the same gradients."""
    exact, low = twins(KINDS["edges only batch"](4), heads=2, value_size=4, kinds="kqb", dropout_p=0.5)
    eye = torch.eye(4).expand(2, 2, 4, 4).clone()
    for case in (exact, low):
        case.inputs[2].data.copy_(eye)
    case = moved(low, DEVICE)
    torch.manual_seed(3)
    weights = raw(case, "triton", mass=False)[0].detach().cpu()
    keep = (weights > 0).to(F64)
    torch.manual_seed(3)
    ours = answer(case, "triton", mass=False)
    within_budget(
        ours, answer(low, "edges", keep=keep.float(), mass=False), answer(exact, "reference", keep=keep, mass=False)
    )
    attends = raw(exact, "reference", keep=torch.ones(()))[0] > 0
    kept = keep[attends].mean()
    assert 0.3 < kept < 0.7
    assert not torch.equal(keep[0, 0], keep[0, 1])
    assert not torch.equal(keep[0], keep[1])
    assert not torch.equal(raw(case, "triton", mass=False)[0].cpu(), weights)


@pytest.mark.parametrize(("kind", "dtype"), [("edges only", torch.bfloat16), ("edges only packed", torch.float16)])
def test_half_types(kind, dtype):
    check(KINDS[kind](4), dtype, heads=2, kv_heads=1, size=16, value_size=16)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["output", "lse", "mass"])
def test_gradient_of_one_output_alone(which):
    exact, low = twins(KINDS["edges only"](3), batch=1, heads=1, kv_heads=1)
    case, grads = moved(low, DEVICE), []
    for of, impl in ((case, "triton"), (low, "edges"), (exact, "reference")):
        out = raw(of, impl)[which]
        out = out.masked_fill(out == float("-inf"), 0.0).square().sum()
        found = torch.autograd.grad(out, of.leaves, allow_unused=True)
        grads.append(([], [torch.zeros_like(x) if g is None else g for g, x in zip(found, of.leaves, strict=True)]))
    within_budget(*grads)


def test_repeats_bit_for_bit():
    case = moved(
        make(KINDS["edges only parallel"](3), dtype=torch.float32, batch=1, heads=1, kv_heads=1, dropout_p=0.2), DEVICE
    )
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        outputs, grads = answer(case, "triton", mass=False)
        runs.append([*outputs, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_inputs_laid_out_otherwise():
    """Heads innermost, and a last dimension that is not dense."""
    labels = KINDS["edges only"](3)
    case = make(labels, dtype=torch.float32, value_size=3)
    wanted = answer(case, "edges")
    q, k, v = case.inputs
    case.inputs = [
        q.detach().permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3).requires_grad_(),
        k.detach().mT.contiguous().mT.requires_grad_(),
        v.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_(),
    ]
    got = answer(case if DEVICE == "cpu" else moved(case, DEVICE), "triton")
    for a, b in zip(got[0] + got[1], wanted[0] + wanted[1], strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=1e-5, rtol=1e-5)


def test_pairs_are_kept_with_the_labels(monkeypatch):
    labels = KINDS["edges only"](4).to(DEVICE)
    options = {"dtype": torch.float32, "heads": 1, "kv_heads": 1, "batch": 1}
    with torch.inference_mode():
        raw(moved(make(labels, **options), DEVICE), "triton")
    case = moved(make(labels, **options), DEVICE)
    answer(case, "triton")
    kept = case.labels._plan.parts[0].csr.memory.found[PAIRS]
    raw(case, "triton")
    assert case.labels._plan.parts[0].csr.memory.found[PAIRS] is kept
    monkeypatch.setattr(op, "unwatched", lambda _: False)  # through the ops, which see tensors and ints alone
    raw(case, "triton")
    kept = plan_memo(*encode(case.labels._plan)).found[PAIRS]
    raw(case, "triton")
    assert plan_memo(*encode(case.labels._plan)).found[PAIRS] is kept


@pytest.mark.parametrize(
    ("degree", "slots", "warps"), [(0.0, 8, 1), (32.0, 8, 1), (33.0, 16, 1), (128.0, 16, 1), (129.0, 32, 2)]
)
def test_tiles_grow_with_the_pairs_of_a_row(degree, slots, warps):
    from relgraph.impl.triton.tiling import edge_tiling as tiles

    got = tiles(16, 5, 33, degree)
    assert got == {"D": 16, "DV": 5, "DP": 16, "VP": 8, "RP": 64, "E": slots, "num_warps": warps}


def test_no_second_derivative():
    case = moved(make(KINDS["edges only"](3), dtype=torch.float32, batch=1), DEVICE)
    (grad,) = torch.autograd.grad(raw(case, "triton")[0].sum(), case.inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative; use impl='edges' or 'dense'"):
        grad.sum().backward()


def test_large_scores():
    """One key of each query is far above the others: both passes find weights of 0 and 1 again."""
    size, labels = 1e12, EdgeLabels(*edges(6)[:2], 3, q_len=6)
    exact, low = twins(labels, torch.float32, batch=1, size=8, kinds="v")
    for case in (exact, low):
        for x in case.inputs[:2]:
            x.data.mul_(size**0.5)
    truth, plain = answer(exact, "reference"), answer(low, "edges")
    found = answer(moved(low, DEVICE), "triton")
    largest = max(g.norm() for g in truth[1]) * size**0.5
    for t, a, b in zip(truth[1], found[1], plain[1], strict=True):
        error, allowed = ((x.cpu().double() - t).norm() for x in (a, b))
        assert error <= 4 * allowed + 1e-6 * largest, (error, allowed)
