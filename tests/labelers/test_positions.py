"""Labels of queries and keys at any positions: ``labeler.at``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import BucketedDistance, ClippedDistance, Grid, GridColumns, GridRows, Window
from relgraph.labels import DenseLabels

LABELERS = (
    ClippedDistance(3),
    ClippedDistance((0, 2)),
    BucketedDistance(8, 12),
    BucketedDistance(8, 12, bidirectional=False),
    BucketedDistance(16, 20, rule="deberta"),
    Window(2, 1),
    Window(),
    ClippedDistance(2) & Window(3),
)
GRIDS = (
    Grid((2, 1)),
    Grid(1, extra_tokens=2),
    GridRows(2),
    GridColumns(1),
)


def agree(got, wanted):
    for ours, theirs in zip(got.to_dense(), wanted.to_dense(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("labeler", LABELERS, ids=repr)
def test_positions_in_order_give_the_labels_of_lengths(labeler):
    for q_len, k_len in ((0, 0), (0, 3), (1, 1), (5, 9), (30, 30)):
        got = labeler.at(torch.arange(q_len), torch.arange(k_len))
        assert isinstance(got, DenseLabels)
        agree(got, labeler(q_len, k_len))
    agree(labeler.at(torch.arange(6) + 4, torch.arange(9)), labeler(6, 9, q_offset=4))


@pytest.mark.parametrize("labeler", LABELERS, ids=repr)
@given(data=st.data())
def test_scattered_positions_look_up_their_distance(labeler, data):
    positions = st.lists(st.integers(-40, 40), max_size=5)
    query, key = data.draw(positions), data.draw(positions)
    ids, attend = labeler.at(torch.tensor(query, dtype=torch.int64), torch.tensor(key, dtype=torch.int64)).to_dense()
    assert ids.shape == (1, len(query), len(key))
    for i, there in enumerate(query):
        for j, here in enumerate(key):
            wanted, attends = labeler(1, 1, q_offset=there - here).to_dense()
            assert ids[0, i, j] == wanted[0, 0, 0]
            assert attend[0, i, j] == attends[0, 0, 0]


@pytest.mark.parametrize("labeler", GRIDS, ids=repr)
def test_all_cells_of_a_grid_give_its_labels(labeler):
    for height, width in ((3, 4), (1, 1), (0, 2), (9, 2)):
        cells = torch.tensor([[r, c] for r in range(height) for c in range(width)], dtype=torch.int64).view(-1, 2)
        agree(labeler.at(cells), labeler(height, width))
        agree(labeler.at(cells[None] - 7, cells - 7), labeler(height, width))


@given(st.data())
def test_scattered_cells_against_a_loop(data):
    place = st.tuples(st.integers(-9, 9), st.integers(-9, 9))
    query, key = data.draw(st.lists(place, max_size=4)), data.draw(st.lists(place, max_size=4))
    grid = Grid((3, 1))
    at = [torch.tensor(places, dtype=torch.int64).view(1, -1, 2) for places in (query, key)]
    ids = grid.at(*at).to_dense()[0]
    for i, (row, column) in enumerate(query):
        for j, (other_row, other_column) in enumerate(key):
            down, right = other_row - row, other_column - column
            wanted = (min(max(down, -3), 3), min(max(right, -1), 1))
            assert grid.names[ids[0, i, j]] == f"({wanted[0]}, {wanted[1]})"


def test_far_cells_do_not_overflow():
    far = torch.tensor([[-(2**31), -(2**31)], [2**31, 2**31]])
    assert Grid(1).at(far).to_dense()[0].tolist() == [[[4, 8], [0, 4]]]


def test_composed_labelers_ask_their_parts():
    positions = torch.tensor([0, 4, 1])
    product = ClippedDistance(1) * ClippedDistance((0, 2))
    agree(
        product.at(positions),
        rg.labels.product(ClippedDistance(1).at(positions), ClippedDistance((0, 2)).at(positions)),
    )
    both = GridRows(1) + GridColumns(2)
    cells = torch.tensor([[0, 1], [5, 5]])
    assert both.at(cells) == rg.labels.total(GridRows(1).at(cells), GridColumns(2).at(cells))
    with pytest.raises(TypeError, match=r"every part must be a labeler by distance or of a grid .* got Segments"):
        (ClippedDistance(1) * rg.Segments(2)).at(positions)


def test_refuses_bad_positions():
    labeler, grid = ClippedDistance(2), Grid(1)
    with pytest.raises(ValueError, match=r"k_positions must have 1 or 2 dimensions, got shape \[\]"):
        labeler.at(torch.arange(2), torch.tensor(1))
    with pytest.raises(ValueError, match="k_positions must have 3 batch rows like q_positions, got 2"):
        labeler.at(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=r"q_positions must lie in \[-2\*\*31, 2\*\*31\], got values from 0 to 9999999999"
    ):
        labeler.at(torch.tensor([0, 9999999999]))
    with pytest.raises(ValueError, match="q_positions and k_positions must be at most 16,777,216 if pairs are written"):
        labeler.at(torch.zeros(1, dtype=torch.int64).expand(2**25))
    with pytest.raises(ValueError, match=r"q_positions must have shape \[N, 2\] or \[B, N, 2\], got \[4, 3\]"):
        grid.at(torch.zeros(4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="q_positions must have 2 or 3 dimensions"):
        grid.at(torch.arange(3))
