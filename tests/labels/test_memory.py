"""Remembered values go with their labels, are made once for all threads, and are bounded."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import relgraph as rg
from relgraph.distributed.parts import part_of
from relgraph.impl.triton import limits
from relgraph.interop.transformers.common import one_row
from relgraph.labels import memory
from relgraph.labels.memory import Memory, memory_of
from relgraph.plan import encode, lower, memo_of, plan_memo
from tests.cases import KINDS, make

N, NEW = 12, 2
WITH_TENSORS = [kind for kind in KINDS if kind != "none" and pytree.tree_leaves(KINDS[kind](N))]


def call(labels, impl, way):
    """Call an implementation with all tables that it takes; False if it refuses these labels."""
    case = make(labels, dtype=torch.float32, batch=2)
    tables = case.tables if impl != "triton" else [None] * 3
    if impl in rg.which_impl(*case.inputs, labels, *tables).refused:
        return False
    with torch.inference_mode(way == "inference"):
        z = rg.relation_attention(*case.inputs, labels, *tables, impl=impl)
    if way == "backward":
        z.sum().backward()
    return True


def left(refs):
    gc.collect()
    return sum(ref() is not None for ref in refs)


IMPLS = ["reference", "dense", "chunked", "edges", "native", None]


@pytest.mark.parametrize(
    ("impl", "way"),
    [
        *((impl, "backward") for impl in IMPLS),
        *((impl, "inference") for impl in ("chunked", "native")),
        *(pytest.param("triton", way, marks=pytest.mark.slow) for way in ("backward", "inference")),
    ],
)
def test_no_labels_stay_after_a_call(impl, way):
    if impl == "triton" and not limits.HAS_TRITON:
        pytest.skip("no Triton")
    entries = len(memory._entries.found)
    refs = []
    for kind in WITH_TENSORS:
        for _ in range(NEW):
            labels = KINDS[kind](N)
            if not call(labels, impl, way):
                break
            plan = lower(labels)
            tensors = [] if plan.by_function else encode(plan)[0]
            refs += [(kind, weakref.ref(x)) for x in (labels, plan, *pytree.tree_leaves(labels), *tensors)]
    labels = plan = tensors = None
    gc.collect()
    assert refs
    assert {kind for kind, ref in refs if ref() is not None} == set()
    assert len(memory._entries.found) <= entries


QUICK = [("native", "edges only"), ("chunked", "block")]


@pytest.mark.parametrize(
    ("impl", "kind"),
    [
        *QUICK,
        *(
            pytest.param(impl, kind, marks=pytest.mark.slow)
            for impl in IMPLS
            for kind in ("dense", "block", "edges only", "edges over dense", "distance packed", "sum")
            if (impl, kind) not in QUICK
        ),
    ],
)
def test_no_labels_stay_after_compiled_calls(impl, kind):
    """Compiled code lowers labels itself, so tensors of each call's own plan go too."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v, labels, tables: rg.relation_attention(q, k, v, labels, *tables, impl=impl),
        backend="aot_eager",
        fullgraph=True,
    )
    entries, refs = len(memory._entries.found), []
    for _ in range(3):
        labels = KINDS[kind](N)
        case = make(labels, dtype=torch.float32, batch=2, kinds="kv")
        if impl in rg.which_impl(*case.inputs, KINDS[kind](N), *case.tables[:2]).refused:
            pytest.skip("refused")
        compiled(*case.inputs, labels, case.tables[:2]).sum().backward()
        refs += [weakref.ref(x) for x in (labels, *pytree.tree_leaves(labels))]
    del labels, case
    assert left(refs) == 0
    assert len(memory._entries.found) <= entries
    torch._dynamo.reset()


def test_raw_ids_do_not_stay():
    refs = []
    for _ in range(NEW):
        ids, x = torch.randint(0, 3, (N, N)), torch.randn(1, 1, N, 4)
        rg.relation_attention(x, x, x, ids, torch.randn(3, 4))
        refs.append(weakref.ref(ids))
    del ids
    assert left(refs) == 0


def test_parts_of_labels_go_with_them():
    labels = KINDS["edges over dense"](N)
    part = part_of(labels, "rows", lambda whole: whole.rows(0, 3))
    assert part_of(labels, "rows", lambda whole: whole.rows(0, 3)) is part
    lower(part)
    refs = [weakref.ref(x) for x in (labels, part, *pytree.tree_leaves(labels))]
    del labels, part
    assert left(refs) == 0


def test_masks_that_were_looked_at_go_and_are_looked_at_again_when_they_change():
    mask = torch.zeros(1, 1, 3, 3)
    assert one_row(mask) is one_row(mask)
    assert one_row(mask).shape == (1, 1, 1, 3)
    mask[..., 1, 1] = 1.0
    assert one_row(mask) is mask
    ref = weakref.ref(mask)
    del mask
    assert left([ref]) == 0


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


FIRST = [
    *((impl, kind, "inference") for impl in ("chunked", "dense", "native") for kind in ("block", "edges over dense")),
    *((impl, "edges only", first) for impl in ("edges", "native") for first in ("inference", "mode")),
    ("dense", "distance packed", "transform"),
]


@pytest.mark.parametrize(("impl", "kind", "first"), FIRST)
def test_what_the_first_call_keeps_serves_training(impl, kind, first):
    """The first call remembers no tensor of inference mode, of a transform or of a dispatch mode."""
    labels = KINDS[kind](N)
    case = make(labels, dtype=torch.float32, batch=1, kinds="kv")
    tables = case.tables[:2]

    def total(q):
        return rg.relation_attention(q, *case.inputs[1:], labels, *tables, impl=impl).sum()

    if first == "inference":
        with torch.inference_mode():
            total(case.inputs[0])
        assert labels._plan is not None
    elif first == "transform":
        torch.func.grad(total)(case.inputs[0].detach())
        assert labels._plan is None
    else:
        with Watching():
            total(case.inputs[0])
    (grad,) = torch.autograd.grad(total(case.inputs[0]), case.inputs[0])
    labels = pytree.tree_map(torch.Tensor.clone, labels)
    (wanted,) = torch.autograd.grad(total(case.inputs[0]), case.inputs[0])
    assert torch.equal(grad, wanted)


def test_a_change_in_place_is_seen_and_leaves_nothing_behind():
    labels = KINDS["dense"](N)
    x, tables = torch.randn(1, 1, N, 4), torch.randn(4, 4)
    entries = len(memory._entries.found)
    for step in range(5):
        labels.ids.fill_(step % 4)
        got = rg.relation_attention(x, x, x, labels, None, tables, impl="chunked")
        wanted = rg.relation_attention(x, x, x, labels, None, tables, impl="reference")
        torch.testing.assert_close(got, wanted)
        assert len(memory._entries.found) == entries


def test_a_plan_and_its_tensors_have_one_memory_until_these_change():
    labels = KINDS["dense"](9)
    own, encoded = memo_of(lower(labels)), plan_memo(*encode(lower(labels)))
    assert memo_of(lower(labels)) is own
    assert plan_memo(*encode(lower(labels))) is encoded
    labels.ids[0, 0, 0] = 3 - labels.ids[0, 0, 0]
    assert memo_of(lower(labels)) is not own
    plan = lower(KINDS["dense"](9))
    encoded = plan_memo(*encode(plan))
    plan.parts[0].ids.ids.data[0, 0, 0] += 1
    assert plan_memo(*encode(plan)) is not encoded


def test_plans_of_the_same_numbers_share_a_memory():
    assert memo_of(lower(KINDS["distance"](9))) is memo_of(lower(KINDS["distance"](9)))


def test_a_number_that_another_object_had_is_not_taken_for_it():
    tensors = [torch.zeros(2) for _ in range(3)]
    one = memory_of(tensors[:2])
    assert memory_of(tensors[:2]) is one
    assert memory_of(tensors[1::-1]) is not one
    assert memory_of(tensors[:2], "other") is not one
    key = (None, *map(id, tensors[:2]))
    memory._entries.found[None, *map(id, tensors[1:])] = memory._entries.found.pop(key)
    assert memory_of(tensors[1:]) is not one


def test_threads_get_the_same_results():
    """All threads run into a plan that is not there yet, and into memories that are full."""
    shared, few = [KINDS["edges over dense"](N) for _ in range(50)], Memory(3)
    ready, found, errors = threading.Barrier(4), [], []

    def work(seed):
        try:
            ready.wait()
            mine = [lower(labels) for labels in shared]
            for at in range(3000):
                key = (at * (seed + 1)) % 7
                assert few.once(key, lambda key=key: [key]) == [key]
                memory_of([torch.zeros(1)]).once("x", object)
            found.append(mine)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors
    assert len(few.found) <= 3
    assert all(a is b for mine in found for a, b in zip(mine, found[0], strict=True))


def test_new_labels_in_every_step_leave_resident_memory_flat():
    """As in training on graphs: 300 steps of the compiled kernels over 512 positions, each with labels of its own."""
    index, ids, table = torch.arange(512).repeat(2, 3), torch.arange(1536) % 7, torch.randn(7, 8)

    def step(turn):
        edges = rg.EdgeLabels(index, ids, 7, q_len=512, duplicates="sum", default=turn % 7)
        labels = (edges, rg.DenseLabels(ids[:512].expand(512, 512), 7), rg.ClippedDistance(3)(512))[turn % 3]
        q, k, v = (torch.randn(1, 1, 512, 8, requires_grad=True) for _ in range(3))
        rg.relation_attention(q, k, v, labels, table).sum().backward()

    def resident():
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return int(re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    for turn in range(50):
        step(turn)
    before, entries = resident(), len(memory._entries.found)
    for turn in range(50, 350):
        step(turn)
    assert resident() - before < 8  # MiB
    assert len(memory._entries.found) <= entries + 5
