"""Counts of pairs by label agree with every pair written out, and print as a table."""

from __future__ import annotations

import random
from collections import Counter
from textwrap import dedent

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labels import DenseLabels, EdgeLabels, LabelCounts, Labels, SumLabels
from tests.cases import KINDS, distance
from tests.labelers.zoo import PACKED, PADDED, make, packed_setting, padded_setting


def several(labels: Labels, row: int, i: int, j: int) -> list[int]:
    """Find the codes of one pair by a loop over all edges, one for each edge that counts."""
    if not isinstance(labels, EdgeLabels):
        ids, attend = labels.to_dense()
        row = row if ids.shape[0] > 1 else 0
        return [int(ids[row, i, j]) if attend[row, i, j] else -2]
    found = [
        int(labels.ids[e])
        for e, (key, query) in enumerate(labels.edge_index.T.tolist())
        if (key, query) == (j, i) and (labels.batch is None or int(labels.batch[e]) == row)
    ]
    if not found:
        if isinstance(labels.default, Labels):
            return several(labels.default, row, i, j)
        return [-2 if labels.default is None else labels.default]
    return found[:1] if labels.default is not None and labels.duplicates == "first" else found


def graph(ptr, position: int) -> int:
    return 0 if ptr is None else sum(int(border) <= position for border in ptr[1:])


def counted_by_hand(labels: Labels) -> tuple[Counter, int]:
    pairs = [
        (row, i, j)
        for row in range(labels.batch_size)
        for i in range(labels.q_len)
        for j in range(labels.k_len)
        if graph(labels.q_ptr, i) == graph(labels.k_ptr, j)
    ]
    return Counter(code for pair in pairs for code in several(labels, *pair)), len(pairs)


def check(labels: Labels):
    told = labels.describe()
    assert isinstance(told, LabelCounts)
    wanted, pairs = counted_by_hand(labels)
    assert told.counts == {label: wanted[label] for label in range(labels.num_labels)}
    assert (told.unlabeled, told.not_attending, told.pairs) == (wanted[-1], wanted[-2], pairs)


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("none", "sum")])
def test_counts_of_every_kind(kind, size):
    check(KINDS[kind](size))


@pytest.mark.parametrize("kind", PADDED)
@given(seed=st.integers(0, 10**6))
def test_counts_of_padded_labels(kind, seed):
    rng = random.Random(seed)
    check(make(kind, padded_setting(rng), rng))


@pytest.mark.parametrize("kind", PACKED)
@given(seed=st.integers(0, 10**6))
def test_counts_of_packed_labels(kind, seed):
    rng = random.Random(seed)
    check(make(kind, packed_setting(rng), rng))


@given(seed=st.integers(0, 10**6), under=st.sampled_from(["-1", "2", "distance", "sum", "first"]))
def test_counts_of_parallel_edges_that_add_up(seed, under):
    torch.manual_seed(seed)

    def edges(duplicates, default):
        index = torch.randint(0, 4, (2, 9))
        return EdgeLabels(index, torch.randint(-1, 3, (9,)), 5, q_len=4, default=default, duplicates=duplicates)

    default = {
        "-1": lambda: -1,
        "2": lambda: 2,
        "distance": lambda: distance(4),
        "sum": lambda: edges("sum", distance(4)),
        "first": lambda: edges("first", 3),
    }[under]()
    check(edges("sum", default))
    check(edges("first", default))


@pytest.mark.parametrize(
    "labels",
    [
        distance(0, ptr=torch.tensor([0])),
        distance(3, q_offset=torch.zeros(0, dtype=torch.long)),
        DenseLabels(torch.zeros(0, 3, 3, dtype=torch.long), 2),
        EdgeLabels(
            torch.zeros(2, 0, dtype=torch.long),
            torch.zeros(0, dtype=torch.long),
            2,
            q_len=0,
            default=1,
            ptr=torch.tensor([0]),
        ),
    ],
)
def test_no_graphs_and_no_rows(labels):
    check(labels)
    assert labels.describe().pairs == 0


def test_a_million_positions_are_counted_by_arithmetic():
    n = 1_000_000
    under = distance(n, reach=1)
    told = under.describe()
    assert told.counts == {0: (n * n - n) // 2, 1: n, 2: (n * n - n) // 2}
    edges = EdgeLabels(torch.tensor([[0, 5, n - 1], [1, 5, 0]]), torch.tensor([3, 3, -1]), 4, q_len=n, default=under)
    over = edges.describe()
    assert over.counts == {0: told.counts[0] - 1, 1: n - 1, 2: told.counts[2] - 1, 3: 2}
    assert (over.unlabeled, over.not_attending, over.pairs) == (1, 0, n * n)
    alone = EdgeLabels(edges.edge_index, edges.ids, 4, q_len=n).describe()
    assert alone.counts == {0: 0, 1: 0, 2: 0, 3: 2}
    assert alone.not_attending == n * n - 3


def test_each_part_of_a_sum_is_counted():
    labels = SumLabels(distance(3, reach=1), DenseLabels(torch.zeros(3, 3, dtype=torch.long), 1))
    told = labels.describe((["before", "here", "after"], ["all"]))
    assert told.counts == ({"before": 3, "here": 3, "after": 3}, {"all": 9})
    assert labels.describe().counts == ({0: 3, 1: 3, 2: 3}, {0: 9})
    assert str(told) == dedent("""\
        part 0
        id  name    pairs   share
         0  before      3  33.3 %
         1  here        3  33.3 %
         2  after       3  33.3 %
        3 labels, 9 pairs
        part 1
        id  name  pairs    share
         0  all       9  100.0 %
        1 label, 9 pairs""")


def test_what_is_printed():
    labels = EdgeLabels(torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([0, 1, -1]), 2, q_len=30)
    assert str(labels.describe(["a", "b⁻¹"])) == dedent("""\
        id  name                     pairs   share
         0  a                            1   0.1 %
         1  b⁻¹                          1   0.1 %
        -1  attends without a label      1   0.1 %
            does not attend            898  99.8 %
        2 labels, 900 pairs""")
    assert repr(distance(2000, reach=1).describe()) == dedent("""\
        id      pairs   share
         0  1,999,000  50.0 %
         1      2,000  <0.1 %
         2  1,999,000  50.0 %
        3 labels, 4,000,000 pairs""")


def test_what_is_printed_of_nothing():
    empty = DenseLabels(torch.zeros(0, 3, dtype=torch.long), 1)
    assert str(empty.describe()) == "id  pairs  share\n 0      0      -\n1 label, 0 pairs"
    assert str(DenseLabels(torch.zeros(0, 3, dtype=torch.long), 0).describe()) == "0 labels, 0 pairs"
    one = DenseLabels(torch.zeros(1, 1, dtype=torch.long), 1)
    assert str(one.describe()) == "id  pairs    share\n 0      1  100.0 %\n1 label, 1 pair"


def test_long_tables_show_what_most_pairs_carry():
    ids = torch.cat([torch.arange(60), torch.arange(20, 60)]).view(1, 100)
    lines = str(DenseLabels(ids, 1000).describe()).splitlines()
    assert len(lines) == 42
    assert lines[1] == "20      2  2.0 %"
    assert lines[40] == "59      2  2.0 %"
    assert lines[41] == "1,000 labels, 100 pairs; not shown: 960 labels, carried by 20 pairs"


def test_names_that_do_not_fit():
    labels = distance(3, reach=1)
    with pytest.raises(ValueError, match="names must be 3 different strings, got 2, 2 different"):
        labels.describe(["a", "b"])
    with pytest.raises(ValueError, match="names must be 3 different strings, got 3, 2 different"):
        labels.describe(["a", "b", "a"])
    both = SumLabels(labels, labels)
    with pytest.raises(ValueError, match="names must hold one sequence of names per part of the sum, 2, got str"):
        both.describe("ab")
    with pytest.raises(ValueError, match="names must hold one sequence of names per part of the sum, 2, got 1"):
        both.describe([["a", "b", "c"]])
