"""RAT-SQL's labels between the words of a question and the columns and tables of a database."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.base import Labeler, why_all_labeled
from relgraph.labels import BlockLabels, DenseLabels

VALUE_KINDS = ("NUMBER", "TIME", "CELLMATCH")
PUNCTUATION = frozenset(string.punctuation)


@final
@dataclass(frozen=True, init=False)
class Schema:
    """A question and the database that it asks about: the input of :class:`~relgraph.labelers.SchemaRelations`.

    Words are compared unchanged: normalise them first (lower case, lemmas). The items are the words, then the columns,
    then the tables; each kind is numbered from 0.

    Source: the input of Wang et al. 2020 (RAT-SQL).

    Args:
        question: the words of the question.
        columns: ``(table, words)`` for each column: the number of its table and the words of its name. The column
            ``"*"`` of all tables has the table None, and no word matches it.
        tables: the words of each table's name.
        primary_keys: the numbers of the columns that are primary keys.
        foreign_keys: ``(column, column)`` for each foreign key: the first column holds keys of the second.
        values: ``(word, column, kind)`` for each word of the question that may be a value of a column. The kind says
            why: the word is a number (``"NUMBER"``, or ``"TIME"`` in a column of times), or a cell holds it
            (``"CELLMATCH"``).

    Raises:
        ValueError: a number that no word, column or table has, an empty name, or an unknown kind of value.

    Example:
        >>> schema = rg.labelers.Schema(
        ...     ["which", "singer", "is", "20"],
        ...     [(None, ["*"]), (0, ["singer", "id"]), (0, ["age"])],
        ...     [["singer"]],
        ...     primary_keys=[1],
        ...     values=[(3, 2, "NUMBER")],
        ... )
        >>> len(schema)
        8
        >>> labeler = rg.labelers.SchemaRelations()
        >>> labels = labeler(schema)
        >>> labeler.names[labels.ids[0, 3, 6]]  # what column "age" is to the word "20"
        'qc_NUMBER'
    """

    question: tuple[str, ...]
    columns: tuple[tuple[int | None, tuple[str, ...]], ...]
    tables: tuple[tuple[str, ...], ...]
    primary_keys: tuple[int, ...]
    foreign_keys: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int, str], ...]

    def __init__(
        self,
        question: Sequence[str],
        columns: Sequence[tuple[int | None, Sequence[str]]],
        tables: Sequence[Sequence[str]],
        *,
        primary_keys: Iterable[int] = (),
        foreign_keys: Iterable[tuple[int, int]] = (),
        values: Iterable[tuple[int, int, str]] = (),
    ) -> None:
        question = _checked_words("question", question)
        names = tuple(_checked_name(at, words) for at, words in _each("tables", tables))
        owned = tuple(_checked_column(at, column, len(names)) for at, column in _each("columns", columns))
        column = partial(_checked_number, count=len(owned), what="columns")
        fields: dict[str, Any] = {"question": question, "columns": owned, "tables": names}
        fields["primary_keys"] = tuple(column(at, key) for at, key in _each("primary_keys", primary_keys))
        keys = _each("foreign_keys", foreign_keys)
        fields["foreign_keys"] = tuple(tuple(column(at, end) for end in _entries(at, pair, 2)) for at, pair in keys)
        matches = _each("values", values)
        fields["values"] = tuple(_checked_value(at, match, len(question), len(owned)) for at, match in matches)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """The number of words, columns and tables together."""
        return len(self.question) + len(self.columns) + len(self.tables)


@final
@dataclass(frozen=True, init=False, repr=False)
class SchemaRelations(Labeler):
    """RAT-SQL's relations between question words, columns and tables: 51 with clip 2.

    Each pair has one relation. If several hold, the first in this list counts, as in the published code:

    - words: their distance;
    - word and column: the whole name (CEM), a part of it (CPM), CELLMATCH, then TIME or NUMBER;
    - word and table: the whole name (TEM), then a part of it (TPM);
    - two columns: of one table, then the foreign key backward, then forward;
    - column and table: primary key, column of the table (or ``*``), then foreign key;
    - two tables: foreign keys both ways, or one way.

    A word matches a whole name if it is in a run of words that equals the name. It matches a part if the name contains
    it, or contains it and a neighbour in this order; a single stopword or punctuation mark does not match.

    Source: Wang et al. 2020 (RAT-SQL), table 1 and section 4.3, and the order of ids of the code released with it.

    Args:
        clip: the largest distance with its own label, between words of the question and within names.
        spelled: whether each word of a name has its own position. If False, each name has one position, so the only
            distance within names is 0.
        stopwords: words that do not match a part of a name by themselves.

    Raises:
        ValueError: more than 2^20 labels.

    Example:
        >>> labeler = rg.labelers.SchemaRelations()
        >>> labeler.num_labels
        51
        >>> schema = rg.labelers.Schema(["singer", "age"], [(0, ["age"])], [["singer"]])
        >>> ids = labeler(schema).to_dense()[0][0]
        >>> labeler.names[ids[1, 2]], labeler.names[ids[2, 3]]
        ('qc_CEM', 'ct_table_match')
    """

    clip: int
    spelled: bool
    stopwords: tuple[str, ...]

    def __init__(self, clip: int = 2, *, spelled: bool = False, stopwords: Iterable[str] = ()) -> None:
        self._set(
            clip=check.integer("clip", clip, minimum=0),
            spelled=check.boolean("spelled", spelled),
            stopwords=tuple(sorted(set(_checked_words("stopwords", stopwords)))),
        )
        check.most_labels("clip", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``36 + 3 · (2 · clip + 1)``."""
        return 36 + 3 * (2 * self.clip + 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the published order; ``qc`` is from question word to column, ``cq`` the other way."""
        steps = range(-self.clip, self.clip + 1)
        return (
            *(f"qq_dist {step}" for step in steps),
            *("qc_default", "qt_default", "cq_default"),
            *("cc_default", "cc_foreign_key_forward", "cc_foreign_key_backward", "cc_table_match"),
            *(f"cc_dist {step}" for step in steps),
            *("ct_default", "ct_foreign_key", "ct_primary_key", "ct_table_match", "ct_any_table"),
            "tq_default",
            *("tc_default", "tc_primary_key", "tc_table_match", "tc_any_table", "tc_foreign_key"),
            *("tt_default", "tt_foreign_key_forward", "tt_foreign_key_backward", "tt_foreign_key_both"),
            *(f"tt_dist {step}" for step in steps),
            *("qc_CEM", "cq_CEM", "qt_TEM", "tq_TEM", "qc_CPM", "cq_CPM", "qt_TPM", "tq_TPM"),
            *(f"{way}_{kind}" for kind in VALUE_KINDS for way in ("qc", "cq")),
        )

    _why_never_unlabeled = why_all_labeled

    def __call__(self, schemas: Schema | Sequence[Schema]) -> DenseLabels | BlockLabels:
        """The labels of one schema, ``[1, N, N]``, or packed labels of several.

        Args:
            schemas: a Schema, or a sequence of them.

        Returns:
            Dense labels of N question words, columns and tables (of the words of all names if ``spelled``); block
            labels for several schemas. Id r is called ``names[r]``, query's kind first: ``"qc_CEM"``.

        Raises:
            ValueError: no schemas.
        """
        if isinstance(schemas, Schema):
            return DenseLabels(self._ids(schemas)[None], self.num_labels)
        items = _each("schemas", schemas)
        if not items:
            raise ValueError("schemas must hold at least one Schema, got none")
        for at, schema in items:
            if not isinstance(schema, Schema):
                raise TypeError(f"{at} must be a Schema, got {type(schema).__name__}")
        return BlockLabels.from_blocks([self._ids(schema) for _, schema in items], self.num_labels)

    def _ids(self, schema: Schema) -> Tensor:
        """The relation of every pair, ``[N, N]``."""
        id_of = {name: number for number, name in enumerate(self.names)}
        ids = _relations(schema, id_of, frozenset(self.stopwords))
        counts = torch.tensor([len(schema.question), len(schema.columns), len(schema.tables)])
        kind = torch.arange(3).repeat_interleave(counts)
        item = torch.arange(len(schema))
        if self.spelled:
            names = [*((word,) for word in schema.question), *(words for _, words in schema.columns), *schema.tables]
            item = item.repeat_interleave(torch.tensor([len(words) for words in names], dtype=torch.int64))
        ids, kind = ids[item][:, item], kind[item]
        at = torch.arange(item.shape[0])
        distance = (at - at[:, None]).clamp(-self.clip, self.clip)
        near = (item == item[:, None]) | ((kind == 0) & (kind[:, None] == 0))
        zeros = torch.tensor([id_of[f"{name}_dist 0"] for name in ("qq", "cc", "tt")])
        return torch.where(near, zeros[kind][:, None] + distance, ids)


def _relations(schema: Schema, id_of: dict[str, int], stopwords: frozenset[str]) -> Tensor:
    """The ids of all pairs, ``[N, N]``, except pairs of two words or of an item with itself."""

    def matches(names: Sequence[tuple[str, ...]], find: Callable[..., set[int]]) -> Tensor:
        """The words of the question that ``find`` matches with each name, ``[words, names]``."""
        found = [(word, n) for n, name in enumerate(names) for word in find(schema.question, name)]
        return _mask((len(schema.question), len(names)), found)

    paint = partial(_paint, id_of)
    part = partial(_part_matches, stopwords=stopwords)
    names = [() if table is None else name for table, name in schema.columns]
    shape = (len(schema.question), len(names))
    by_column = {kind: _mask(shape, [(w, c) for w, c, k in schema.values if k == kind]) for kind in VALUE_KINDS}
    by_column |= {"CPM": matches(names, part), "CEM": matches(names, _whole_matches)}
    by_table = {"TPM": matches(schema.tables, part), "TEM": matches(schema.tables, _whole_matches)}
    table = torch.tensor([-1 if t is None else t for t, _ in schema.columns], dtype=torch.int64)
    owned = table[:, None] == torch.arange(len(schema.tables))  # [columns, tables]
    together = table[:, None] == table  # [columns, columns]
    refers = _mask((len(names), len(names)), schema.foreign_keys)
    refers_to_table = (refers.int() @ owned.int()) > 0  # [columns, tables]
    belongs = {
        "foreign_key": refers_to_table,
        "any_table": (table < 0)[:, None].expand_as(owned),
        "table_match": owned,
        "primary_key": _mask((len(names),), [(c,) for c in schema.primary_keys])[:, None] & owned,
    }
    forward = (owned.T.int() @ refers_to_table.int()) > 0  # [tables, tables]
    backward = forward.T
    qq = torch.zeros(shape[0], shape[0], dtype=torch.int64)
    qc, cq = paint("qc", **by_column), paint("cq", **by_column).T
    qt, tq = paint("qt", **by_table), paint("tq", **by_table).T
    ct, tc = paint("ct", **belongs), paint("tc", **belongs).T
    cc = paint("cc", foreign_key_forward=refers, foreign_key_backward=refers.T, table_match=together)
    tt = paint("tt", foreign_key_forward=forward, foreign_key_backward=backward, foreign_key_both=forward & backward)
    return torch.cat([torch.cat(row, 1) for row in ((qq, qc, qt), (cq, cc, ct), (tq, tc, tt))])


def _paint(id_of: dict[str, int], way: str, **layers: Tensor) -> Tensor:
    """Ids from masks, a later one painted over an earlier one; ``default`` where none is True."""
    ids = torch.full(next(iter(layers.values())).shape, id_of[f"{way}_default"])
    for name, mask in layers.items():
        ids = ids.masked_fill(mask, id_of[f"{way}_{name}"])
    return ids


def _whole_matches(question: tuple[str, ...], name: tuple[str, ...]) -> set[int]:
    """The words of the question that are in a run equal to the name."""
    width = len(name)
    starts = [start for start in range(len(question) - width + 1) if question[start : start + width] == name]
    return {word for start in starts for word in range(start, start + width)}


def _part_matches(question: tuple[str, ...], name: tuple[str, ...], stopwords: frozenset[str]) -> set[int]:
    """The words of the question that the name contains; a stopword only together with a neighbour."""
    telling = {word for word in name if word not in stopwords and word not in PUNCTUATION}
    pairs = set(pairwise(name))  # enough: each word of a longer run is in a run of two
    twos = {at for at, pair in enumerate(pairwise(question)) if pair in pairs}
    return {at for at, word in enumerate(question) if word in telling} | twos | {at + 1 for at in twos}


def _mask(shape: tuple[int, ...], places: Sequence[tuple[int, ...]]) -> Tensor:
    """True at the places, False elsewhere."""
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[tuple(torch.tensor(places, dtype=torch.int64).view(-1, len(shape)).T)] = True
    return mask


def _each(name: str, value: Any) -> list[tuple[str, Any]]:
    """The items of an iterable other than a string, each with the name that an error gives it."""
    return [(f"{name}[{index}]", item) for index, item in enumerate(check.items(name, value, "a sequence"))]


def _entries(name: str, value: Any, count: int) -> list[Any]:
    """The items of an iterable; raise ValueError unless there are ``count``."""
    items = [item for _, item in _each(name, value)]
    if len(items) != count:
        raise ValueError(f"{name} must have {count} entries, got {len(items)}")
    return items


def _checked_words(name: str, value: Any) -> tuple[str, ...]:
    words = _each(name, value)
    for at, word in words:
        if not isinstance(word, str):
            raise TypeError(f"{at} must be a string, got {type(word).__name__}")
    return tuple(word for _, word in words)


def _checked_name(name: str, value: Any) -> tuple[str, ...]:
    words = _checked_words(name, value)
    if not words:
        raise ValueError(f"{name} must have a name of at least one word, got none")
    return words


def _checked_number(name: str, value: Any, count: int, what: str) -> int:
    """Return ``value``; raise an error unless it is the number of one of ``count`` items."""
    if not 0 <= check.integer(name, value) < count:
        raise ValueError(f"{name} must be one of the {count} {what}, numbered from 0, got {value}")
    return value


def _checked_column(name: str, value: Any, tables: int) -> tuple[int | None, tuple[str, ...]]:
    try:
        table, words = _entries(name, value, 2)
        table = None if table is None else _checked_number(f"{name}[0]", table, tables, "tables")
        return table, _checked_name(f"{name}[1]", words)
    except (TypeError, ValueError) as error:
        form = "a column is (number of its table, or None for '*', words of its name)"
        raise type(error)(f"{error}; {form}") from None


def _checked_value(name: str, value: Any, words: int, columns: int) -> tuple[int, int, str]:
    word, column, kind = _entries(name, value, 3)
    _checked_number(name, word, words, "words")
    return word, _checked_number(name, column, columns, "columns"), check.choice(name, kind, VALUE_KINDS)
