"""Relative positions on a grid."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import Grid, GridColumns, GridRows

from .conformance import Case, LabelerSuite


class TestConformance(LabelerSuite):
    cases = (
        Case(Grid(1), (2, 3)),
        Case(Grid((2, 0)), (3, 1)),
        Case(Grid((7, 7)), (4, 4)),
        Case(Grid(0), (0, 3)),
        Case(Grid((2, 1), extra_tokens=1), (2, 3)),
        Case(Grid(1, extra_tokens=3), (0, 0)),
        Case(Grid(2, beyond="error"), (3, 2)),
        Case(GridRows(2), (3, 2)),
        Case(GridColumns(2), (2, 3)),
        Case(GridRows(1) + GridColumns(2), (3, 4)),
        Case(GridRows(1) * GridColumns(2), (3, 4)),
    )


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
def test_against_a_loop(height, width, row_clip, col_clip):
    grid = Grid((row_clip, col_clip))
    ids, attend = grid(height, width).to_dense()
    rows, _ = GridRows(row_clip)(height, width).to_dense()
    cols, _ = GridColumns(col_clip)(height, width).to_dense()
    assert ids.shape == (1, height * width, height * width)
    assert bool(attend.all())
    for i in range(height * width):
        for j in range(height * width):
            row = min(max(j // width - i // width, -row_clip), row_clip)
            col = min(max(j % width - i % width, -col_clip), col_clip)
            assert grid.names[ids[0, i, j]] == f"({row}, {col})"
            assert GridRows(row_clip).names[rows[0, i, j]] == f"row {row}"
            assert GridColumns(col_clip).names[cols[0, i, j]] == f"column {col}"


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_extra_tokens_come_first_and_have_the_last_three_labels(height, width, extra):
    grid, plain = Grid((1, 2), extra_tokens=extra), Grid((1, 2))
    assert grid.names == (*plain.names, "extra→cell", "cell→extra", "extra→extra")
    ids = grid(height, width).to_dense()[0][0]
    assert torch.equal(ids[extra:, extra:], plain(height, width).to_dense()[0][0])
    assert bool((ids[:extra, extra:] == 15).all())
    assert bool((ids[extra:, :extra] == 16).all())
    assert bool((ids[:extra, :extra] == 17).all())


def test_every_difference_of_its_grid_has_its_own_label_where_farther_ones_are_refused():
    grid = Grid((2, 3), beyond="error")
    assert grid(3, 4) == Grid((2, 3))(3, 4)
    assert set(grid(3, 4).ids.flatten().tolist()) == set(range(35))
    assert grid(1, 1).ids.tolist() == [[[17]]]
    assert grid(0, 0).ids.shape == (1, 0, 0)
    with pytest.raises(
        ValueError, match=r"height and width must be at most 2 rows apart for Grid\(\(2, 3\), beyond='error'\)"
    ):
        grid(4, 4)
    with pytest.raises(ValueError, match=r"height and width must be at most 3 columns apart .* got 4"):
        grid(3, 5)
    with pytest.raises(ValueError, match="q_positions and k_positions must be at most 2 rows apart .* got 3"):
        grid.at(torch.tensor([[0, 0], [3, 0]]))


def test_stores_the_smallest_type():
    assert Grid(5)(2, 2).ids.dtype == torch.int8
    assert Grid(7)(9, 9).ids.dtype == torch.int16
    ids, _ = Grid(7)(9, 9).to_dense()
    assert (int(ids.min()), int(ids.max())) == (0, 224)
