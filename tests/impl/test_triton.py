"""impl="triton" against the reference in float64: on a CPU in Triton's interpreter, elsewhere on the GPU."""

from __future__ import annotations

import gc

import pytest
import torch

import relgraph as rg
from relgraph.impl.triton import limits, tables
from relgraph.labels import DenseLabels, DistanceLabels, SumLabels, memory
from relgraph.score import Softcap
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, answer, make, moved, raw
from tests.impl.test_large_scores import infinite, results
from tests.impl.test_same_meaning import causal_options, masks

launch = pytest.importorskip("relgraph.impl.triton.launch", reason="triton is not installed")
Tiling = pytest.importorskip("relgraph.impl.triton.tiling", reason="triton is not installed").Tiling

pytestmark = pytest.mark.cuda
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def banded(n):
    """Labels by distance with whole tiles of the first label, of the last and of several."""
    return DistanceLabels(n - 22, n + 26, lookup=range(5), left=2, q_offset=18)


def patches(n):
    """Written-out labels with whole tiles of one label, of none, that do not attend, and of several."""
    coarse = torch.tensor([[[0, 1, 1], [2, 2, -1], [1, 0, -2]], [[2, -1, 0], [0, 0, 1], [-2, 1, 2]]])
    ids = coarse.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :n, :n].clone()
    ids[:, 3, 5], ids[:, 20, 18] = 1, -2
    return DenseLabels(ids.clamp(min=-1)[:1], 3, attend=ids[:1] > -2), DenseLabels(ids.clamp(min=-1)[1:], 3)


KINDS = KINDS | {"banded": banded, "patches": lambda n: patches(n)[0], "two patches": lambda n: SumLabels(*patches(n))}
CALLS = [
    {"size": 5, "value_size": 6},
    {"attn_mask": "drawn", "is_causal": True, "dropout_p": 0.25, "per_head": "vb"},
    {"attn_mask": "added", "scale": -1.0, "kinds": "kvb", "per_head": "kv", "kv_heads": 2, "batch": 2},
    {
        "attn_mask": "rows that see nothing",
        "is_causal": True,
        "dropout_p": 0.25,
        "kinds": "qb",
    },
    {"attn_mask": "padding", "scale": 2.5, "kinds": "vq", "mass": False, "heads": 1},
    {"is_causal": True, "dropout_p": 0.25, "kinds": "k", "mass": False, "heads": 1},
    {"kinds": "q", "per_head": "q", "mass": False},
    {"kinds": "vb", "per_head": "b", "mass": False, "heads": 1},
]
"""Between them each option of the kernels, and each choice of the terms that they read."""
EACH = {
    "banded": (1, 2, 4),
    "patches": (3, 5, 7),
    "two patches": (0, 1),
    "distance packed offsets": (5,),
    "distance per row": (6,),
    "edges over distance packed": (3,),
    "none": (2,),
}
"""Which of them each kind of labels is called with; tests of tile maps cover more kinds."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of 16 by 16 pairs, so that short inputs have tiles of all sorts; and NaN in memory not yet written."""
    monkeypatch.setattr(launch, "tiling", lambda *_, **__: Tiling(16, 16, 4, 1))
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ours(case, keep=None, mass=True):
    """Outputs and gradients where the kernels run, brought back."""
    case = moved(case, DEVICE)
    found = answer(case, "triton", keep=None if keep is None else keep.float().to(DEVICE), mass=mass)
    return [[x.cpu() for x in part] for part in found]


def output(case):
    """The output alone, of a case that is where the kernels run."""
    return raw(case, "triton", mass=False)[0]


def check(exact, low, *, keep=None, mass=True):
    """One draw within the budget, as the interpreter is slow; four draws of what rounding does make up for it."""
    dtype = low.inputs[0].dtype
    ulps = 8 if dtype == torch.float32 else 1  # products of tiles round to the half types
    options = {"keep": keep, "mass": mass, "ulps": ulps, "weights": dtype, "roundings": 4}
    assert_within_budget([(exact, low)], lambda low: ours(low, keep, mass), **options)


@pytest.mark.parametrize(("kind", "which"), [(kind, which) for kind in EACH for which in EACH[kind]])
def test_each_kind_and_option(kind, which):
    labels, options = KINDS[kind](37), {"n": 37, "heads": 2, "kv_heads": 1, "batch": 1, **CALLS[which]}
    mass, mask = options.pop("mass", "dropout_p" not in options), options.pop("attn_mask", None)
    probe, packed = make(labels, **options), labels is not None and labels.packed
    batch = 1 if packed else probe.inputs[0].shape[0]
    pairs = (37, 37) if labels is None else (labels.q_len, labels.k_len)
    if options.get("is_causal"):
        options |= causal_options(labels, 37)
    if mask == "drawn":
        options["attn_mask"] = torch.rand(*(() if packed else (batch,)), 1, *pairs) > 0.2
    elif mask is not None:
        options["attn_mask"] = masks(labels, 37, batch, 2)[mask]
    exact, low = twins(labels, **options)
    if mask == "added":
        low.options["attn_mask"] = low.options["attn_mask"].float()
    keep = (torch.rand(batch, options["heads"], *pairs) > 0.25).to(F64) if "dropout_p" in options else None
    check(exact, low, keep=keep, mass=mass)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["distance packed", "sum", "none"])
def test_none_or_one_to_attend(kind, n):
    check(*twins(KINDS[kind](n), n=n, heads=2, kv_heads=1, batch=1))


@pytest.mark.parametrize(
    ("kind", "dtype", "scale"), [("banded", torch.float16, -1.0), ("two patches", torch.bfloat16, None)]
)
def test_half_types(kind, dtype, scale):
    check(*twins(KINDS[kind](37), dtype, heads=2, size=16, value_size=16, batch=1, scale=scale))


def test_causal_offsets():
    """Each batch row has its own; graphs have theirs in the labels."""
    check(*twins(KINDS["dense"](20), n=20, heads=1, kv_heads=1, is_causal=True, q_offset=torch.tensor([1, -2])))


def test_decoding():
    check(*twins(rg.ClippedDistance(4)(1, 31, q_offset=30), is_causal=True, batch=1))


@pytest.mark.parametrize("offset", [(1 << 31) - 16, -(1 << 31)])
def test_offsets_that_pass_32_bits(offset):
    """All pairs are far on one side of the band."""
    check(*twins(rg.ClippedDistance(2)(20, 20, q_offset=offset), batch=1, heads=1, kv_heads=1))


def test_rows_far_from_each_other(monkeypatch):
    """Rows whose offsets would not fit 32 bits are copied."""
    monkeypatch.setattr(tables, "FARTHEST_ROW", 8)
    near = torch.randn(1, 1, 20, 4, device=DEVICE)
    far = torch.randn(1, 1, 20, 16, device=DEVICE)[..., :4]
    labels = rg.ClippedDistance(2)(20).to(DEVICE)
    assert tables.near_rows(near) is near
    assert tables.near_rows(far).is_contiguous()
    ours = rg.relation_attention(far, far, far, labels, far[0, 0, :5], impl="triton")
    torch.testing.assert_close(ours, rg.relation_attention(far, far, far, labels, far[0, 0, :5], impl="dense"))


@pytest.mark.parametrize("size", [1, 256])
def test_head_sizes(size):
    check(*twins(KINDS["distance"](18), size=size, value_size=max(size // 2, 1), batch=1, heads=1, kv_heads=1))


def test_labels_by_distance_that_share_a_label_or_skip():
    """A window with holes, a label for several distances, and distances without a label."""
    labels = DistanceLabels(18, lookup=[-2, 0, 0, -2, 1, -1, 2, -2], left=4, num_labels=4)
    check(*twins(labels, batch=1, heads=1, kv_heads=1))


def test_a_label_that_nobody_may_attend_to_by_its_bias():
    exact, low = twins(banded(37), kinds="kvb", batch=1, heads=1, kv_heads=1)
    for case in (exact, low):
        case.tables[3].data[0] = float("-inf")
    check(exact, low)


def test_mass_is_never_negative():
    labels = DenseLabels(torch.randint(0, 60, (40, 40)), 60)
    case = moved(make(labels, batch=1, size=16, value_size=16, dtype=torch.bfloat16), DEVICE)
    case.inputs[0].data.mul_(8)
    assert float(raw(case, "triton")[2].detach().min()) >= 0


@pytest.mark.parametrize("kind", ["patches", "distance packed"])
def test_dropout_gradients_of_every_leaf(kind):
    """The drawn mask is read off the output and given to the reference. Graphs begin where four does not divide."""
    exact, low = twins(KINDS[kind](21), size=3, heads=2, kv_heads=1, value_size=21, batch=1, dropout_p=0.4)
    units = torch.eye(21, dtype=F64)
    for case in (exact, low):
        case.inputs[2].data.copy_(units[:, None] if case.labels.packed else units)
        case.tables[1].data.zero_()
    torch.manual_seed(5)
    found = ours(low, mass=False)
    keep = (found[0][0].detach() != 0).to(F64)
    truth = answer(exact, "reference", keep=keep, mass=False)
    for mine, theirs in zip([*found[0], *found[1]], [*truth[0], *truth[1]], strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=1e-4)


def test_tiles_of_another_size_drop_the_same_pairs(monkeypatch):
    case = make(KINDS["distance packed"](34), size=3, value_size=34, kinds="k", dropout_p=0.5, dtype=torch.float32)
    case.inputs[2] = torch.eye(34)[:, None].expand(34, 2, 34).clone().requires_grad_()
    case, found = moved(case, DEVICE), []
    for rows, keys in ((16, 32), (32, 16)):
        monkeypatch.setattr(launch, "tiling", lambda *_, r=rows, k=keys, **__: Tiling(r, k, 4, 1))
        torch.manual_seed(1)
        found.append(output(case) == 0)
    assert torch.equal(found[0], found[1])


def test_maps_are_made_once_and_go_with_their_labels(monkeypatch):
    labels = DenseLabels(torch.randint(0, 3, (18, 18)), 3)
    case = moved(make(labels, dtype=torch.float32, batch=1, heads=1, kv_heads=1), DEVICE)
    made, real = [], launch.tile_map

    def counting(*args, memo, **options):
        before = len(memo.found)
        found = real(*args, memo=memo, **options)
        made.append(len(memo.found) - before)
        return found

    monkeypatch.setattr(launch, "tile_map", counting)
    raw(case, "triton")
    assert sum(made) > 0
    gc.collect()
    entries = len(memory._entries.found)
    case.labels.ids.copy_(case.labels.ids.flip(-1))  # changed in place: what was made before goes
    before = sum(made)
    first = answer(case, "triton")
    assert sum(made) > before
    assert len(memory._entries.found) == entries
    before = sum(made)
    second = answer(case, "triton")
    assert sum(made) == before
    for one, two in zip(first, second, strict=True):
        assert all(map(torch.equal, one, two))  # the same to the bit
    del case, labels, first, second, one, two
    gc.collect()
    assert len(memory._entries.found) == entries


def refused(match, labels=None, dtype=torch.float32, **options):
    with pytest.raises(NotImplementedError, match=match):
        raw(moved(make(labels, dtype=dtype, **options), DEVICE), "triton")


def test_what_is_refused_names_the_way_out():
    refused("float16, bfloat16 and float32.*chunked", dtype=F64)
    refused("heads of at most 256", size=300)
    refused("use impl='chunked'", KINDS["edges sum"](6))
    refused("at most 127 labels.*got 200.*chunked", DenseLabels(torch.zeros(4, 4, dtype=torch.int64), 200))
    refused("has no score but dot products; use impl='chunked'", score=Softcap(2.0))
    q = torch.randn(1, 1, 4, 4, device=DEVICE)
    learned = torch.zeros(4, 4, device=DEVICE, requires_grad=True)
    labels = rg.ClippedDistance(1)(4).to(DEVICE)
    for match, more in {
        "key_gate or value_gate": {"key_gate": torch.ones(3, 4, device=DEVICE)},
        "value_map": {"value_map": torch.ones(3, 4, 4, device=DEVICE)},
        "row_scores": {"row_scores": torch.zeros(1, 1, 4, 3, device=DEVICE)},
        "key_table with a batch axis": {"key_table": torch.zeros(1, 1, 3, 4, device=DEVICE)},
        "gradient of attn_mask": {"attn_mask": learned},
    }.items():
        with pytest.raises(NotImplementedError, match=f"has no {match}; use impl='chunked'"):
            rg.relation_attention_with_aux(q, q, q, labels, impl="triton", need_label_mass=True, **more)
    with pytest.raises(NotImplementedError, match="has no need_label_mass with dropout_p"):
        rg.relation_attention_with_aux(
            q, q, q, rg.ClippedDistance(1)(4).to(DEVICE), impl="triton", dropout_p=0.5, need_label_mass=True
        )
    with pytest.raises(NotImplementedError, match="impl='dense' for need_weights"):
        rg.relation_attention_with_aux(q, q, q, None, impl="triton", need_weights=True)
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


def test_no_cuda_graph_is_recorded(monkeypatch):
    monkeypatch.setattr(limits, "is_recording", lambda device: True)
    x = torch.randn(1, 1, 2, 4, device=DEVICE)
    with pytest.raises(NotImplementedError, match="has no recording in a CUDA graph; use impl='chunked'"):
        rg.relation_attention(x, x, x, None, impl="triton")


def results_here(call, **options):
    """The results where the kernels run, brought back."""
    call = {name: x if x is None else x.to(DEVICE) for name, x in call.items()}
    return [x.cpu() for x in results("triton", call, **options)]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize(("kind", "how"), [("distance", "bias"), ("dense", "key"), ("dense", "mask"), ("edges", "key")])
def test_infinite_scores(kind, how):
    """-inf hides a pair; +inf makes its row NaN."""
    call, masked, pairs = infinite(kind, how)
    for mine, other in zip(results_here(call), results("reference", masked), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    call, masked, pairs = infinite(kind, how, negative=False)
    output, lse, _ = results_here(call, gradients=False)
    assert output[:, :, pairs.any(1)].isnan().all()
    assert lse[:, :, pairs.any(1)].isnan().all()
    if how == "key":  # a pair that a mask hides may have any score
        call, masked, _ = infinite(kind, how)
        call = {**masked, "key": call["key"].nan_to_num(neginf=float("nan"))}
        wanted = results("reference", masked, gradients=False)
        for mine, other in zip(results_here(call, gradients=False), wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
