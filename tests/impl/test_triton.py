"""impl="triton" against the reference in float64: on a CPU in Triton's interpreter, elsewhere on the GPU."""

from __future__ import annotations

import gc
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.impl import op
from relgraph.impl.triton import limits
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels, SumLabels, memory
from relgraph.score import Softcap
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, answer, make, moved, raw
from tests.impl.test_large_scores import infinite, results
from tests.impl.test_same_meaning import causal_options, masks

launch = pytest.importorskip("relgraph.impl.triton.launch", reason="triton is not installed")
Tiling = pytest.importorskip("relgraph.impl.triton.tiling", reason="triton is not installed").Tiling

pytestmark = pytest.mark.cuda
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

ALL_PAIRS = [
    kind for kind in KINDS if not kind.startswith(("edges only", "edges sum", "edges over edges"))
]  # parallel edges with summed labels are refused; edges-only labels have other kernels
SOME = ("distance", "distance window", "distance packed", "dense batch", "block", "edges over distance", "sum", "none")
SOME_AT_ONCE = [kind if kind in SOME else pytest.param(kind, marks=pytest.mark.slow) for kind in ALL_PAIRS]
"""All kinds; those that are made of the parts of :data:`SOME` are slow tests."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of 16 by 16 pairs, so that short inputs have tiles of all sorts; and NaN in memory not yet written."""
    monkeypatch.setattr(launch, "tiling", lambda *_, **__: Tiling(16, 16, 4, 1))
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ours(case, keep=None):
    """Outputs and gradients where the kernels run, brought back."""
    case = moved(case, DEVICE)
    found = answer(case, "triton", keep=None if keep is None else keep.float().to(DEVICE))
    return [[x.cpu() for x in part] for part in found]


def output(case):
    """The output alone, of a case that is where the kernels run."""
    return raw(case, "triton", mass=False)[0]


def check(exact, low, *, keep=None):
    """One draw within the budget, as the interpreter is slow; four draws of what rounding does make up for it."""
    dtype = low.inputs[0].dtype
    ulps = 8 if dtype == torch.float32 else 1  # products of tiles round to the half types
    assert_within_budget([(exact, low)], lambda low: ours(low, keep), keep=keep, ulps=ulps, weights=dtype, roundings=4)


@pytest.mark.parametrize("n", [1, 2, 37])
@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_kinds(kind, n):
    check(*twins(KINDS[kind](n), n=n, heads=2, kv_heads=1, size=5, value_size=6, batch=1))


@pytest.mark.parametrize("kind", ALL_PAIRS)
def test_nothing_to_attend(kind):
    check(*twins(KINDS[kind](0), n=0))


@pytest.mark.parametrize("kind", SOME_AT_ONCE)
def test_every_option_at_once(kind):
    """Causal, masked, dropout by a given mask, shared key heads, tables a head."""
    labels = KINDS[kind](35)
    options = {"n": 35, "heads": 2, "kv_heads": 1, "size": 3, "value_size": 4, "batch": 1, "per_head": "vb"}
    options |= {"dropout_p": 0.25, **causal_options(labels, 35)}
    probe = make(labels, **options)
    packed = labels is not None and labels.packed
    batch, k_len = 1 if packed else probe.inputs[0].shape[0], 35 if labels is None else labels.k_len
    options["attn_mask"] = torch.rand(*(() if packed else (batch,)), 1, 35, k_len) > 0.2
    check(*twins(labels, **options), keep=(torch.rand(batch, 2, 35, k_len) > 0.25).to(F64))


@pytest.mark.parametrize("which", ["rows that see nothing", "padding", "added"])
@pytest.mark.parametrize("kind", ["distance", "dense batch", "block", "edges default", "none", "sum"])
def test_masks(kind, which):
    labels = KINDS[kind](19)
    probe = make(labels, n=19)
    batch = 1 if labels is not None and labels.packed else probe.inputs[0].shape[0]
    mask = masks(labels, 19, batch, 2)[which]
    exact, low = twins(labels, n=19, attn_mask=mask)
    if mask.is_floating_point():
        low.options["attn_mask"] = mask.float()
    check(exact, low)


@pytest.mark.parametrize(
    ("kind", "offset"),
    [
        ("distance", 3),
        ("edges default packed", torch.tensor([0, 1, -1, 2])),
        ("dense", torch.tensor([1, -2])),
        ("block", torch.tensor(1)),
        ("none", torch.tensor([0, 3])),
        ("distance packed", torch.tensor([0, 1, -1, 2])),
    ],
)
def test_causal_offsets(kind, offset):
    labels = DistanceLabels(20, lookup=range(5), left=2, q_offset=3) if kind == "distance" else KINDS[kind](20)
    offset = None if kind == "distance" else offset
    if kind == "distance packed":
        labels = DistanceLabels(20, lookup=range(5), left=2, ptr=labels.q_ptr, q_offset=offset)
        offset = None
    check(*twins(labels, n=20, is_causal=True, q_offset=offset))


@pytest.mark.parametrize("past", [0, 1, 30])
def test_decoding_one_row_and_a_prefill(past):
    for rows in (1, 18):
        labels = rg.ClippedDistance(4)(rows, past + rows, q_offset=past)
        check(*twins(labels, is_causal=True, batch=1))


@pytest.mark.parametrize("heads", [(4, 1), (4, 2), (4, 4)], ids=["mqa", "gqa", "mha"])
@pytest.mark.parametrize("kind", ["distance", "dense batch", "sum", "block"])
def test_shared_key_heads(kind, heads):
    check(*twins(KINDS[kind](18), heads=heads[0], kv_heads=heads[1], per_head="vqb", batch=1))


@pytest.mark.parametrize("tables", ["".join(c) for r in range(5) for c in combinations("kvqb", r)])
@pytest.mark.parametrize(
    "kind", ["distance", "sum", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("distance uniform", "dense"))]
)
def test_tables(kind, tables):
    check(*twins(KINDS[kind](17), kinds=tables, batch=1, heads=1, kv_heads=1))


NAMED = [rg.score.Softcap(1.5), rg.score.Softcap(50.0), rg.score.LeakyReLU(0.2), rg.score.LeakyReLU(0.0)]


@pytest.mark.parametrize("score", NAMED, ids=str)
@pytest.mark.parametrize("kind", ["distance", "dense batch", "edges default", "sum", "none"])
def test_named_scores(kind, score):
    check(*twins(KINDS[kind](20), score=score, batch=1, heads=1, kv_heads=1))


@pytest.mark.parametrize("score", NAMED[::2], ids=str)
@pytest.mark.parametrize("kind", ["distance", "block", "distance window"])
def test_named_scores_with_every_option(kind, score):
    """A pair that does not attend stays hidden, whatever the function makes of minus infinity."""
    labels = DistanceLabels(20, lookup=[-2, 0, 1, 2, -2], left=2) if kind == "distance window" else KINDS[kind](20)
    options = {"n": 20, "heads": 2, "kv_heads": 1, "batch": 1, "score": score, "dropout_p": 0.25}
    options["attn_mask"] = torch.rand(20, 20) > 0.2
    exact, low = twins(labels, **options, **causal_options(labels, 20))
    check(exact, low, keep=(torch.rand(1, 2, 20, 20) > 0.25).to(F64))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_part_is_scored_by_row_and_the_others_by_tables(which):
    """Scores by row lie in the columns of their part, those of key tables in the columns of the others."""
    n, labels = 18, KINDS["sum"](18)
    given = [torch.randn(1, 2, n, 4) for _ in range(3)]
    for part, count in enumerate(labels.num_labels):
        given.append(torch.randn(1, 2, n, count) if part == which else torch.randn(count, 4))
    found = []
    for impl, dtype, device in (("triton", torch.float32, DEVICE), ("reference", F64, "cpu")):
        leaves = [x.to(device, dtype).requires_grad_() for x in given]
        by_row = tuple(x if part == which else None for part, x in enumerate(leaves[3:]))
        tables = tuple(None if part == which else x for part, x in enumerate(leaves[3:]))
        output = rg.relation_attention(*leaves[:3], labels.to(device), tables, row_scores=by_row, impl=impl)
        found.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        *((scale, torch.float32) for scale in (0.0, 2.5, -1.0)),
        *((-1.0, dtype) for dtype in (torch.float16, torch.bfloat16)),
    ],
)
@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_scale(kind, scale, dtype):
    check(*twins(KINDS[kind](17), dtype, scale=scale, batch=1))


@pytest.mark.parametrize("offset", [(1 << 31) - 1, (1 << 31) - 16, 1 << 30, -(1 << 31)])
def test_offsets_that_pass_32_bits(offset):
    """All pairs are far on one side of the band."""
    check(*twins(rg.ClippedDistance(2)(20, 20, q_offset=offset), batch=1, heads=1, kv_heads=1))


def test_rows_far_from_each_other(monkeypatch):
    """Rows whose offsets would not fit 32 bits are copied."""
    monkeypatch.setattr(launch, "FARTHEST_ROW", 8)
    near = torch.randn(1, 1, 20, 4, device=DEVICE)
    far = torch.randn(1, 1, 20, 16, device=DEVICE)[..., :4]
    labels = rg.ClippedDistance(2)(20).to(DEVICE)
    assert launch._rows(near) is near
    assert launch._rows(far).is_contiguous()
    ours = rg.relation_attention(far, far, far, labels, impl="triton")
    torch.testing.assert_close(ours, rg.relation_attention(far, far, far, labels, impl="dense"))


@pytest.mark.parametrize("size", [1, 16, 33, 64, 256])
def test_head_sizes(size):
    check(*twins(KINDS["distance"](18), size=size, value_size=max(size // 2, 1), batch=1, heads=1, kv_heads=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "kind",
    [
        *("distance", "dense batch", "none"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("distance packed", "edges default", "sum")),
    ],
)
def test_half_types(kind, dtype):
    check(*twins(KINDS[kind](40), dtype, heads=2, size=16, value_size=16, batch=1))


def test_labels_by_distance_that_share_a_label_or_skip():
    """T5's buckets (a label for several distances), dilation (no label at odd distances), a window with holes."""
    for lookup in ([0, 0, 1, 1, 2, 3, 3, 0], [0, -1, 1, -1, 2], [-2, 0, -2, 1, -2, 2, -2]):
        labels = DistanceLabels(21, lookup=lookup, left=2, num_labels=4)
        check(*twins(labels, batch=1))


def test_a_label_that_nobody_may_attend_to_by_its_bias():
    for labels in (rg.ClippedDistance(2)(50), DenseLabels(torch.randint(0, 5, (50, 50)), 5)):
        exact, low = twins(labels, kinds="kvb", batch=1)
        for case in (exact, low):
            case.tables[3].data[0] = float("-inf")
        check(exact, low)


def test_mass_is_never_negative():
    labels = DenseLabels(torch.randint(0, 60, (40, 40)), 60)
    for dtype in (torch.float32, torch.bfloat16):
        case = moved(make(labels, batch=1, size=16, value_size=16, dtype=dtype), DEVICE)
        case.inputs[0].data.mul_(8)
        assert float(raw(case, "triton")[2].detach().min()) >= 0


@pytest.mark.slow
def test_own_dropout_is_the_same_forward_and_backward():
    """With v = identity the output is the dropped weights; backward must drop the same ones."""
    for kind in ("distance", "dense"):
        case = make(KINDS[kind](40), size=3, value_size=40, kinds="k", batch=1, dropout_p=0.5, dtype=torch.float32)
        case.inputs[2] = torch.eye(40).expand(1, 2, 40, 40).clone().requires_grad_()
        case = moved(case, DEVICE)
        torch.manual_seed(3)
        weights = output(case)
        (grad,) = torch.autograd.grad(weights.sum(), [case.inputs[2]])
        torch.testing.assert_close(grad[..., 0], weights.sum(-2))
        torch.manual_seed(3)
        assert torch.equal(output(case), weights)
        assert 0.35 < float((weights == 0).float().mean()) < 0.65
        assert not torch.equal(output(case), weights)
        assert not torch.equal(weights[:, 0] == 0, weights[:, 1] == 0)


def test_dropout_gradients_of_every_leaf():
    """The drawn mask is read off the output and given to the reference."""
    for kind in ("distance", "dense", "none"):
        labels = KINDS[kind](20)
        exact, low = twins(labels, n=20, size=3, value_size=20, batch=1, dropout_p=0.4)
        eye = torch.eye(20, dtype=F64).expand(1, 2, 20, 20)
        for case in (exact, low):
            case.inputs[2].data.copy_(eye)
            if case.tables[1] is not None:
                case.tables[1].data.zero_()
        torch.manual_seed(5)
        found = ours(low)
        truth = answer(exact, "reference", keep=(found[0][0].detach() != 0).to(F64))
        for a_all, t_all in zip(found, truth, strict=True):
            for a, t in zip(a_all, t_all, strict=True):
                torch.testing.assert_close(a.double(), t, atol=2e-5, rtol=1e-4)


def test_tiles_of_another_size_drop_the_same_pairs(monkeypatch):
    case = make(KINDS["distance packed"](50), size=3, value_size=50, kinds="k", dropout_p=0.5, dtype=torch.float32)
    case.inputs[2] = torch.eye(50)[:, None].expand(50, 2, 50).clone().requires_grad_()
    case, found = moved(case, DEVICE), []
    for rows, keys in ((16, 16), (16, 32), (32, 16)):
        monkeypatch.setattr(launch, "tiling", lambda *_, r=rows, k=keys, **__: Tiling(r, k, 4, 1))
        torch.manual_seed(1)
        found.append(output(case) == 0)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_twice_the_same_to_the_bit():
    case = make(KINDS["dense"](37), dtype=torch.float32, batch=1)
    first, second = ours(case), ours(case)
    assert all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.slow
@settings(max_examples=12)
@given(
    q_len=st.integers(1, 40),
    k_len=st.integers(0, 40),
    offset=st.integers(-10, 40),
    lookup=st.lists(st.integers(-2, 3), min_size=1, max_size=9),
    causal=st.booleans(),
)
def test_any_lookup(q_len, k_len, offset, lookup, causal):
    labels = DistanceLabels(q_len, k_len, lookup=lookup, left=len(lookup) // 2, q_offset=offset, num_labels=4)
    check(*twins(labels, heads=1, kv_heads=1, size=2, value_size=2, batch=1, is_causal=causal))


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data(), n=st.integers(1, 40), default=st.sampled_from([-1, 2]))
def test_any_edges(data, n, default):
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node, st.integers(-1, 2)), max_size=30))
    index = torch.tensor([p[:2] for p in pairs], dtype=torch.long).reshape(-1, 2).T
    labels = EdgeLabels(
        index, torch.tensor([p[2] for p in pairs], dtype=torch.long), 3, q_len=n, default=default, duplicates="first"
    )
    check(*twins(labels, heads=1, kv_heads=1, size=2, value_size=2, batch=1))


def test_maps_are_made_once_and_go_with_their_labels():
    labels = DenseLabels(torch.randint(0, 3, (20, 20)), 3)
    case = moved(make(labels, dtype=torch.float32, batch=1), DEVICE)
    seen = []
    real = launch.tile_map

    def counting(*args, memo, **options):
        before = len(memo.found)
        made = real(*args, memo=memo, **options)
        seen.append(len(memo.found) - before)
        return made

    launch.tile_map = counting
    try:
        answer(case, "triton")
        made = sum(seen)
        assert made > 0
        held = len(memory._entries.found)
        case.labels.ids.add_(0)  # changed in place: what was made before goes
        answer(case, "triton")
        assert len(memory._entries.found) == held
        made = sum(seen)
        answer(case, "triton")
        assert sum(seen) == made
        del case, labels
        gc.collect()
        assert len(memory._entries.found) == held - 1
    finally:
        launch.tile_map = real


def refused(match, labels=None, dtype=torch.float32, **options):
    with pytest.raises(NotImplementedError, match=match):
        raw(moved(make(labels, dtype=dtype, **options), DEVICE), "triton")


def test_what_is_refused_names_the_way_out():
    refused("float16, bfloat16 and float32.*chunked", dtype=F64)
    refused("heads of at most 256", size=300)
    refused("use impl='chunked'", KINDS["edges sum"](6))
    refused("at most 127 labels.*got 200.*chunked", DenseLabels(torch.zeros(4, 4, dtype=torch.int64), 200))
    q = torch.randn(1, 1, 4, 4, device=DEVICE)
    with pytest.raises(NotImplementedError, match="impl='dense' for need_weights"):
        rg.relation_attention_with_aux(q, q, q, None, impl="triton", need_weights=True)
    mask = torch.zeros(4, 4, device=DEVICE, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no gradient to attn_mask"):
        rg.relation_attention(q, q, q, None, attn_mask=mask, impl="triton")
    x = q.clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        rg.relation_attention(x, x, x, None, impl="triton").square().sum(), x, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="no second derivative"):
        grad.sum().backward()


def test_refused_without_a_gpu_or_triton(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(NotImplementedError, match="needs CUDA tensors .*got cpu; use impl='chunked'"):
        raw(make(None, dtype=torch.float32), "triton")
    monkeypatch.setattr(limits, "HAS_TRITON", False)
    refused(r"pip install triton")


@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_custom_op_contract(kind, monkeypatch):
    """torch's own checks of an operator: schema, fake kernel, autograd registration."""
    monkeypatch.setattr(op, "unwatched", lambda _: False)
    labels = KINDS[kind](18)
    call = fused_arguments(moved(make(labels, batch=1, dtype=torch.float32), DEVICE))
    leaf = lambda x: x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x  # noqa: E731
    torch.library.opcheck(torch.ops.relgraph.attend.default, tuple(map(leaf, call)))


def fused_arguments(case):
    found = []
    names = ("attend", "attend_unrecorded")
    real = [getattr(torch.ops.relgraph, name) for name in names]

    def recorder(op):
        return lambda *args: (found.append(args), op(*args))[1]

    for name, one in zip(names, real, strict=True):
        setattr(torch.ops.relgraph, name, recorder(one))
    try:
        raw(case, "triton")
    finally:
        for name, one in zip(names, real, strict=True):
            setattr(torch.ops.relgraph, name, one)
    return found[0]


@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_compiled_whole(kind):
    labels = KINDS[kind](18).to(DEVICE)
    q = torch.randn(1, 2, 18, 4, device=DEVICE, requires_grad=True)
    table = torch.randn(labels.num_labels, 4, device=DEVICE, requires_grad=True)

    def step(q, table):
        return rg.relation_attention(q, q, q, labels, table, table, impl="triton")

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for fn in (step, compiled):
        fn(q, table).square().sum().backward()
    grads = [x.grad.clone() for x in (q, table)]
    for x in (q, table):
        x.grad = None
    step(q, table).square().sum().backward()
    for twice, x in zip(grads, (q, table), strict=True):
        torch.testing.assert_close(twice, 2 * x.grad)


def test_checkpointed():
    labels = KINDS["distance"](18)
    q = torch.randn(1, 2, 18, 4, device=DEVICE, requires_grad=True)
    table = torch.randn(5, 4, device=DEVICE, requires_grad=True)
    step = lambda q: rg.relation_attention(q, q, q, labels, table, table, dropout_p=0.3, impl="triton")  # noqa: E731
    torch.manual_seed(0)
    torch.utils.checkpoint.checkpoint(step, q, use_reentrant=False).sum().backward()
    kept, q.grad = q.grad, None
    torch.manual_seed(0)
    step(q).sum().backward()
    torch.testing.assert_close(kept, q.grad)


def test_several_summed_labels_in_one_tile():
    n = 33
    parts = SumLabels(DistanceLabels(n, lookup=range(5), left=2), DenseLabels(torch.randint(-1, 3, (n, n)), 3))
    check(*twins(parts, batch=1, heads=1, kv_heads=1))


def results_here(call, **options):
    """The results where the kernels run, brought back."""
    call = {name: x if x is None else x.to(DEVICE) for name, x in call.items()}
    return [x.cpu() for x in results("triton", call, **options)]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("how", ["key", "bias", "mask"])
@pytest.mark.parametrize("kind", ["distance", "dense", "edges"])
def test_infinite_scores(kind, how):
    """-inf hides a pair, under a function of scores too; +inf makes its row NaN."""
    call, masked, pairs = infinite(kind, how)
    for score in (None, Softcap(3.0)):
        for mine, other in zip(results_here(call, score=score), results("reference", masked, score=score), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    call, masked, pairs = infinite(kind, how, negative=False)
    output, lse = results_here(call)[:2]
    assert output[:, :, pairs.any(1)].isnan().all()
    assert lse[:, :, pairs.any(1)].isnan().all()


@pytest.mark.parametrize("kind", ["distance", "dense", "edges"])
def test_a_hidden_pair_may_have_any_score(kind):
    call, masked, _ = infinite(kind, "key")
    call = {**masked, "key": call["key"].nan_to_num(neginf=float("nan"))}
    for mine, other in zip(results_here(call)[:3], results("reference", masked)[:3], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
