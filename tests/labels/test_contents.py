"""Labels that change in place: the next call uses what they hold then, however they were written."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import relgraph as rg
from relgraph.impl.native import build
from relgraph.labels.contents import contents, hash_of_bytes
from relgraph.labels.memory import memory_of
from relgraph.plan import lower
from tests.cases import KINDS, WRITES, Case, assert_same, computed, make

N = 12


def turned(x):
    return x.flip(-1).contiguous()


def moved(x):
    return (x + 1) % N


TENSORS = {
    "dense": (lambda labels: labels.ids, turned),
    "dense batch": (lambda labels: labels.ids, turned),
    "block": (lambda labels: labels.ids, turned),
    "edges only": (lambda labels: labels.edge_index, moved),
    "edges only parallel": (lambda labels: labels.ids, turned),
    "edges only batch": (lambda labels: labels.batch, lambda x: 1 - x),
    "edges default": (lambda labels: labels.edge_index, moved),
    "edges sum": (lambda labels: labels.ids, turned),
    "edges over dense": (lambda labels: labels.default.ids, turned),
    "edges over edges": (lambda labels: labels.default.edge_index, moved),
    "sum": (lambda labels: labels.parts[1].edge_index, moved),
    "distance per row": (lambda labels: labels.q_offset, turned),
    "distance packed": (lambda labels: labels.k_ptr, lambda x: x + (9 - 2 * x[1]) * torch.tensor([0, 1, 1, 1, 0])),
    "function": (lambda labels: labels.queries[0], turned),
}
"""For kinds of labels, one of their tensors, and what it holds after a change."""


def result(case: Case, labels, impl):
    """Output and gradients, as a user gets them."""
    options = {k: v for k, v in case.options.items() if k != "enable_gqa"}
    z = rg.relation_attention(*case.inputs, labels, *case.tables, impl=impl, **options)
    weight = torch.arange(z.numel(), dtype=z.dtype).view(z.shape).cos()
    leaves = [*case.inputs, *[x for table in case.tables for x in (table if isinstance(table, tuple) else (table,))]]
    return [z, *torch.autograd.grad((z * weight).sum(), [x for x in leaves if x is not None], allow_unused=True)]


def assert_equal(got, wanted):
    kept = [(a, b) for a, b in zip(got, wanted, strict=True) if a is not None]
    assert_same(*([pair[side] for pair in kept] for side in (0, 1)))


@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", "edges", "native", None])
def test_a_call_sees_every_change(kind, impl):
    torch.manual_seed(0)
    labels = computed(lambda: KINDS[kind](N))
    case = make(labels)
    if impl in rg.which_impl(*case.inputs, labels, *case.tables).refused:
        pytest.skip("refused")
    at, change = TENSORS[kind]
    before = result(case, labels, impl)
    for write in WRITES.values():
        write(at(labels), change(at(labels)))
        got = result(case, labels, impl)
        assert not torch.equal(got[0], before[0])
        assert_equal(got, result(case, pytree.tree_map(torch.clone, labels), impl))
        before = got


@pytest.mark.parametrize("kind", ["dense", "edges only", "sum"])
@pytest.mark.parametrize("write", WRITES)
def test_a_small_prepared_call_sees_every_change(kind, write):
    torch.manual_seed(0)
    labels, (at, change) = KINDS[kind](N), TENSORS[kind]
    case = make(labels, dtype=torch.float32, kinds="kv", batch=1)
    for _ in range(2):
        before = result(case, labels, None)
    WRITES[write](at(labels), change(at(labels)))
    for _ in range(2):
        got = result(case, labels, None)
        assert not torch.equal(got[0], before[0])
        assert_equal(got, result(case, pytree.tree_map(torch.clone, labels), None))


def test_the_layer_sees_a_change():
    torch.manual_seed(0)
    labels = KINDS["edges default"](N)
    layer, x = rg.RelationAttention(8, 2, num_labels=4), torch.randn(1, N, 8)
    before = layer(x, labels=labels)
    labels.ids.numpy()[:] = turned(labels.ids).numpy()
    assert not torch.equal(layer(x, labels=labels), before)
    torch.testing.assert_close(layer(x, labels=labels), layer(x, labels=pytree.tree_map(torch.clone, labels)))


BAD = {
    "dense": (lambda labels: labels.ids, 99, "ids must lie in"),
    "dense batch": (lambda labels: labels.ids, -3, "ids must lie in"),
    "block": (lambda labels: labels.k_ptr, 3, "ptr must start at 0, never fall and end at"),
    "edges only": (lambda labels: labels.edge_index, N, "edge_index: every source"),
    "edges default": (lambda labels: labels.ids, 77, "ids must lie in"),
    "edges over dense": (lambda labels: labels.default.ids, 77, "ids must lie in"),
    "sum": (lambda labels: labels.parts[1].edge_index, -1, "edge_index: every source"),
    "distance packed": (lambda labels: labels.k_ptr, 5, "ptr must start at 0"),
    "function packed": (lambda labels: labels.k_ptr, 5, "ptr must start at 0"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", "edges", "native"])
def test_a_change_to_what_the_constructor_refuses_is_refused(kind, impl):
    torch.manual_seed(0)
    labels = computed(lambda: KINDS[kind](N))
    case, (at, number, message) = make(labels), BAD[kind]
    if impl in rg.which_impl(*case.inputs, labels, *case.tables).refused:
        pytest.skip("refused")
    result(case, labels, impl)
    at(labels).data.fill_(number)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            result(case, labels, impl)


def test_another_shape_is_refused():
    labels = KINDS["dense"](N)
    case = make(labels)
    result(case, labels, None)
    labels.ids.data = labels.ids[:, :5].clone()
    for _ in range(2):
        with pytest.raises(ValueError, match="labels must keep the shapes of their tensors, got changed ones in Dense"):
            result(case, labels, None)


@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", None])
def test_borders_keep_an_id_for_each_pair(impl):
    labels = rg.BlockLabels(torch.randint(0, 3, (13,)), 3, ptr=torch.tensor([0, 3, 5]))
    x, table = torch.randn(5, 2, 4), torch.randn(3, 4)
    rg.relation_attention(x, x, x, labels, key_table=table, impl=impl)
    labels.q_ptr[1] = 1
    with pytest.raises(ValueError, match="ids must hold one id per pair of each graph, 1[0-9] in all, got 13"):
        rg.relation_attention(x, x, x, labels, key_table=table, impl=impl)


def test_pairs_that_stop_to_attend_and_edges_that_become_parallel():
    """What labels noted of their tensors when they were built is noted again."""
    torch.manual_seed(0)
    dense, listed = KINDS["dense"](N), KINDS["edges only"](N)
    case, over = make(dense), make(listed)
    result(case, dense, None), result(over, listed, None)
    dense.ids[:, :, 3:] = -2
    listed.edge_index[:, 1] = listed.edge_index[:, 0]
    attend = (torch.arange(N) < 3).expand(1, N, N)
    wanted = rg.DenseLabels(dense.ids.masked_fill(~attend, -1), 4, attend=attend)
    assert_equal(result(case, dense, None), result(case, wanted, "reference"))
    again = rg.EdgeLabels(listed.edge_index, listed.ids, 3, q_len=N)
    assert_equal(result(over, listed, None), result(over, again, "reference"))
    with pytest.raises(NotImplementedError, match="parallel edges cannot attend separately"):
        result(over, listed, "dense")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(("kind", "impl"), [("edges only", "native"), ("edges only", "edges"), ("dense", "dense")])
def test_backward_has_copies_of_what_forward_read(kind, impl, write):
    torch.manual_seed(0)
    labels, (at, change) = KINDS[kind](N), TENSORS[kind]
    case = make(labels)
    z = rg.relation_attention(*case.inputs, labels, *case.tables, impl=impl)
    (wanted,) = torch.autograd.grad(z.sin().sum(), case.tables[1], retain_graph=True)
    WRITES[write](at(labels), change(at(labels)))
    assert torch.equal(torch.autograd.grad(z.sin().sum(), case.tables[1])[0], wanted)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["dense", "block", "function", "distance per row", "edges over dense"])
@pytest.mark.parametrize("impl", ["native", "chunked", "rows"])
def test_backward_refuses_what_forward_did_not_read(kind, impl, write):
    torch.manual_seed(0)
    labels, (at, change) = computed(lambda: KINDS[kind](N)), TENSORS[kind]
    case = make(labels, kinds="kv")
    options = {"impl": impl} if impl != "rows" else {"impl": "chunked", "score": torch.tanh}
    z = rg.relation_attention(*case.inputs, labels, *case.tables, **options)
    WRITES[write](at(labels), change(at(labels)))
    with pytest.raises(RuntimeError, match="labels must stay as they are until backward is done"):
        z.sum().backward()


def test_raw_ids_are_copied():
    torch.manual_seed(0)
    ids, x = torch.randint(-1, 4, (N, N)), torch.randn(1, 2, N, 4)
    table = torch.randn(4, 4, requires_grad=True)
    z = rg.relation_attention(x, x, x, ids, table, impl="chunked")
    (wanted,) = torch.autograd.grad(z.sin().sum(), table, retain_graph=True)
    ids.numpy()[:] = 0
    assert torch.equal(torch.autograd.grad(z.sin().sum(), table)[0], wanted)


def test_labels_that_hold_the_same_keep_their_plan():
    for kind, labels in ((kind, make_one(N)) for kind, make_one in KINDS.items() if kind != "none"):
        plan = lower(labels)
        for x in pytree.tree_leaves(labels):
            x.copy_(x.clone())
        assert lower(labels) is plan, kind


def by_kernels(address, count):
    hashed = build.kernels().library["relgraph_hash"]
    hashed.restype, hashed.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_uint64]
    return hashed(address, count)


HASHES = [
    hash_of_bytes,
    pytest.param(
        by_kernels,
        marks=pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}"),
    ),
]


def number(hashed, data: bytes) -> int:
    held = ctypes.create_string_buffer(data, len(data) + 1)
    return hashed(ctypes.addressof(held), len(data))


@pytest.mark.parametrize("hashed", HASHES)
@given(st.binary(max_size=700), st.data())
def test_every_byte_and_its_place_count(hashed, data, draw):
    whole = number(hashed, data)
    assert whole == number(hashed, data)
    assert whole != number(hashed, data + b"\0")
    if data:
        at = draw.draw(st.integers(0, len(data) - 1))
        bit = 1 << draw.draw(st.integers(0, 7))
        assert whole != number(hashed, data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        for width in (1, 8, 256):
            there = at + width
            if there < len(data) and data[at] != data[there]:
                swapped = bytearray(data)
                swapped[at], swapped[there] = data[there], data[at]
                assert whole != number(hashed, bytes(swapped))


@pytest.mark.parametrize("hashed", HASHES)
def test_the_highest_bits_of_two_words_do_not_cancel(hashed):
    """Ids 127 and -1 differ in their highest bit only."""
    for words in (4, 70):
        data = bytes(8 * words)
        seen = {number(hashed, data)}
        for at in range(7, len(data), 8):
            for there in range(at + 8, len(data), 8):
                changed = bytearray(data)
                changed[at] = changed[there] = 0x80
                seen.add(number(hashed, bytes(changed)))
        assert len(seen) == 1 + words * (words - 1) // 2


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.t(),
    "some columns": lambda x: x[:, 1:4],
    "every other row": lambda x: x[::2],
    "expanded": lambda x: x[:, None].expand(-1, 3, -1),
    "of one number": lambda x: x[2, 3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_number_counts_in_every_layout(layout):
    whole = torch.arange(30).view(5, 6)
    x = LAYOUTS[layout](whole)
    seen = {contents(x)}
    for number in x.unique().tolist():
        whole.numpy()[whole == number] += 100
        seen.add(contents(x))
    assert len(seen) == 1 + x.unique().numel()
    assert contents(torch.zeros(0, 3)) == contents(torch.zeros(0, 3))


def test_memories_of_tensors_go_with_their_contents():
    for make_one in (lambda: torch.zeros(3, 4, dtype=torch.bool), lambda: torch.zeros(4, 3)[:, :2]):
        mask = make_one()
        memory = memory_of([mask])
        assert memory_of([mask]) is memory
        mask.numpy()[1, 1] = 1
        assert memory_of([mask]) is not memory
