"""Cells of relational tables in pandas, sampled around one row; needs the extra ``relgraph[pandas]``.

- :class:`~relgraph.interop.pandas.Database`: tables, the keys that link their rows, and their times.
- :class:`~relgraph.interop.pandas.Sample`: some cells of it, with values that a model can read.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.public import lists_public
from relgraph.labelers.cells import Cells

try:
    import pandas as pd
except ImportError:
    raise ImportError("relgraph.interop.pandas needs pandas: pip install pandas") from None

__all__ = ["KINDS", "Database", "Sample"]
__dir__ = lists_public(globals())

KINDS = ("number", "category", "text", "time", "hidden")
"""How the value of a cell is read: see :class:`Sample`."""

YEAR = 365.25 * 86400
"""The seconds of a year: models read times in years."""


class Sample(NamedTuple):
    """Cells around one row, for a model and for :class:`~relgraph.labelers.CellRelations`.

    Attributes:
        cells: rows, columns, links and times, with the time of the question; the row that is asked about is row 0.
            Times are in seconds since 1970.
        kinds: ``[N]``: the place of each cell's kind in :data:`KINDS`.
        numbers: ``[N]``, float32: a number less its column's mean, in standard deviations; a time in years after the
            time of the question (without one, after 1970); else 0.
        codes: ``[N]``, integers in ``[0, database.num_codes)``: the code of a category, or of a text, which others may
            share; else 0.
        rows: ``(table, position in its frame)`` of each row of ``cells``.
    """

    cells: Cells
    kinds: Tensor
    numbers: Tensor
    codes: Tensor
    rows: tuple[tuple[str, int], ...]


class _Column(NamedTuple):
    """One column: its name, its kind, and the number, the code and whether there is a value, for each row."""

    name: str
    kind: int
    numbers: np.ndarray[Any, Any]
    codes: np.ndarray[Any, Any]
    given: np.ndarray[Any, Any]


@final
class Database:
    """Tables whose rows are linked by foreign keys, from which cells are sampled around a row.

    Columns of keys only link rows; all other columns are cells. Numbers and truth values are read as numbers, times as
    times, other columns as categories if they have at most ``most_categories`` different values, else as text.

    Args:
        tables: a :class:`pandas.DataFrame` for each name of a table. Means and deviations of numbers come from all
            rows, so leave out rows that a model must not know.
        primary_keys: the column of each table that identifies its rows; tables may lack one.
        foreign_keys: ``{(table, column): other}``: the column holds primary keys of the table ``other``. An empty cell
            links to no row.
        times: the column of a table that says when a row became known. Rows without a time became known with the latest
            row that their foreign keys refer to; without such a row they are always known.
        most_categories: how many different values a category may have.
        text_codes: how many codes texts share.

    Raises:
        ValueError: columns or tables that do not exist, primary keys that repeat, foreign keys without a row, or a
            column of times that holds none.

    Example:
        >>> import pandas as pd
        >>> database = rg.interop.pandas.Database(
        ...     {"races": pd.DataFrame({"race": [7, 8], "day": pd.to_datetime(["2020-05-01", "2020-06-01"])}),
        ...      "results": pd.DataFrame({"race": [7, 7, 8], "points": [10.0, 6.0, 8.0]})},
        ...     primary_keys={"races": "race"},
        ...     foreign_keys={("results", "race"): "races"},
        ...     times={"races": "day"},
        ... )
        >>> sample = database.around("results", 0)
        >>> sample.rows                                             # the result, its race, the other result of it
        (('results', 0), ('races', 0), ('results', 1))
        >>> rg.labelers.CellRelations()(sample.cells).q_len         # one cell each: points, day, points
        3
    """

    def __init__(
        self,
        tables: Mapping[str, pd.DataFrame],
        *,
        primary_keys: Mapping[str, str] | None = None,
        foreign_keys: Mapping[tuple[str, str], str] | None = None,
        times: Mapping[str, str] | None = None,
        most_categories: int = 100,
        text_codes: int = 1024,
    ) -> None:
        most = check.integer("most_categories", most_categories, minimum=1)
        self.text_codes = check.integer("text_codes", text_codes, minimum=1, maximum=check.MOST_LABELS)
        self._frames = _mapping("tables", tables)
        for name, frame in self._frames.items():
            if not isinstance(frame, pd.DataFrame):
                raise TypeError(f"tables[{name!r}] must be a DataFrame, got {type(frame).__name__}")
        self._names = [*self._frames]
        keys, links = _mapping("primary_keys", primary_keys), _mapping("foreign_keys", foreign_keys)
        dated = _mapping("times", times)
        for place in links:
            if not isinstance(place, tuple) or len(place) != 2:
                raise TypeError(f"foreign_keys must have keys (table, column), got {shown(place)}")
        for what, columns in (("primary_keys", keys.items()), ("foreign_keys", links), ("times", dated.items())):
            for table, column in columns:
                if table not in self._frames:
                    raise ValueError(f"{what} must name one of the tables {self._names}, got {shown(table)}")
                if not isinstance(column, str) or column not in self._frames[table].columns:
                    raise ValueError(f"{what} must name a column of {table!r}, got {shown(column)}")
        sizes = [len(frame) for frame in self._frames.values()]
        self._starts = dict(zip(self._frames, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self._rows = sum(sizes)
        self._times = np.full(self._rows, np.nan)
        for table, column in dated.items():
            self._times[self._of(table)] = _seconds(f"times[{table!r}]", self._frames[table][column])
        self._parents, of_link = self._read_links(keys, links)
        self._inherit_times()
        self._link_names = [*links]
        self._children = _grouped(self._parents, self._rows)
        self._child_links = of_link[np.argsort(self._parents[0], kind="stable")]
        self._links = _grouped(self._parents[::-1], self._rows)
        self.num_codes = self.text_codes
        self._columns: dict[str, list[_Column]] = {}
        hidden = {*keys.items(), *links}
        for table, frame in self._frames.items():
            own = [name for name in frame.columns if (table, name) not in hidden]
            self._columns[table] = [self._read(f"{table}.{name}", str(name), frame[name], most) for name in own]
        self._cells = np.zeros(self._rows, np.int64)  # of each row
        for table, columns in self._columns.items():
            for column in columns:
                self._cells[self._of(table)] += column.given
        counts = [len(columns) for columns in self._columns.values()]
        self._first_column = dict(zip(self._frames, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """The name of each column of cells, ``"results.points"``, by its number in a sample's cells."""
        return tuple(f"{table}.{column.name}" for table, columns in self._columns.items() for column in columns)

    def around(
        self,
        table: str,
        row: int,
        *,
        until: Any = None,
        most_cells: int = 1000,
        width: int | Mapping[tuple[str, str], int] = 32,
        newest: bool = False,
        hide: str | None = None,
        seed: int = 0,
    ) -> Sample:
        """Sample the cells of a row and of rows that are linked to it, nearest first.

        From each row the walk takes its parent rows, then at most ``width`` of its child rows, drawn by ``seed`` or the
        newest. Rows that became known after ``until`` are never taken, apart from the row that is asked about, to whose
        cells no cell then attends. The walk ends before the row whose cells would be too many.

        Args:
            table: the table of the row that is asked about.
            row: its position in the frame, from 0.
            until: the time of the question: a :class:`pandas.Timestamp`, a date or a text; by default the time of the
                row, without one no limit.
            most_cells: the most cells of a sample.
            width: the most child rows that are taken from each row; or ``{(table, column): number}``, the most for each
                foreign key, and none for the others.
            newest: take the child rows that became known last, newest first, instead of drawing them.
            hide: a column of the row that is asked about, whose value the sample does not hold.
            seed: the same sample for the same seed.

        Returns:
            :class:`Sample`.

        Raises:
            ValueError: a table, row or column that does not exist, a time that pandas cannot read, or a row with more
                than ``most_cells`` cells.
        """
        check.choice("table", table, tuple(self._frames))
        check.integer("row", row, minimum=0, maximum=len(self._frames[table]) - 1)
        check.integer("most_cells", most_cells, minimum=1)
        most = self._widths(width)
        newest = check.boolean("newest", newest)
        draw = np.random.default_rng(check.integer("seed", seed, minimum=0))
        if hide is not None:
            check.choice("hide", hide, tuple(column.name for column in self._columns[table]))
        first = self._starts[table] + row
        limit = float(self._times[first]) if until is None else _time(until)
        taken, count = self._walk(first, limit, most_cells, most, None if newest else draw)
        if not taken:
            raise ValueError(f"most_cells must be at least {count}, the cells of row {row}, got {most_cells}")
        return self._sample(taken, limit, hide)

    def _widths(self, width: Any) -> int | dict[int, int]:
        """The most child rows: one number, or one for the place of each foreign key."""
        if not isinstance(width, Mapping):
            return check.integer("width", width, minimum=0)
        for place, most in width.items():
            if place not in self._link_names:
                raise ValueError(f"width must name foreign keys, some of {self._link_names}, got {shown(place)}")
            check.integer(f"width[{place}]", most, minimum=0)
        return {at: width.get(place, 0) for at, place in enumerate(self._link_names)}

    def _walk(
        self, first: int, limit: float, most_cells: int, width: int | dict[int, int], draw: np.random.Generator | None
    ) -> tuple[list[int], int]:
        """The rows of a sample in the order in which they are met, and the number of their cells."""
        taken, seen, waiting, cells = list[int](), {first}, [first], 0
        for row in waiting:  # grows while it is read
            count = int(self._cells[row])
            if cells + count > most_cells:
                return taken, cells + count
            taken.append(row)
            cells += count
            parents = _group(self._links, row)
            children = self._chosen(row, limit, width, draw)
            for other in (*parents[~(self._times[parents] > limit)].tolist(), *children):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return taken, cells

    def _chosen(
        self, row: int, limit: float, width: int | dict[int, int], draw: np.random.Generator | None
    ) -> list[int]:
        """The child rows that a walk takes from a row; without ``draw`` the newest."""
        children = _group(self._children, row)
        if not len(children):
            return []
        known = ~(self._times[children] > limit)  # NaN is never later
        children = children[known]
        if isinstance(width, int):
            return self._at_most(children, width, draw)
        links = _group((self._child_links, self._children[1]), row)[known]
        return [child for link, most in width.items() for child in self._at_most(children[links == link], most, draw)]

    def _at_most(self, rows: np.ndarray[Any, Any], most: int, draw: np.random.Generator | None) -> list[int]:
        if draw is None:
            # numpy puts NaN last: rows without a time come after all others
            return rows[np.argsort(-self._times[rows], kind="stable")][:most].tolist()
        return (np.sort(draw.choice(rows, most, replace=False)) if len(rows) > most else rows).tolist()

    def _sample(self, taken: list[int], limit: float, hide: str | None) -> Sample:
        number = {row: place for place, row in enumerate(taken)}
        places = [self._place(row) for row in taken]
        found: list[tuple[int, int, int, float, int]] = []
        for at, (table, row) in enumerate(places):
            for column, held in enumerate(self._columns[table], self._first_column[table]):
                if at == 0 and held.name == hide:
                    found.append((at, column, KINDS.index("hidden"), 0.0, 0))
                elif held.given[row]:
                    found.append((at, column, held.kind, held.numbers[row], held.codes[row]))
        rows, columns, kinds, numbers, codes = map(list, zip(*found, strict=True)) if found else ([], [], [], [], [])
        kinds, numbers = np.array(kinds, np.int64), np.array(numbers, np.float64)
        now = 0.0 if np.isnan(limit) else limit
        numbers = np.where(kinds == KINDS.index("time"), (numbers - now) / YEAR, numbers)
        links = [(number[row], number[up]) for row in taken for up in _group(self._links, row).tolist() if up in number]
        cells = Cells(
            torch.tensor(rows, dtype=torch.int64), torch.tensor(columns, dtype=torch.int64),
            torch.tensor(links, dtype=torch.int64).reshape(-1, 2).T, torch.from_numpy(self._times[taken]),
            None if np.isnan(limit) else float(limit),
        )  # fmt: skip
        numbers = torch.from_numpy(numbers.astype(np.float32))
        return Sample(cells, torch.from_numpy(kinds), numbers, torch.tensor(codes, dtype=torch.int64), tuple(places))

    def _place(self, row: int) -> tuple[str, int]:
        """The table and the position of a row."""
        starts = [*self._starts.values()]
        table = self._names[int(np.searchsorted(starts, row, side="right")) - 1]
        return table, row - self._starts[table]

    def _of(self, table: str) -> slice:
        start = self._starts[table]
        return slice(start, start + len(self._frames[table]))

    def _read_links(self, keys: Mapping[str, str], links: Mapping[tuple[str, str], str]) -> tuple[Any, Any]:
        """(parent row, child row) of all foreign keys, ``[2, P]``, and the place of each one's foreign key."""
        places: dict[str, pd.Series] = {}
        for table, column in keys.items():
            held = self._frames[table][column]
            if held.duplicated().any() or held.isna().any():
                raise ValueError(f"primary_keys[{table!r}] must hold different keys and no gap, got column {column!r}")
            places[table] = pd.Series(np.arange(len(held)) + self._starts[table], index=held.to_numpy())
        found = [np.zeros((2, 0), np.int64)]
        for (table, column), other in links.items():
            if not isinstance(other, str) or other not in places:
                got = shown(other)
                raise ValueError(f"foreign_keys[{(table, column)}] must be a table with a primary key, got {got}")
            held = self._frames[table][column]
            given = held.notna().to_numpy()
            parents = held[given].map(places[other])
            if parents.isna().any():
                missing = held[given][parents.isna()].iloc[0]
                raise ValueError(f"foreign_keys[{(table, column)}] must hold keys of {other!r}, got {str(missing)!r}")
            children = np.flatnonzero(given) + self._starts[table]
            found.append(np.stack([parents.to_numpy(np.int64), children]))
        of_link = np.repeat(np.arange(len(found)) - 1, [pairs.shape[1] for pairs in found])
        return np.concatenate(found, 1), of_link

    def _inherit_times(self) -> None:
        """Rows without a time get the latest of their parents, and these of theirs."""
        parents, children = self._parents[:, np.isnan(self._times[self._parents[1]])]
        while len(parents):
            before = self._times.copy()
            np.fmax.at(self._times, children, before[parents])
            if np.array_equal(before, self._times, equal_nan=True):
                return

    def _read(self, place: str, name: str, held: Any, most: int) -> _Column:
        """A column with a number and a code per row; new categories take the next codes."""
        given, count = held.notna().to_numpy(), len(held)
        numbers, codes = np.zeros(count), np.zeros(count, np.int64)
        if pd.api.types.is_numeric_dtype(held.dtype):
            values = held[given].to_numpy(np.float64)
            spread = values.std() if len(values) else 0.0
            numbers[given] = (values - (values.mean() if len(values) else 0.0)) / (spread if spread > 0 else 1.0)
            return _Column(name, KINDS.index("number"), numbers, codes, given)
        if pd.api.types.is_datetime64_any_dtype(held.dtype):
            numbers[given] = _seconds(place, held[given])
            return _Column(name, KINDS.index("time"), numbers, codes, given)
        words = held[given].astype(str)
        different = sorted(set(words))
        if len(different) <= most:
            code = {word: self.num_codes + at for at, word in enumerate(different)}
            self.num_codes += len(different)
            codes[given] = words.map(code).to_numpy(np.int64)
            return _Column(name, KINDS.index("category"), numbers, codes, given)
        # Python's own hash differs between processes
        codes[given] = [zlib.crc32(word.encode()) % self.text_codes for word in words]
        return _Column(name, KINDS.index("text"), numbers, codes, given)


def _mapping(name: str, given: Any) -> dict[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(given).__name__}")
    return dict(given or {})


def _seconds(name: str, held: Any) -> np.ndarray[Any, Any]:
    """Times in seconds since 1970; NaN where there is none."""
    try:
        times = pd.to_datetime(held, utc=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be of times, got {held.dtype}: {error}") from None
    return ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s")).to_numpy(np.float64)


def _time(until: Any) -> float:
    if not isinstance(until, (str, date, np.datetime64)):  # a number has no unit
        raise TypeError(f"until must be a time, got {type(until).__name__}")
    try:
        return float(_seconds("until", pd.Series([until]))[0])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"until must be a time, got {shown(until)}") from None


def _grouped(pairs: np.ndarray[Any, Any], rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For pairs (row, other): the others sorted by row, and where those of each row begin."""
    order = np.argsort(pairs[0], kind="stable")
    return pairs[1][order], np.searchsorted(pairs[0][order], np.arange(rows + 1))


def _group(grouped: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], row: int) -> np.ndarray[Any, Any]:
    others, begins = grouped
    return others[begins[row] : begins[row + 1]]
