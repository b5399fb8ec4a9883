"""Labels of any two kinds: the right kind comes out, and it says what a loop over all pairs says."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relgraph.labelers import Window
from relgraph.labels import (
    BlockLabels,
    DenseLabels,
    DistanceLabels,
    EdgeLabels,
    Labels,
    first_of,
    product,
    restrict,
    total,
)
from tests.labelers.zoo import PACKED, PADDED, codes, loop, make, one, packed_setting, padded_setting

RULES = {"product": product, "first_of": first_of, "restrict": restrict}
COUNTS = {"product": 3 * 4, "first_of": 3 + 4, "restrict": 3}


def kind_of_both(a, b):
    """Return the kind that is documented: the larger one."""
    for kind in (DenseLabels, BlockLabels, EdgeLabels):
        if isinstance(a, kind) or isinstance(b, kind):
            return kind
    return DistanceLabels


def default_of(labels):
    """Return the labels of pairs that no edge lists."""
    if not isinstance(labels, EdgeLabels):
        return labels
    if isinstance(labels.default, Labels):
        return labels.default
    code = -2 if labels.default is None else labels.default
    return DistanceLabels(
        labels.q_len, labels.k_len, lookup=[code], left=0, num_labels=4, ptr=labels.k_ptr, q_ptr=labels.q_ptr
    )


def refused(rule, a, b):
    """Return whether some edge would have to say that its pair does not attend, which no edge can."""
    if rule != "first_of" or kind_of_both(a, b) is not EdgeLabels:
        return False
    under = default_of(a), default_of(b)
    joined, default = torch.broadcast_tensors(loop(rule, a, b), loop(rule, *under))
    return bool(((joined == -2) & (default != -2)).any()) or refused(rule, *under)


def check(rule, a, b):
    if refused(rule, a, b):
        with pytest.raises(NotImplementedError, match="the default of the first would take its place"):
            RULES[rule](a, b)
        return
    got = RULES[rule](a, b)
    assert type(got) is kind_of_both(a, b)
    assert got.num_labels == COUNTS[rule]
    assert got.packed == a.packed
    expected = loop(rule, a, b)
    torch.testing.assert_close(codes(got).expand_as(expected), expected)
    middle = got.q_len // 2
    torch.testing.assert_close(codes(got[:middle]).expand_as(expected[:, :middle]), expected[:, :middle])


PAIRS = [(*pair, setting) for kinds, setting in ((PADDED, padded_setting), (PACKED, packed_setting))
         for pair in itertools.product(kinds, kinds)]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "setting"), PAIRS)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), rule=st.sampled_from(sorted(RULES)))
def test_every_two_kinds(first, second, setting, seed, rule):
    rng = random.Random(seed)
    shared = setting(rng)
    check(rule, make(first, shared, rng, 3), make(second, shared, rng, 4))


def edges(listed, ids, num_labels, n=4, **options):
    """Make edges from a list of (key, query)."""
    index = torch.tensor(listed, dtype=torch.int64).view(-1, 2).T
    return EdgeLabels(index, torch.tensor(ids, dtype=torch.int64), num_labels, q_len=n, **options)


def distances(n=4, lookup=(0, 1, 2), **options):
    return DistanceLabels(n, lookup=lookup, left=1, **options)


class TestDefaults:
    def test_edges_alone_stay_alone(self):
        for got in (
            product(edges([(0, 1)], [0], 1), distances()),
            product(distances(), edges([(0, 1)], [0], 1)),
            restrict(distances(), edges([(0, 1)], [0], 1)),
            first_of(edges([(0, 1)], [-1], 1), distances()),
            product(edges([(0, 1)], [0], 1), edges([(1, 2), (0, 1)], [0, 0], 1, default=0)),
        ):
            assert got.default is None
            assert got.ids.shape == (1,)

    def test_an_id_meets_distances(self):
        got = product(edges([(0, 1)], [0], 2, default=1), distances())
        assert isinstance(got.default, DistanceLabels)
        assert got.default.lookup == (3, 4, 5)
        assert got.ids.tolist() == [0]

    def test_distance_where_no_edge_speaks(self):
        got = first_of(edges([(0, 1)], [0], 2, default=-1), distances())
        assert isinstance(got.default, DistanceLabels)
        assert got.default.lookup == (2, 3, 4)

    def test_a_default_that_stays_one_id_is_one_id(self):
        assert first_of(edges([(0, 1)], [0], 2, default=1), distances()).default == 1
        assert product(edges([(0, 1)], [0], 2, default=1), edges([], [], 3, default=2)).default == 5

    def test_a_window_takes_listed_pairs_away(self):
        got = restrict(edges([(0, 1), (0, 3)], [0, 0], 1, default=0), Window(1)(4))
        assert got.edge_index.tolist() == [[0], [1]]

    def test_intersection_and_union(self):
        a, b = edges([(0, 1), (2, 3)], [0, 1], 2), edges([(2, 3), (3, 0)], [1, 0], 2)
        both = product(a, b)
        assert both.edge_index.tolist() == [[2], [3]]
        assert both.ids.tolist() == [3]
        a, b = edges([(0, 1), (2, 3)], [0, 1], 2, default=-1), edges([(2, 3), (3, 0)], [1, 0], 2, default=-1)
        assert sorted(first_of(a, b).edge_index.T.tolist()) == [[0, 1], [2, 3], [3, 0]]

    def test_an_edge_that_cannot_be_left_out(self):
        with pytest.raises(NotImplementedError, match=r"edge without a label does not attend .* write the first out"):
            first_of(edges([(0, 3)], [-1], 1, default=0), Window(1)(4))
        with pytest.raises(NotImplementedError, match="an edge without a label"):
            first_of(edges([(0, 3)], [-1], 3, default=distances()), edges([], [], 1))


class TestParallel:
    """Parallel edges: each meets a distance by itself; what would mix them up is refused."""

    listed = ((0, 1), (2, 0), (0, 1), (3, 0))
    ids = (0, 1, 2, -1)

    @pytest.mark.parametrize("options", [{}, {"default": 0, "duplicates": "sum"}])
    def test_each_meets_its_distance(self, options):
        lookup = (1, 0, 2, -1, -2)
        parallel, near = edges(self.listed, self.ids, 3, **options), distances(lookup=lookup)

        def met(rule, first):
            """List (key, query, id) of every edge that still attends."""
            out = []
            for (key, query), id_ in zip(self.listed, self.ids, strict=True):
                code = lookup[min(max(key - query + 1, 0), 4)]
                joined = one(rule, id_, code, 3, 3) if first else one(rule, code, id_, 3, 3)
                if joined != -2:
                    out.append((key, query, joined))
            return sorted(out)

        for rule, first in (("product", True), ("product", False), ("restrict", True)):
            got = RULES[rule](*((parallel, near) if first else (near, parallel)))
            assert isinstance(got, EdgeLabels)
            assert got.duplicates == parallel.duplicates
            assert sorted(zip(*got.edge_index.tolist(), got.ids.tolist(), strict=True)) == met(rule, first)

    def test_refused_where_they_would_mix(self):
        alone = edges(self.listed, self.ids, 3)
        summed = edges(self.listed, self.ids, 3, default=0, duplicates="sum")
        single = edges([(0, 1)], [0], 1)
        near, dense = distances(), distances().dense()
        for parallel in (alone, summed, edges([(1, 1)], [0], 3, default=summed)):
            for rule, other in itertools.product(RULES.values(), (single, dense)):
                with pytest.raises(NotImplementedError, match="parallel edges give a pair several labels"):
                    rule(parallel, other)
                with pytest.raises(NotImplementedError, match="parallel edges give a pair several labels"):
                    rule(other, parallel)
            with pytest.raises(
                NotImplementedError, match=r"first_of \(a \| b\): parallel edges .* with DistanceLabels here"
            ):
                first_of(parallel, near)
            with pytest.raises(NotImplementedError, match=r"first_of \(a \| b\): parallel edges"):
                first_of(near, parallel)
            with pytest.raises(NotImplementedError, match=r"restrict \(a & b\): parallel edges"):
                restrict(near, parallel)
        packed = edges(self.listed, self.ids, 3, ptr=torch.tensor([0, 4]))
        with pytest.raises(NotImplementedError, match=r"product \(a \* b\): parallel edges .* with BlockLabels here"):
            product(packed, BlockLabels(torch.zeros(16, dtype=torch.int64), 1, torch.tensor([0, 4])))


def test_operators():
    a, b = DistanceLabels(3, lookup=[0, 1, -1], left=1), DenseLabels(torch.tensor([[0, 1, -1]] * 3), 2)
    assert a * b == product(a, b) and a | b == first_of(a, b) and a & b == restrict(a, b) and a + b == total(a, b)
    with pytest.raises(TypeError, match="must be Labels, got int"):
        _ = a + 3
