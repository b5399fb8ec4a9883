"""Cells of tables in pandas: what a sample holds, and that it never holds what became known later."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")

import relgraph as rg  # noqa: E402
from relgraph.interop.pandas import KINDS, Database  # noqa: E402

DAY = 86400.0


def days(numbers):
    return pd.to_datetime([None if n is None else pd.Timestamp(n * DAY, unit="s") for n in numbers])


@st.composite
def databases(draw):
    """Drivers, races with a day, and results of both, some without a race; drivers may have a rival."""
    drivers, races, results = (draw(st.integers(1, 4)) for _ in range(3))
    keys = st.integers(0, drivers - 1)
    held = {
        "drivers": pd.DataFrame(
            {
                "driver": range(drivers),
                "rival": pd.array(draw(st.lists(st.none() | keys, min_size=drivers, max_size=drivers)), dtype="Int64"),
                "name": [f"n{number}" for number in range(drivers)],
            }
        ),
        "races": pd.DataFrame(
            {
                "race": [f"r{number}" for number in range(races)],
                "day": days(draw(st.lists(st.none() | st.integers(0, 4), min_size=races, max_size=races))),
                "laps": draw(st.lists(st.none() | st.integers(1, 9), min_size=races, max_size=races)),
            }
        ).astype({"laps": "Float64"}),
    }
    of_race = st.none() | st.sampled_from(list(held["races"].race))
    held["results"] = pd.DataFrame(
        {
            "driver": draw(st.lists(keys, min_size=results, max_size=results)),
            "race": pd.array(draw(st.lists(of_race, min_size=results, max_size=results)), dtype="string"),
            "day": days(draw(st.lists(st.none() | st.integers(0, 4), min_size=results, max_size=results))),
        }
    )
    return held


LINKS = {("drivers", "rival"): "drivers", ("results", "driver"): "drivers", ("results", "race"): "races"}
KEYS = {"drivers": "driver", "races": "race"}


def made(held, **options):
    return Database(held, primary_keys=KEYS, foreign_keys=LINKS, times={"races": "day", "results": "day"}, **options)


def links_of(held):
    """(child, parent) of all rows as (table, position)."""
    found = set()
    for (table, column), other in LINKS.items():
        for row, key in enumerate(held[table][column]):
            if not pd.isna(key):
                found.add(((table, row), (other, list(held[other][KEYS[other]]).index(key))))
    return found


def day_of(held, place):
    """When a row became known; a result without a day became known with its race."""
    table, row = place
    day = held[table].day[row] if table != "drivers" else pd.NaT
    if table != "results" or not pd.isna(day) or pd.isna(race := held[table].race[row]):
        return day
    return held["races"].day[int(race[1:])]


def test_times_pass_on_through_tables_and_circles():
    tables = {
        "races": pd.DataFrame({"race": [0, 1], "day": days([1, 3])}),
        "laps": pd.DataFrame({"lap": range(3), "race": [0, 1, None], "before": pd.array([None, 0, 1], "Int64")}),
        "stops": pd.DataFrame({"lap": [0, 1, 2], "day": days([None, None, 0])}),
    }
    links = {("laps", "race"): "races", ("laps", "before"): "laps", ("stops", "lap"): "laps"}
    keys, times = {"races": "race", "laps": "lap"}, {"races": "day", "stops": "day"}
    database = Database(tables, primary_keys=keys, foreign_keys=links, times=times)
    for table, wanted in (("laps", [1, 3, 3]), ("stops", [1, 3, 0])):
        for row, day in enumerate(wanted):
            assert database.around(table, row).cells.until == day * DAY


@given(databases(), st.data())
def test_a_sample_holds_what_is_linked_and_nothing_later(held, data):
    table = data.draw(st.sampled_from(list(held)))
    row = data.draw(st.integers(0, len(held[table]) - 1))
    until = data.draw(st.none() | st.integers(0, 4).map(lambda day: pd.Timestamp(day * DAY, unit="s")))
    sample = made(held).around(table, row, until=until)
    limit = day_of(held, (table, row)) if until is None else until
    links = links_of(held)
    reached, waiting = {(table, row)}, [(table, row)]
    for place in waiting:
        near = {a for a, b in links if b == place} | {b for a, b in links if a == place}
        new = {other for other in near - reached if not day_of(held, other) > limit}
        reached |= new
        waiting += new
    assert sample.rows[0] == (table, row) and set(sample.rows) == reached
    got = {(sample.rows[child], sample.rows[parent]) for child, parent in sample.cells.parents.T.tolist()}
    assert got == {(a, b) for a, b in links if {a, b} <= reached}
    columns = made(held).columns
    cells = {(sample.rows[r], columns[c]) for r, c in zip(sample.cells.rows, sample.cells.columns, strict=True)}
    assert cells == {
        ((name, at), f"{name}.{column}")
        for name, at in reached
        for column in held[name].columns
        if (name, column) not in {*LINKS, *KEYS.items()} and not pd.isna(held[name][column][at])
    }
    times = sample.cells.times
    assert times is not None
    for place, time in zip(sample.rows, times.tolist(), strict=True):
        day = day_of(held, place)
        assert time == day.timestamp() if not pd.isna(day) else time != time
    seen = rg.labelers.CellRelations(attend="all")(sample.cells).to_dense()[1]
    later = torch.tensor([day_of(held, sample.rows[r]) > limit for r in sample.cells.rows.tolist()], dtype=torch.bool)
    assert not seen[0][:, later].any()


@given(databases(), st.integers(1, 6), st.integers(0, 2), st.integers(0, 3))
def test_a_bound_ends_the_walk_and_a_seed_repeats_it(held, most, width, seed):
    database = made(held)
    whole = database.around("drivers", 0, width=width, seed=seed)
    again = made(held).around("drivers", 0, width=width, seed=seed, most_cells=most)
    assert len(again.cells) <= most and again.rows == whole.rows[: len(again.rows)]
    children = [child for child, parent in whole.cells.parents.T.tolist() if parent == 0]
    assert width or not [child for child in children if child != 0 and whole.rows[child][0] == "results"]


@given(databases(), st.integers(0, 3), st.integers(0, 4))
def test_the_newest_rows_of_a_foreign_key(held, most, day):
    until = pd.Timestamp(day * DAY, unit="s")
    width = {("results", "driver"): most}
    sample = made(held).around("drivers", 0, until=until, width=width, newest=True)
    own = [("results", row) for row, key in enumerate(held["results"].driver) if key == 0]
    known = [(day_of(held, place), place) for place in own if not day_of(held, place) > until]
    dated = sorted((pair for pair in known if not pd.isna(pair[0])), key=lambda pair: pair[0], reverse=True)
    wanted = [place for _, place in dated] + [place for time, place in known if pd.isna(time)]
    assert [place for place in sample.rows if place in own] == wanted[:most]


def test_values_are_read_by_kind():
    frame = pd.DataFrame(
        {
            "points": [1.0, 3.0, None],
            "won": [True, False, False],
            "team": ["red", "blue", "red"],
            "note": ["a", "b", "c"],
            "day": days([1, 2, 3]),
        }
    )
    database = Database({"results": frame}, times={"results": "day"}, most_categories=2, text_codes=50)
    assert database.columns == ("results.points", "results.won", "results.team", "results.note", "results.day")
    first, last = (
        database.around("results", row, until=days([4])[0], hide=hide) for row, hide in ((0, "won"), (2, None))
    )
    assert [KINDS[kind] for kind in first.kinds] == ["number", "hidden", "category", "text", "time"]
    assert first.numbers.tolist() == pytest.approx([-1.0, 0.0, 0.0, 0.0, -3 / 365.25])
    assert [KINDS[kind] for kind in last.kinds] == ["number", "category", "text", "time"]
    assert last.numbers[0].item() == pytest.approx(-(0.5**0.5))
    assert database.num_codes == 52 and first.codes[2] == last.codes[1] >= 50 and 0 <= first.codes[3] < 50
    assert first.codes[[0, 1, 4]].tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused():
    frame = pd.DataFrame({"a": [1, 1], "b": [2.0, 3.0]})
    with pytest.raises(ValueError, match=r"primary_keys\['t'\] must hold different keys and no gap"):
        Database({"t": frame}, primary_keys={"t": "a"})
    with pytest.raises(ValueError, match=r"foreign_keys\[\('t', 'a'\)\] must hold keys of 'u', got '1'"):
        Database({"t": frame, "u": frame + 5}, primary_keys={"u": "b"}, foreign_keys={("t", "a"): "u"})
    with pytest.raises(ValueError, match="must be a table with a primary key, got 'u'"):
        Database({"t": frame, "u": frame}, foreign_keys={("t", "a"): "u"})
    with pytest.raises(ValueError, match="times must name a column of 't', got 'day'"):
        Database({"t": frame}, times={"t": "day"})
    database = Database({"t": frame})
    with pytest.raises(ValueError, match="most_cells must be at least 2, the cells of row 0, got 1"):
        database.around("t", 0, most_cells=1)
    with pytest.raises(ValueError, match=r"width must name foreign keys, some of \[\], got \('t', 'a'\)"):
        database.around("t", 0, width={("t", "a"): 3})
    with pytest.raises(ValueError, match="until must be a time, got 'soon'"):
        database.around("t", 0, until="soon")


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "relgraph.interop.pandas")
    with pytest.raises(ImportError, match="pip install pandas"):
        import_module("relgraph.interop.pandas")
