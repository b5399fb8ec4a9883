"""Gather and scatter of every kind of tile against loops over the pairs."""

from __future__ import annotations

import pytest
import torch

from relgraph.impl.chunked.tiles import DistanceTile, IdTile, Stripe, UniformTile
from tests.cases import F64

pytestmark = pytest.mark.usefixtures("poisoned")

COLUMNS = 6
SHAPES = [(1, 1), (1, 5), (5, 1), (4, 7), (7, 4), (6, 6)]


def stripe(first, columns):
    return Stripe.of(first, columns, lambda: torch.tensor(columns))


def plain(rows, keys):
    return UniformTile(0, keys, 2), torch.full((rows, keys), 2)


def written(rows, keys):
    columns = torch.randint(0, COLUMNS, (rows, keys))
    return IdTile(0, keys, columns[None]), columns


def by_distance(*runs):
    """A tile whose distances take turns through ``runs``, one stripe each: an int, or a list of columns."""

    def make(rows, keys):
        count, at, turn = rows + keys - 1, 0, 0
        stripes, by_distance = [], []
        while at < count:
            run = runs[turn % len(runs)]
            length = min(2 if isinstance(run, int) else len(run), count - at)
            one = isinstance(run, int)
            stripes.append(Stripe(at, at + length, run) if one else stripe(at, run[:length]))
            by_distance += [run] * length if isinstance(run, int) else run[:length]
            at, turn = at + length, turn + 1
        columns = [[by_distance[j - i + rows - 1] for j in range(keys)] for i in range(rows)]
        return DistanceTile(0, keys, stripes), torch.tensor(columns)

    return make


KINDS = {
    "plain": plain,
    "written": written,
    "one stripe": by_distance(3),
    "clipped": by_distance(0, [1, 2, 3, 4], 5),
    "scattered": by_distance([4, 0, 0, 5], 1),
}
SIDES = [(True, False), (False, True), (True, True)]


def tables(rows, keys, sides):
    wanted = zip((rows, keys), sides, strict=True)
    return [torch.randn(2, 3, n, COLUMNS, dtype=F64) if there else None for n, there in wanted]


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_spread(kind, shape, sides, add):
    tile, columns = KINDS[kind](*shape)
    by_query, by_key = tables(shape[0], shape[1], sides)
    whole = torch.randn(2, 3, shape[0], shape[1] + 3, dtype=F64)  # the tile's piece lies within a wider buffer
    wanted = whole.clone()
    for i in range(shape[0]):
        for j in range(shape[1]):
            if by_query is not None:
                wanted[..., i, j + 1] = by_query[..., i, columns[i, j]] + (wanted[..., i, j + 1] if add else 0.0)
            if by_key is not None:
                wanted[..., i, j + 1] += by_key[..., j, columns[i, j]]
    tile.gather(whole[..., 1 : shape[1] + 1], by_query, by_key, add=add)
    torch.testing.assert_close(whole, wanted)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_collect(kind, shape, sides):
    tile, columns = KINDS[kind](*shape)
    by_query, by_key = tables(shape[0], shape[1], sides)
    whole = torch.randn(2, 3, shape[0], shape[1] + 3, dtype=F64)
    wanted = [None if x is None else x.clone() for x in (by_query, by_key)]
    for i in range(shape[0]):
        for j in range(shape[1]):
            for table, at in zip(wanted, (i, j), strict=True):
                if table is not None:
                    table[..., at, columns[i, j]] += whole[..., i, j + 1]
    tile.scatter(whole[..., 1 : shape[1] + 1], by_query, by_key)
    for got, want in zip((by_query, by_key), wanted, strict=True):
        if want is not None:
            torch.testing.assert_close(got, want)


def test_columns_in_a_row_are_a_slice():
    assert stripe(2, [3, 4, 5]) == (2, 5, slice(3, 6))
    assert stripe(2, [3]) == (2, 3, slice(3, 4))
    first, stop, column = stripe(2, [5, 4])
    assert (first, stop) == (2, 4)
    assert isinstance(column, torch.Tensor)
    assert column.tolist() == [5, 4]
