"""Relations between cells of a database, against a loop over pairs."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import CellRelations, Cells

TIMES = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan])


@st.composite
def cells(draw):
    """Few rows and columns, so that all relations occur, and rows without a cell or a time."""
    rows = draw(st.integers(1, 5))
    numbers = st.integers(0, rows - 1)
    places = draw(st.lists(st.tuples(numbers, st.integers(0, 3)), max_size=9))
    links = draw(st.lists(st.tuples(numbers, numbers), max_size=5))
    times = torch.tensor(draw(st.lists(TIMES, min_size=rows, max_size=rows))) if draw(st.booleans()) else None
    return Cells(
        torch.tensor([row for row, _ in places], dtype=torch.int64),
        torch.tensor([column for _, column in places], dtype=torch.int64),
        torch.tensor(links, dtype=torch.int64).reshape(-1, 2).T,
        times,
        draw(st.floats(-1.0, 4.0)) if times is not None and draw(st.booleans()) else None,
    )


def name_of(sample, time, i, j):
    """The name of the label of query cell i and key cell j; None where the key is not attended to."""
    query, key = int(sample.rows[i]), int(sample.rows[j])
    links = [tuple(link) for link in sample.parents.T.tolist()]
    times = [math.nan] * 5 if sample.times is None else sample.times.tolist()
    if sample.until is not None and times[key] > sample.until:
        return None
    if query == key:
        return "same row"
    name = "other"
    if sample.columns[i] == sample.columns[j]:
        name = "same column"
    if (key, query) in links:
        name = "child row"
    if (query, key) in links:
        name = "parent row"
    when = "earlier" if times[key] < times[query] else "later" if times[key] > times[query] else "same time"
    return f"{name}, {when}" if time else name


@given(cells(), st.booleans(), st.sampled_from(["all", "related"]))
def test_each_pair(sample, time, attend):
    labeler = CellRelations(time=time, attend=attend)
    ids, seen = (x[0] for x in labeler(sample).to_dense())
    assert ids.shape == (len(sample), len(sample))
    for i in range(len(sample)):
        for j in range(len(sample)):
            wanted = name_of(sample, time, i, j)
            if wanted is None or (wanted.startswith("other") and attend == "related"):
                assert not seen[i, j]
            else:
                assert seen[i, j] and labeler.names[ids[i, j]] == wanted


@pytest.mark.parametrize("second", [1, 10**9])  # seconds and nanoseconds since 1970
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_little_later_is_later(second, dtype):
    now = 1_700_000_000 * second
    times = torch.tensor([now, now + 30 * second], dtype=dtype)
    rows = torch.tensor([0, 1])
    _, seen = CellRelations()(Cells(rows, torch.zeros(2, dtype=torch.int64), times=times, until=now)).to_dense()
    assert seen[0].tolist() == [[True, False], [True, False]]


@given(st.lists(cells(), min_size=1, max_size=3))
def test_several_samples_are_packed(samples):
    labeler = CellRelations(time=True)
    ids, seen = labeler(samples).to_dense()
    ptr = [0, *accumulate(map(len, samples))]
    assert ids.shape[1] == ptr[-1]
    for sample, (begin, end) in zip(samples, pairwise(ptr), strict=True):
        alone = labeler(sample).to_dense()
        assert torch.equal(ids[0, begin:end, begin:end], alone[0][0])
        assert torch.equal(seen[0, begin:end, begin:end], alone[1][0])
        assert not seen[0, begin:end, end:].any() and not seen[0, end:, begin:end].any()


def test_numbers_that_do_not_fit_are_refused():
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="columns must have one number per cell, as rows has 2, got 3"):
        Cells(rows, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"parents must have shape \[2, P\].*got \[1, 2\]"):
        Cells(rows, rows, rows[None])
    with pytest.raises(ValueError, match="times must have one number for each of 2 rows, got 1"):
        Cells(rows, rows, times=torch.zeros(1))
    with pytest.raises(ValueError, match="until needs times.*got 1.0 and no times"):
        Cells(rows, rows, until=1.0)
    with pytest.raises(ValueError, match="rows must be numbered from 0, got -1"):
        Cells(rows - 1, rows)
    with pytest.raises(TypeError, match=r"cells\[0\] must be a Cells, got int"):
        CellRelations()([3])  # pyright: ignore[reportArgumentType]


def test_a_layer_takes_them():
    labeler = CellRelations()
    layer = rg.RelationAttention(8, 2, labeler=labeler)
    sample = Cells(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]))
    assert layer(torch.randn(1, 3, 8), labels=sample).shape == (1, 3, 8)
