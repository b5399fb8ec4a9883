"""The host's part of impl="triton": by the ops and without them, no waiting, no unbounded caches, compiled and captured."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import relgraph as rg
from relgraph.call import Call, Tables
from relgraph.impl import op
from relgraph.impl.triton import attend, virtual
from relgraph.impl.triton.edges import KernelPairs
from relgraph.labels import memory
from relgraph.plan import LabelPlan, decode, encode, lower
from relgraph.plan.memory import _by_ints
from tests.budget import twins
from tests.cases import KINDS, answer, make, moved
from tests.stubs import Stub, labels_of, stubbed

launch = pytest.importorskip("relgraph.impl.triton.launch", reason="triton is not installed")
TileMap = pytest.importorskip("relgraph.impl.triton.tile_map", reason="triton is not installed").TileMap
Tiling = pytest.importorskip("relgraph.impl.triton.tiling", reason="triton is not installed").Tiling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of 16 by 16 pairs, so that short inputs have tiles of all sorts."""
    monkeypatch.setattr(launch, "tiling", lambda *_, **__: Tiling(16, 16, 4, 1))


# ---- by the ops, as compiled code calls them ----


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sum", {"per_head": "kq", "dropout_p": 0.4}),
        ("edges only", {"per_head": "vb", "dropout_p": 0.4}),
    ],
)
def test_the_ops_give_what_direct_calls_give(kind, options, monkeypatch):
    """Every output and gradient, to the bit."""
    _, case = twins(KINDS[kind](3), heads=2, kv_heads=1, batch=1, **options)
    found = []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(op, "unwatched", lambda _: False)
        torch.manual_seed(2)
        found.append(answer(moved(case, DEVICE), "triton", mass=False))
    for one, two in zip(*found, strict=True):
        assert all(map(torch.equal, one, two))


def test_labels_by_function_are_refused():
    labels, x = KINDS["function"](4).to(DEVICE), torch.randn(1, 1, 4, 8, device=DEVICE)
    with pytest.raises(NotImplementedError, match=r"ids by function block by block; write the labels out by \.dense"):
        rg.relation_attention(x, x, x, labels, torch.randn(4, 8, device=DEVICE), impl="triton")


@pytest.mark.parametrize("kind", ["distance", "edges only"])
def test_tensors_in_any_layout(kind):
    """A sum gives one number for all entries, without strides; hooks may give back saved tensors with other strides."""
    labels = KINDS[kind](4).to(DEVICE)
    leaves = [torch.randn(1, 1, 4, 8, device=DEVICE, requires_grad=True) for _ in range(3)]
    leaves += [torch.randn(labels.num_labels, 8, device=DEVICE, requires_grad=True) for _ in range(2)]

    def gradients(impl, total):
        z = rg.relation_attention(*leaves[:3], labels, *leaves[3:], impl=impl)
        return torch.autograd.grad(total(z), leaves)

    def turned(z):
        return (z.mT.contiguous() * torch.linspace(0, 1, 4, device=DEVICE)).sum()

    other_strides = lambda x: x if x.dim() < 2 else x.mT.contiguous().mT  # noqa: E731
    found = [gradients("triton", torch.sum)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, other_strides):
        found.append(gradients("triton", turned))
    wanted = [gradients("reference", total) for total in (torch.sum, turned)]
    for got, right in zip(sum(found, ()), sum(wanted, ()), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


# ---- nothing waits for the device ----

WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "equal")
"""Operators whose result the host must wait for."""


class Waits(TorchDispatchMode):
    """Notes the operators that make the host wait."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if by_mask or name.startswith(WAITING) or (name == "repeat_interleave" and func._overloadname == "Tensor"):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def watched(monkeypatch):
    """Direct calls whose operators a mode sees; kernels do nothing."""
    monkeypatch.setattr(memory, "_get_current_dispatch_mode", lambda: None)
    with stubbed():
        yield


def waits(case):
    """What one call and its backward wait for; "tensor" is a copy of numbers of the host, which waits too."""
    with Waits() as found, pytest.MonkeyPatch.context() as noting:
        real = torch.tensor
        noting.setattr(torch, "tensor", lambda *args, **given: (found.seen.append("tensor"), real(*args, **given))[1])
        answer(case, "triton")
    return found.seen


BY_DISTANCE = [kind for kind in KINDS if kind.startswith("distance")]
WRITTEN = ("dense batch", "block", "edges default cross", "edges over distance packed", "sum")
LISTED = ("edges only batch", "edges only parallel", "edges only packed")


@pytest.mark.parametrize("kind", BY_DISTANCE)
def test_labels_by_distance_never_wait(kind, watched, monkeypatch):
    """The second labels of a kind do not wait either; constants of a kind are copied to the device once."""
    monkeypatch.setattr(virtual, "_constants", memory.Memory())
    assert set(waits(make(KINDS[kind](40), batch=2, dtype=torch.float32))) <= {"tensor"}
    assert not waits(make(KINDS[kind](40), batch=2, dtype=torch.float32))


@pytest.mark.parametrize("kind", [*WRITTEN, *LISTED, "none"])
def test_the_second_call_never_waits(kind, watched):
    """Forward, backward, and a second layer with tables of its own."""
    labels = KINDS[kind](40)
    first = waits(make(labels, n=40, batch=2, dtype=torch.float32))
    assert first or kind not in WRITTEN
    assert not waits(make(labels, n=40, batch=2, dtype=torch.float32))


# ---- lengths change ----


def specialised(monkeypatch):
    """A set that fills with what Triton compiles a kernel of its own for: constants, and classes of integers."""
    seen = set()

    def of(name, x):
        if isinstance(x, torch.Tensor):
            return x.dtype, x.data_ptr() % 16 == 0
        if isinstance(x, int) and not isinstance(x, bool) and not name.isupper():
            return "one" if x == 1 else ("sixteen" if x % 16 == 0 else "any", abs(x) >> 31 > 0)
        return type(x).__name__ if isinstance(x, float) else x

    def launch(self, **arguments):
        seen.add((self.name, tuple(sorted((name, of(name, x)) for name, x in arguments.items()))))

    monkeypatch.setattr(Stub, "__call__", launch)
    return seen


@pytest.mark.parametrize(("kind", "most"), [("by distance", 40), ("written out", 60), ("edges only", 20)])
def test_a_bucketed_loader_compiles_few_kernels(kind, most, watched, monkeypatch):
    """All that may differ is whether a number is 1, or divisible by 16."""
    seen = specialised(monkeypatch)
    lengths = [*range(1, 34), 48, 64, 65]
    lengths += [96, 130, 400, 2050] if kind != "written out" else []
    for length in lengths:
        qkv = [torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3)]
        table = torch.randn(17, 16, requires_grad=True)
        labels = rg.ClippedDistance(8)(length) if kind == "by distance" else labels_of(length)[kind]
        rg.relation_attention(*qkv, labels, table, table, impl="triton").sum().backward()
    assert len({name for name, *_ in seen}) == (3 if kind == "edges only" else 4)
    assert len(seen) <= most


@pytest.mark.parametrize("kind", ["by distance", "written out", "edges only"])
def test_lengths_leave_nothing_behind(kind, watched):
    """Maps go with their labels; of labels without tensors a few plans stay."""

    def alive():
        gc.collect()
        return sum(type(x) in (TileMap, LabelPlan, KernelPairs) for x in gc.get_objects())

    before, entries = alive(), len(memory._entries.found)
    for length in range(1, 101 if kind == "by distance" else 21):
        qkv = [torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3)]
        labels = rg.ClippedDistance(8)(length) if kind == "by distance" else labels_of(length)[kind]
        table = torch.randn(17, 4)
        rg.relation_attention(*qkv, labels, table, table, impl="triton").sum().backward()
    del labels, qkv
    kept = 3 * memory.KEPT if kind == "by distance" else 0
    assert alive() <= before + kept
    assert len(_by_ints.found) <= memory.KEPT
    assert len(memory._entries.found) <= entries


# ---- compiled and recorded ----


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("distance", "aot_eager"),
        *(pytest.param(kind, "inductor", marks=pytest.mark.slow) for kind in ("edges only", "sum")),
    ],
)
def test_one_graph_serves_all_lengths(kind, backend):
    """Values and gradients are those of eager calls, whatever the length."""
    torch._dynamo.reset()
    counters.clear()
    sizes = KINDS[kind](5).num_labels
    rows = [torch.randn(size, 4, requires_grad=True) for size in (sizes if isinstance(sizes, tuple) else (sizes,))]
    table = tuple(rows) if len(rows) > 1 else rows[0]

    def fn(q, k, v, labels):
        return rg.relation_attention(q, k, v, labels, table, table, impl="triton")

    compiled = torch.compile(fn, fullgraph=True, dynamic=True, backend=backend)
    for n in (7, 9):  # none is also a number of labels, which would be a graph of its own
        labels = KINDS[kind](n)
        leaves = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]
        found = [torch.autograd.grad(call(*leaves, labels).square().sum(), [*leaves, *rows]) for call in (compiled, fn)]
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one, two)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("kind", ["edges only", "dense"])
def test_compiled_code_is_not_recorded(kind):
    """Inductor leaves ops with this tag out of CUDA graphs."""
    torch._dynamo.reset()
    labels, found, table = KINDS[kind](3), {}, torch.randn(5, 4)

    def note(graph, _):
        found.update(
            (str(node.target), node.target.tags) for node in graph.graph.nodes if "relgraph" in str(node.target)
        )
        return make_boxed_func(graph.forward)

    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    fn = lambda q: rg.relation_attention(q, q, q, labels, table[: labels.num_labels], impl="triton")  # noqa: E731
    compiled = torch.compile(fn, fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note))
    compiled(q).sum().backward()
    assert set(found) == {"relgraph.attend_unrecorded.default", "relgraph.attend_unrecorded_backward.default"}
    for tags in found.values():
        assert torch.Tag.cudagraph_unsafe in tags


@pytest.mark.parametrize("kind", ["distance", "edges only", "sum"])
def test_shapes_of_a_gpu_without_one(kind):
    """Fake tensors on the device cuda: outputs have the shapes, dtypes and device of real ones.

    Autograd has no such device here; fake gradients are part of the custom op's contract, which is tested.
    """
    labels = KINDS[kind](9)
    tensors, ints = encode(lower(labels))
    one = kind in ("distance", "edges only")  # a torch without CUDA cannot split masses of fake tensors there
    sizes = labels.num_labels if isinstance(labels.num_labels, tuple) else (labels.num_labels,)
    with FakeTensorMode(), torch.no_grad():

        def drawn(*shape):
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda")

        q, k, v = drawn(2, 4, 9, 8), drawn(2, 2, 9, 8), drawn(2, 2, 9, 6)
        tables = tuple(Tables(drawn(r, 8), drawn(4, r, 6), drawn(r, 8), drawn(4, r)) for r in sizes)
        plan = decode([torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in tensors], ints)
        got = attend.attend(Call(q, k, v, plan, tables, 0.3, need_mass=one))
    wanted = [[2, 4, 9, 6], [2, 4, 9], *([2, 4, 9, r] for r in sizes if one)]
    found = [got.output, got.lse, *(got.mass or ())]
    assert [list(x.shape) for x in found] == wanted
    assert all(x.dtype == torch.float32 and x.device.type == "cuda" for x in found)
