"""Tile maps: every pair found again exactly once with its column, in both directions, and nothing else."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from relgraph.impl.triton import tile_ids
from relgraph.impl.triton.tile_map import FIELDS, tile_map
from relgraph.impl.triton.virtual import MAX_BAND, is_affine, virtual
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, SumLabels
from relgraph.labels.memory import Memory
from relgraph.plan import dense_ids, distances, encode, inside_graphs, lower, plain
from tests.cases import KINDS, distance, edges, packed_edges

CPU = torch.device("cpu")
PARALLEL = ("edges only parallel", "edges sum", "edges sum batch")
SINGLE = [kind for kind in KINDS if kind not in PARALLEL]
SIZES = (2, 4, 8, 16)


def map_of(plan, rows, keys, *, causal=None, memo=None, **options):
    return tile_map(plan, rows, keys, causal=causal, device=CPU, memo=Memory() if memo is None else memo, **options)


def columns_of(plan, causal):
    """Every pair's column, ``[maps, parts, N_q, N_k]``; C where it does not attend: the oracle."""
    starts = [sum(plan.num_labels[:p]) + p for p in range(len(plan.parts))]
    nowhere = plan.total_labels + len(plan.parts)
    ids = [dense_ids(plan, part, CPU) for part in plan.parts]
    allowed = torch.ones(1, plan.q_len, plan.k_len, dtype=torch.bool)
    for part in ids:
        allowed = allowed & (part != -2)
    if (inside := inside_graphs(plan)) is not None:
        allowed = allowed & inside
    if causal is not None:
        allowed = allowed & (distances(plan, causal, CPU) <= 0)
    maps = allowed.shape[0]
    found = []
    for part, start, size in zip(ids, starts, plan.num_labels, strict=True):
        column = torch.where(part == -1, size, part) + start
        found.append(torch.where(allowed, column, nowhere).expand(maps, -1, -1))
    return torch.stack(found, 1)


def borders(ptr, length):
    return [(0, length)] if ptr is None else list(zip(ptr.tolist(), ptr.tolist()[1:], strict=False))


def tiles_of(plan, rows, keys):
    """Every tile by plain loops: (i0, i1, j0, j1)."""
    q, k = borders(plan.q_ptr, plan.q_len), borders(plan.k_ptr, plan.k_len)
    for (q0, q1), (k0, k1) in zip(q, k, strict=True):
        for i in range(q0, q1, rows):
            for j in range(k0, k1, keys):
                yield i, min(i + rows, q1), j, min(j + keys, k1)


def graph_offset(offset, m, graph, packed):
    if not isinstance(offset, torch.Tensor):
        return offset
    flat = offset.reshape(-1).tolist()
    return flat[0 if len(flat) == 1 else graph if packed else m]


def check(plan, rows, keys, *, causal=None, memo=None):
    """The map tells of every tile what the oracle says, in both directions."""
    truth = columns_of(plan, causal)
    nowhere = plan.total_labels + len(plan.parts)
    full, mixed = {}, {}
    for m in range(truth.shape[0]):
        for i0, i1, j0, j1 in tiles_of(plan, rows, keys):
            tile = truth[m, :, i0:i1, j0:j1]
            if (tile == nowhere).all():
                continue
            flat = tile.flatten(1)
            whole = i1 - i0 == rows and j1 - j0 == keys
            if whole and (flat == flat[:, :1]).all() and (flat[:, 0] != nowhere).all():
                full[m, i0, j0] = tuple(flat[:, 0].tolist())
            else:
                padded = torch.full((len(plan.parts), rows, keys), nowhere)
                padded[:, : i1 - i0, : j1 - j0] = tile
                mixed[m, i0, j0] = padded
    slots = set()
    for transposed in (False, True):
        made = map_of(plan, rows, keys, causal=causal, transposed=transposed, memo=memo)
        slots.add(None if made.ids is None else made.ids.data_ptr())
        got_full, got_mixed = read(plan, made, rows, keys, causal, transposed)
        if made.blocks.shape[0] == 1:  # one map serves every batch row
            spread = range(truth.shape[0])
            got_full = {(m, i, j): c for (_, i, j), c in got_full.items() for m in spread}
            got_mixed = {(m, i, j): c for (_, i, j), c in got_mixed.items() for m in spread}
        assert got_full == full
        assert got_mixed.keys() == mixed.keys()
        assert all(torch.equal(got_mixed[key], mixed[key]) for key in mixed)
        if made.ids is not None:
            assert made.ids.shape[0] == sum(key[0] < made.blocks.shape[0] for key in mixed)
    assert memo is None or len(slots) == 1
    return full, mixed


def read(plan, made, rows, keys, causal, transposed):
    """Tiles that a kernel would visit: {(map, i0, j0): columns} of the full ones, and of the mixed ones."""
    full, mixed = {}, {}
    own_size, other_size = (keys, rows) if transposed else (rows, keys)
    covered = set()
    for m, blocks in enumerate(made.blocks.tolist()):
        for line in blocks:
            f = dict(zip(FIELDS, line, strict=True))
            if f["own_start"] == f["own_stop"]:
                assert f["tile_begin"] == f["tile_end"]
                continue
            covered |= {(m, p) for p in range(f["own_start"], f["own_stop"])}
            assert f["own_stop"] - f["own_start"] <= own_size
            check_line(plan, f, m, causal, transposed)
            previous = None
            for start, stop, *columns in made.runs[f["run_begin"] : f["run_end"]].tolist():
                assert (stop - start) % other_size == 0
                assert stop <= f["other_stop"] or start == stop
                if made.ids is None:
                    columns = [real(plan, columns[0])]
                else:
                    assert start < stop
                    assert previous != (start, columns), "runs that touch and agree are one"
                previous = (stop, columns)
                for other in range(start, stop, other_size):
                    key = (m, other, f["own_start"]) if transposed else (m, f["own_start"], other)
                    assert key not in full
                    full[key] = tuple(columns)
            for other, slot in made.tiles[f["tile_begin"] : f["tile_end"]].tolist():
                key = (m, other, f["own_start"]) if transposed else (m, f["own_start"], other)
                assert key not in mixed and key not in full
                if slot < 0:
                    mixed[key] = by_distance(plan, rows, keys, f, key, transposed)
                else:
                    mixed[key] = made.ids[slot].long()
    assert len(covered) == made.blocks.shape[0] * (plan.k_len if transposed else plan.q_len)
    return full, mixed


def check_line(plan, f, m, causal, transposed):
    """Shift, limit and the end of the other side, from the borders."""
    packed = plan.q_ptr is not None
    pairs = list(zip(borders(plan.q_ptr, plan.q_len), borders(plan.k_ptr, plan.k_len), strict=True))
    graph = next(g for g, sides in enumerate(pairs) if sides[transposed][0] <= f["own_start"] < sides[transposed][1])
    (q0, q1), (k0, k1) = pairs[graph]
    assert f["other_stop"] == (q1 if transposed else k1)
    assert f["shift"] == k0 - q0 + graph_offset(plan.parts[0].offset, m, graph, packed)
    limit = 2**30 if causal is None else k0 - q0 + graph_offset(causal, m, graph, packed)
    assert f["limit"] == limit


def real(plan, column):
    """The plan's column of a virtual one."""
    column = virtual(plan.parts[0]).columns[column]
    return plan.total_labels + 1 if column == -2 else column


def by_distance(plan, rows, keys, f, key, transposed):
    """What a kernel makes of a tile by distance, ``[1, BM, BN]``."""
    low, width, _ = virtual(plan.parts[0])
    _, i0, j0 = key
    out = torch.full((1, rows, keys), plan.total_labels + 1)
    i_stop, j_stop = (f["other_stop"], f["own_stop"]) if transposed else (f["own_stop"], f["other_stop"])
    for i in range(i0, min(i0 + rows, i_stop)):
        for j in range(j0, min(j0 + keys, j_stop)):
            if j - i <= f["limit"]:
                d = j - i - f["shift"]
                out[0, i - i0, j - j0] = real(plan, min(max(d - low + 1, 0), width + 1))
    return out


def plan_of(kind, n):
    labels = KINDS[kind](n)
    return plain(n, n) if labels is None else lower(labels)


@pytest.mark.parametrize("n", [0, 23])
@pytest.mark.parametrize("kind", SINGLE)
def test_kinds(kind, n):
    plan = plan_of(kind, n)
    check(plan, 4, 2, memo=Memory())
    check(plan, 2, 8, causal=plan.k_len - plan.q_len)


@st.composite
def packed_borders(draw, most=5):
    """Borders of queries and of keys, of as many graphs, some of them empty."""
    graphs = draw(st.integers(0, most))
    q, k = (draw(st.lists(st.integers(0, 11), min_size=graphs, max_size=graphs)) for _ in range(2))
    q_ptr, k_ptr = (torch.tensor([0, *sizes]).cumsum(0) for sizes in (q, k))
    return q_ptr, (q_ptr if draw(st.booleans()) else k_ptr)


def draw_offset(data, several):
    """An offset: none, an int, a scalar tensor or one each."""
    one = st.integers(-5, 9)
    sort = data.draw(st.sampled_from(["int", "scalar", "each"]))
    if sort == "int":
        return data.draw(one)
    if sort == "scalar":
        return torch.tensor(data.draw(one))
    return torch.tensor(data.draw(st.lists(one, min_size=several, max_size=several)), dtype=torch.int64)


LOOKUPS = st.one_of(
    st.lists(st.integers(-2, 2), min_size=1, max_size=9),
    st.lists(st.sampled_from([-2, 0]), min_size=1, max_size=30),  # holes wider than a tile
)


@given(
    data=st.data(),
    ptrs=st.one_of(packed_borders(), st.tuples(st.integers(0, 30), st.integers(0, 30))),
    lookup=LOOKUPS,
    rows=st.sampled_from((1, *SIZES)),
    keys=st.sampled_from((1, *SIZES)),
)
def test_any_lookup(data, ptrs, lookup, rows, keys):
    packed = isinstance(ptrs[0], torch.Tensor)
    q_len, k_len = (int(ptr[-1]) for ptr in ptrs) if packed else ptrs
    several = ptrs[0].shape[0] - 1 if packed else 2  # graphs, or batch rows
    labels = DistanceLabels(
        q_len, k_len, lookup=lookup, left=data.draw(st.integers(0, len(lookup) - 1)), num_labels=3,
        q_offset=draw_offset(data, several), **(dict(zip(("q_ptr", "ptr"), ptrs, strict=True)) if packed else {}),
    )  # fmt: skip
    causal = draw_offset(data, several) if data.draw(st.booleans()) else None
    assert is_affine(lower(labels))
    check(lower(labels), rows, keys, causal=causal)


def blocky(generator, *shape):
    """Ids that are one number over large rectangles, with a few exceptions."""
    coarse = torch.randint(-2, 2, (*shape[:-2], 3, 3), generator=generator)
    at = [torch.arange(size) * 3 // max(size, 1) for size in shape[-2:]]
    ids = coarse[..., at[0][:, None], at[1]]
    return torch.where(torch.rand(shape, generator=generator) < 0.02, 1, ids)


@given(
    data=st.data(),
    q_len=st.integers(0, 40),
    k_len=st.integers(0, 40),
    batch=st.sampled_from([1, 2]),
    rows=st.sampled_from(SIZES),
    keys=st.sampled_from(SIZES),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_dense_ids_with_large_patches_and_sums_of_them(data, q_len, k_len, batch, rows, keys, causal, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = blocky(generator, batch, q_len, k_len)
    dense = DenseLabels(ids.clamp(min=-1), 2, attend=ids > -2)
    offset = draw_offset(data, 2) if causal else None
    check(lower(dense), rows, keys, causal=offset, memo=Memory())
    index, listed, _ = edges(q_len, k_len, count=5, generator=generator)
    parts = [
        dense,
        EdgeLabels(index, listed, 3, q_len=q_len, k_len=k_len, default=1),
        EdgeLabels(index, listed, 3, q_len=q_len, k_len=k_len, default=distance(q_len, k_len, reach=1)),
        DistanceLabels(q_len, k_len, lookup=[-2, -1, 0, 1, 1, -2], left=3, q_offset=torch.tensor([1, -3])),
        EdgeLabels(index, listed, 3, q_len=q_len, k_len=k_len),
    ]
    chosen = data.draw(st.lists(st.sampled_from(range(len(parts))), min_size=2, max_size=3))
    check(lower(SumLabels(*(parts[c] for c in chosen))), rows, keys, causal=offset, memo=Memory())


@given(
    data=st.data(), ptrs=packed_borders(), rows=st.sampled_from(SIZES), keys=st.sampled_from(SIZES),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_packed_ids(data, ptrs, rows, keys, seed):
    q_ptr, k_ptr = ptrs
    torch.manual_seed(seed)
    size = int((q_ptr.diff() * k_ptr.diff()).sum())
    ids = torch.where(torch.rand(size) < 0.1, 1, 0)
    block = BlockLabels(ids, 2, k_ptr, q_ptr=q_ptr, attend=torch.rand(size) > 0.02)
    causal = draw_offset(data, q_ptr.shape[0] - 1) if data.draw(st.booleans()) else None
    check(lower(block), rows, keys, causal=causal, memo=Memory())
    index, listed = packed_edges(q_ptr) if q_ptr is k_ptr and q_ptr.shape[0] > 1 else (torch.zeros(2, 0).long(),) * 2
    options = {"q_len": block.q_len, "k_len": block.k_len, "ptr": k_ptr, "q_ptr": q_ptr}
    for default in (block, 2, None):
        labels = EdgeLabels(index, listed.flatten(), 3, default=default, **options)
        check(lower(labels), rows, keys, causal=causal, memo=Memory())
        check(lower(SumLabels(labels, block)), rows, keys, causal=causal, memo=Memory())


@pytest.mark.parametrize(("kind", "pairs"), [("sum", 1), ("edges over distance packed", 100)])
def test_written_in_small_chunks(kind, pairs, monkeypatch):
    monkeypatch.setattr(tile_ids, "CHUNK_PAIRS", pairs)
    check(plan_of(kind, 17), 4, 4, causal=1, memo=Memory())
    check_sorted(plan_of(kind, 17), 4, 8)


def test_tiles_of_one_column_become_runs_wherever_it_comes_from():
    written_out = DenseLabels(torch.full((16, 16), 2), 3)
    like_default = EdgeLabels(torch.tensor([[3, 9], [5, 9]]), torch.tensor([1, 1]), 3, q_len=16, default=1)
    two = SumLabels(written_out, like_default)
    for labels, columns in ((written_out, [2]), (like_default, [1]), (two, [2, 5])):
        made = map_of(lower(labels), 4, 4)
        assert made.runs.tolist() == [[0, 16, *columns]] * 4
        assert made.tiles.shape == (0, 2)
        assert made.ids.shape == (0, len(columns), 4, 4)


def check_sorted(plan, rows, keys, causal=None, steps=2):
    """Order and bounds against plain loops, in both directions; each tile in this many steps."""
    columns = plan.total_labels + len(plan.parts)
    for transposed in (False, True):
        size = (rows if transposed else keys) // steps
        made = map_of(plan, rows, keys, causal=causal, sort=size, transposed=transposed)
        ids, order, bounds = (x.mT if transposed else x for x in (made.ids, made.order, made.bounds))
        assert order.dtype == bounds.dtype == torch.uint8
        assert order.shape == ids.shape
        slots, parts, lines, _ = ids.shape
        assert bounds.shape == (slots, parts, steps, lines, columns + 1)
        for at in itertools.product(range(slots), range(parts), range(steps), range(lines)):
            slot, part, number, line = at
            here = slice(number * size, (number + 1) * size)
            pairs = ids[slot, part, line, here].tolist()
            assert order[slot, part, line, here].tolist() == sorted(range(size), key=pairs.__getitem__)
            assert bounds[at].tolist() == [sum(column < c for column in pairs) for c in range(columns + 1)]
    unsorted = map_of(plan, rows, keys, causal=causal)
    assert unsorted.order is unsorted.bounds is None
    return made


@pytest.mark.parametrize(("kind", "steps"), [("dense batch", 2), ("sum", 1), ("edges over block", 2)])
def test_order_and_bounds(kind, steps):
    assert check_sorted(plan_of(kind, 21), 4, 8, causal=2, steps=steps).ids.shape[0] > 5


def test_order_and_bounds_of_many_labels():
    made = check_sorted(lower(DistanceLabels(13, lookup=range(600), left=300).dense()), 4, 8)
    assert made.ids.dtype == torch.int16


def test_the_size_of_a_map_by_distance_is_bounded_by_its_blocks():
    """16 blocks of 64 rows, 16 tiles of keys: the band's (32 + 64 + 64 - 2) / 64, the diagonal's and the last."""
    plan = lower(distance(1024, reach=17))
    made = map_of(plan, 64, 64, causal=0)
    assert made.blocks.shape == (1, 16, len(FIELDS))
    assert made.runs.shape == (32, 3)
    assert made.tiles.shape == (16 * (3 + 2 + 1) + 16, 2)
    packed = lower(distance(100, ptr=torch.tensor([0, 10, 10, 60, 100])))
    assert map_of(packed, 16, 16).blocks.shape == (1, 7 + 4, len(FIELDS))


@pytest.mark.parametrize(
    ("lookup", "left", "expected"),
    [
        ([0, 1, 2, 3, 4], 2, (-1, 3, (0, 1, 2, 3, 4))),
        ([-1, 0, -2, 1, -2], 1, (0, 3, (5, 0, -2, 1, -2))),
        ([-2, -2, 3], 1, (1, 0, (-2, 3))),
        ([2, 2, 2], 1, (-(2**29), 0, (2, 2))),
        ([-2], 0, (-(2**29), 0, (-2, -2))),
    ],
)
def test_virtual_columns(lookup, left, expected):
    labels = DistanceLabels(5, lookup=lookup, left=left, num_labels=5)
    assert virtual(lower(labels).parts[0]) == expected
    assert virtual(plain(3, 3).parts[0]) == (-(2**29), 0, (0, 0))


def test_bands_up_to_the_widest_are_taken_by_distance():
    for extra in (0, 1):
        labels = DistanceLabels(40, lookup=[i % 3 for i in range(MAX_BAND + 2 + extra)], left=20)
        assert is_affine(lower(labels)) == (extra == 0)
        check(lower(labels), 8, 8)
    assert is_affine(lower(DistanceLabels(40, lookup=range(3 * MAX_BAND), left=20)))  # as many labels: no larger


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [(254, torch.uint8), (255, torch.int16), (32766, torch.int16), (32767, torch.int32)],
)
def test_ids_are_of_the_smallest_type(labels, dtype):
    """C = R + 1 must fit."""
    ids = torch.arange(6).reshape(2, 3) * (labels - 1) // 5
    made = map_of(lower(DenseLabels(ids, labels)), 2, 4)
    assert made.ids.dtype == dtype
    assert made.ids.tolist() == [[[[*row, labels + 1] for row in ids.tolist()]]]


class Work(TorchDispatchMode):
    """Adds up how many numbers all operators wrote."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.total += sum(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(x))
        return out


def work(labels):
    plan = lower(labels)
    with Work() as mode:
        map_of(plan, 8, 8)
    return mode.total


def test_work_grows_with_the_stored_labels():
    """Doubling what is stored at most doubles what operators write, whatever N² is."""
    ids = torch.randint(0, 3, (256, 512))
    assert work(DenseLabels(ids, 3)) <= 2.02 * work(DenseLabels(ids[:, :256], 3))
    ptr = torch.arange(17) * 16
    flat = torch.randint(0, 3, (16 * 256,))
    assert work(BlockLabels(flat, 3, ptr)) <= 2.02 * work(BlockLabels(flat[: 8 * 256], 3, ptr[:9]))
    for default in (None, 0, distance(512, reach=1)):
        index, listed, _ = edges(512, count=400)
        some = EdgeLabels(index[:, :200], listed[:200], 3, q_len=512, default=default)
        assert work(EdgeLabels(index, listed, 3, q_len=512, default=default)) <= 2.02 * work(some)
    few = EdgeLabels(index, listed, 3, q_len=512)
    many = EdgeLabels(index, listed, 3, q_len=4096)
    assert work(many) <= 1.3 * work(few)  # edges alone: 64 times as many pairs, and only the rows count


def test_written_maps_are_remembered():
    plan, memo = plan_of("sum", 12), Memory()
    first = map_of(plan, 4, 4, causal=1, memo=memo)
    assert map_of(plan, 4, 4, causal=1, memo=memo) is first
    for options in ({"transposed": True}, {"sort": 4}):
        assert map_of(plan, 4, 4, causal=1, memo=memo, **options).ids is first.ids
    for other in ({"causal": 2}, {"causal": None}, {"causal": torch.tensor(1)}, {"causal": 1, "rows": 2}):
        assert map_of(plan, **{"rows": 4, "keys": 4, **other}, memo=memo).ids is not first.ids
    offset = torch.tensor([1, 2])
    moving = map_of(plan, 4, 4, causal=offset, memo=memo)
    assert map_of(plan, 4, 4, causal=offset.clone(), memo=memo) is moving
    offset += 1
    assert map_of(plan, 4, 4, causal=offset, memo=memo) is not moving
    index, ids, _ = edges(9)
    plan = lower(EdgeLabels(index, ids, 5, q_len=9, default=distance(9, q_offset=offset)))
    for _ in range(2):  # labels with an offset that changes are written again
        check(plan, 4, 4, memo=memo)
        offset += 2


def test_maps_by_distance_are_remembered_unless_an_offset_is_a_tensor():
    fixed, moving = plan_of("distance", 9), plan_of("distance per row", 9)
    packed = plan_of("distance packed", 9)
    cases = ((fixed, 0, True), (packed, 0, True), (fixed, torch.tensor(0), False), (moving, 0, False))
    for plan, causal, kept in cases:
        memo = Memory()
        made = [map_of(plan, 4, 4, causal=causal, memo=memo) for _ in range(2)]
        assert (made[0] is made[1]) == kept
        for changes in ({"transposed": True}, {"rows": 2}, {"keys": 2}, {"causal": 1}):
            other = {"rows": 4, "keys": 4, "causal": causal, **changes}
            got, wanted = map_of(plan, **other, memo=memo), map_of(plan, **other)
            assert got is not made[0]
            assert torch.equal(got.blocks, wanted.blocks)


def test_what_is_remembered_does_not_hold_on_to_the_labels():
    labels, memo = KINDS["edges over distance packed"](9), Memory()
    plan = lower(labels)
    made = [map_of(plan, 4, 4, causal=0, sort=4, memo=memo, transposed=transposed) for transposed in (False, True)]
    held = [weakref.ref(tensor) for tensor in (plan, *encode(plan)[0])]
    assert len(held) > 1
    del labels, plan
    gc.collect()
    assert len(made) == 2
    assert memo.found
    assert not any(ref() is not None for ref in held)


def test_a_map_made_while_predicting_serves_training():
    with torch.inference_mode():
        made = [map_of(plan_of("edges default", 9), 4, 4, causal=0, sort=4), map_of(plan_of("distance", 9), 4, 4)]
    for one, count in zip(made, (6, 3), strict=True):
        tensors = [x for x in vars(one).values() if torch.is_tensor(x)]
        assert len(tensors) == count
        assert not any(x.is_inference() for x in tensors)
