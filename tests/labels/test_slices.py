"""Slices by rows and by columns: what they hold, in any order, and attention over all of them merged."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import relgraph as rg
from relgraph.labels import BlockLabels, EdgeLabels, SumLabels, padded
from tests.cases import KINDS, assert_same, distance, make, packed_or_not
from tests.labels.test_kinds import NAMES


@st.composite
def slices(draw):
    """Draw labels of a kind, and a slice of their rows and of their columns."""
    torch.manual_seed(draw(st.integers(0, 99)))
    labels = KINDS[draw(st.sampled_from(NAMES))](draw(st.integers(0, 9)))
    bounds = [sorted(draw(st.integers(0, length)) for _ in range(2)) for length in (labels.q_len, labels.k_len)]
    return labels, *bounds


def has_dense_form(labels):
    if not isinstance(labels, EdgeLabels):
        return True
    parallel = labels.parallel and (labels.default is None or labels.duplicates != "first")
    return not parallel and has_dense_form(labels.default)


@given(slices())
def test_a_slice_of_the_labels_is_a_slice_of_the_pairs(drawn):
    labels, rows, cols = drawn
    part = labels.cols(*cols)
    assert type(part) is type(labels)
    assert (part.q_len, part.k_len) == (labels.q_len, cols[1] - cols[0])
    assert (part.batch_size, part.num_labels, part.packed) == (labels.batch_size, labels.num_labels, labels.packed)
    both = labels.rows(*rows).cols(*cols)
    assert both == part.rows(*rows)
    pieces = zip(*(x.parts if isinstance(x, SumLabels) else (x,) for x in (labels, part, both)), strict=True)
    for whole, by_cols, by_both in pieces:
        if has_dense_form(whole):
            dense = [x[..., slice(*cols)] for x in whole.to_dense()]
            for a, b in zip(by_cols.to_dense(), dense, strict=True):
                assert torch.equal(a, b)
            for a, b in zip(by_both.to_dense(), dense, strict=True):
                assert torch.equal(a, b[:, slice(*rows)])


@given(slices(), st.data())
def test_a_slice_of_a_slice_is_one_slice(drawn, data):
    labels, _, (start, stop) = drawn
    inner = sorted(data.draw(st.integers(0, stop - start)) for _ in range(2))
    assert labels.cols(start, stop).cols(*inner) == labels.cols(start + inner[0], start + inner[1])


@pytest.mark.parametrize("kind", NAMES)
def test_slices_are_labels_like_any(kind):
    torch.manual_seed(0)
    labels = KINDS[kind](7)
    part = labels.cols(2, 6)
    assert part == labels.cols(2, 6) == copy.deepcopy(part) == pickle.loads(pickle.dumps(part)) == part.to("cpu")
    assert part != labels
    leaves, spec = pytree.tree_flatten(part)
    assert pytree.tree_unflatten(leaves, spec) == part
    assert part.to("meta").k_len == 4
    assert "k_len=4" in repr(part)
    assert labels.cols(0, labels.k_len).k_len == labels.k_len
    assert labels.cols(3, 3).k_len == 0


def test_distances_count_from_the_first_key_that_is_left():
    assert distance(5).cols(2, 5) == distance(5, 3, q_offset=-2)
    assert distance(5, 9, q_offset=4).cols(3, 9) == distance(5, 6, q_offset=1)
    narrow = distance(3, 9, q_offset=torch.tensor([1, 0], dtype=torch.uint8)).cols(3, 9)
    assert narrow.q_offset.tolist() == [-2, -3]
    far = distance(300, q_offset=torch.tensor([1, 0], dtype=torch.uint8)).rows(280, 300)
    assert far.q_offset.tolist() == [281, 280]


def test_packed_graphs_keep_the_keys_that_are_left():
    ptr = torch.tensor([0, 2, 5, 6])
    labels = distance(6, ptr=ptr).cols(1, 4)
    assert labels.k_ptr.tolist() == [0, 1, 3, 3]
    assert labels.q_ptr.tolist() == ptr.tolist()
    blocks = BlockLabels(torch.arange(14), 14, ptr)
    assert blocks.cols(1, 4).ids.tolist() == [1, 3, 4, 5, 7, 8, 10, 11]
    assert blocks.rows(1, 4).cols(1, 4).ids.tolist() == [3, 4, 5, 7, 8]
    nothing = BlockLabels(torch.zeros(0, dtype=torch.long), 1, torch.tensor([0]))
    assert nothing.cols(0, 0) == nothing.rows(0, 0) == nothing
    with pytest.raises(ValueError, match="labels must have equal q_ptr and k_ptr, got different borders"):
        padded(blocks.cols(1, 4))


def shards(case, cuts, *, causal):
    """Attend over each of the key ranges between ``cuts``."""
    query, key, value = case.inputs
    axis = 0 if packed_or_not(case.labels) else 2
    for start, stop in pairwise(cuts):
        yield rg.relation_attention_with_aux(
            query, key.narrow(axis, start, stop - start), value.narrow(axis, start, stop - start),
            case.labels.cols(start, stop), *case.tables, is_causal=causal, q_offset=-start if causal else None,
            need_lse=True, need_label_mass=True, impl="reference",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        *((kind, False) for kind in NAMES),
        *((kind, True) for kind in ("distance", "dense", "edges over distance", "sum")),
    ],
)
def test_keys_in_shards(kind, causal):
    labels = KINDS[kind](7)
    case = make(labels)
    whole, aux = rg.relation_attention_with_aux(
        *case.inputs, labels, *case.tables, is_causal=causal, need_lse=True, need_label_mass=True, impl="reference"
    )
    parts = list(shards(case, [0, 3, 3, 4, labels.k_len], causal=causal))
    lses = [part.lse for _, part in parts]
    merged, lse = rg.functional.merge([z for z, _ in parts], lses)
    assert_same([merged, lse], [whole, aux.lse])
    single = not isinstance(labels, SumLabels)
    for index, wanted in enumerate((aux.label_mass,) if single else aux.label_mass):
        masses = [part.label_mass if single else part.label_mass[index] for _, part in parts]
        assert_same([rg.functional.merge(masses, lses)[0]], [wanted])
    got, wanted = (torch.autograd.grad(z.cos().sum(), case.leaves, materialize_grads=True) for z in (merged, whole))
    assert_same(got, wanted)


def test_every_implementation_takes_slices():
    for kind in ("distance packed", "dense batch", "block", "edges only", "edges over distance", "sum"):
        labels = KINDS[kind](20).rows(3, 17).cols(5, 19)
        case = make(labels, n=20)
        wanted = rg.relation_attention(*case.inputs, labels, *case.tables, impl="reference")
        for impl in ("dense", "chunked", None):
            got = rg.relation_attention(*case.inputs, labels, *case.tables, impl=impl)
            assert_same([got], [wanted])
