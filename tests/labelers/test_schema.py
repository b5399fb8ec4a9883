"""RAT-SQL's relations between the words of a question, columns and tables."""

from __future__ import annotations

import re
import string

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import Schema, SchemaRelations

from .conformance import Case, LabelerSuite

# Tables 0 and 1 refer to each other, 2 refers to 0; columns: 0 is "*".
EVERYTHING = Schema(
    ["of", "name", "the", "home", "town", "in", "big", "city", "list", "7", "1999", "oslo", "song"],
    [
        (None, ["*"]),
        (0, ["city", "id"]),
        (0, ["name", "of", "the", "home"]),
        (0, ["mayor"]),
        (1, ["mayor", "id"]),
        (1, ["home", "town"]),
        (2, ["size"]),
        (2, ["year"]),
    ],
    [["big", "city", "list"], ["home", "of", "a", "mayor"], ["song"], ["loose"]],
    primary_keys=[1, 4],
    foreign_keys=[(3, 4), (5, 1), (6, 1)],
    values=[(9, 6, "NUMBER"), (10, 7, "TIME"), (11, 5, "CELLMATCH")],
)
SMALL = Schema(["age", "of", "singer"], [(None, ["*"]), (0, ["age"])], [["singer"]], primary_keys=[1])
EMPTY = Schema([], [], [])


class TestConformance(LabelerSuite):
    cases = (
        Case(SchemaRelations(), (EVERYTHING,)),
        Case(SchemaRelations(), ([EVERYTHING, EMPTY, SMALL],)),
        Case(SchemaRelations(1, stopwords=["the", "of"]), (EVERYTHING,)),
        Case(SchemaRelations(3, spelled=True), ([SMALL, EVERYTHING],)),
        Case(SchemaRelations(0), (EMPTY,)),
    )


def linked(schema, stopwords):
    """Match words with names, by all runs of words, the longest first."""
    columns, tables = {}, {}
    listed = [(columns, n, "C", words) for n, (table, words) in enumerate(schema.columns) if table is not None]
    listed += [(tables, n, "T", words) for n, words in enumerate(schema.tables)]
    for size in range(max(1, len(schema.question)), 0, -1):
        for start in range(len(schema.question) - size + 1):
            run = " ".join(schema.question[start : start + size])
            for found, n, letter, words in listed:
                name = " ".join(words)
                inside = f" {run} " in f" {name} " and run not in stopwords and run not in set(string.punctuation)
                for word in range(start, start + size):
                    if run == name:
                        found[word, n] = f"{letter}EM"
                    elif inside:
                        found.setdefault((word, n), f"{letter}PM")
    return columns, tables


def oracle(schema, clip, stopwords=(), spelled=False):
    """Name every pair's relation, pair by pair."""
    columns, tables = linked(schema, stopwords)
    values = {}
    for word, column, kind in schema.values:
        order = ["NUMBER", "TIME", "CELLMATCH"]
        best = max(kind, values.get((word, column), kind), key=order.index)
        values[word, column] = best
    items = [("q", n) for n in range(len(schema.question))]
    items += [("c", n) for n, (_, words) in enumerate(schema.columns) for _ in (words if spelled else [0])]
    items += [("t", n) for n, words in enumerate(schema.tables) for _ in (words if spelled else [0])]
    table_of = [table for table, _ in schema.columns]

    def refers(t, u):
        return any(table_of[a] == t and table_of[b] == u for a, b in schema.foreign_keys)

    def name(i, j):
        (a, x), (b, y) = items[i], items[j]
        if a == b and (a == "q" or x == y):
            return f"{a}{b}_dist {max(-clip, min(clip, j - i))}"
        word, other = (x, y) if a == "q" else (y, x)
        if {a, b} == {"q", "c"}:
            return f"{a}{b}_" + columns.get((word, other), values.get((word, other), "default"))
        if {a, b} == {"q", "t"}:
            return f"{a}{b}_" + tables.get((word, other), "default")
        if a == b == "c":
            if table_of[x] == table_of[y]:
                return "cc_table_match"
            if (y, x) in schema.foreign_keys:
                return "cc_foreign_key_backward"
            return "cc_foreign_key_forward" if (x, y) in schema.foreign_keys else "cc_default"
        if a == b == "t":
            ways = {(True, True): "foreign_key_both", (True, False): "foreign_key_forward"}
            ways |= {(False, True): "foreign_key_backward", (False, False): "default"}
            return "tt_" + ways[refers(x, y), refers(y, x)]
        column, table = (x, y) if a == "c" else (y, x)
        if table_of[column] == table:
            return f"{a}{b}_" + ("primary_key" if column in schema.primary_keys else "table_match")
        if table_of[column] is None:
            return f"{a}{b}_any_table"
        into = any(c == column and table_of[d] == table for c, d in schema.foreign_keys)
        return f"{a}{b}_" + ("foreign_key" if into else "default")

    return [[name(i, j) for j in range(len(items))] for i in range(len(items))]


def named(labeler, schema):
    ids, attend = labeler(schema).to_dense()
    assert bool(attend.all())
    return [[labeler.names[i] for i in row] for row in ids[0].tolist()]


@st.composite
def schemas(draw):
    word = st.sampled_from(["a", "b", "c", "the", "?"])
    name = st.lists(word, min_size=1, max_size=3)
    tables = draw(st.lists(name, max_size=3))
    owner = st.sampled_from([None, *range(len(tables))])
    columns = draw(st.lists(st.tuples(owner, name), max_size=4))
    question = draw(st.lists(word, max_size=5))
    if not columns:
        return Schema(question, columns, tables)
    column = st.integers(0, len(columns) - 1)
    kind = st.sampled_from(["NUMBER", "TIME", "CELLMATCH"])
    value = st.tuples(st.integers(0, len(question) - 1), column, kind)
    return Schema(
        question,
        columns,
        tables,
        primary_keys=draw(st.lists(column, max_size=2)),
        foreign_keys=draw(st.lists(st.tuples(column, column), max_size=4)),
        values=draw(st.lists(value, max_size=4)) if question else (),
    )


@given(schemas(), st.integers(0, 3), st.booleans())
def test_against_pair_by_pair(schema, clip, spelled):
    labeler = SchemaRelations(clip, spelled=spelled, stopwords=["the"])
    assert named(labeler, schema) == oracle(schema, clip, ["the"], spelled)


def test_a_schema_among_others_has_the_labels_that_it_has_alone():
    labeler, several = SchemaRelations(), [SMALL, EMPTY, EVERYTHING]
    alone = [labeler(schema).to_dense()[0][0] + 1 for schema in several]
    assert torch.equal(labeler(several).to_dense()[0][0], torch.block_diag(*alone) - 1)


def test_all_51_relations_occur_under_the_published_ids():
    labeler = SchemaRelations(spelled=True)
    assert labeler.num_labels == len(labeler.names) == 51
    assert {name for row in named(labeler, EVERYTHING) for name in row} == set(labeler.names)
    first = {"qq_dist -2": 0, "qc_default": 5, "cc_default": 8, "cc_dist -2": 12, "ct_default": 17, "tq_default": 22}
    later = {"tc_foreign_key": 27, "tt_foreign_key_both": 31, "tt_dist -2": 32, "qc_CEM": 37, "qc_CPM": 41}
    last = {"tq_TPM": 44, "qc_NUMBER": 45, "cq_CELLMATCH": 50}
    for name, number in (first | later | last).items():
        assert labeler.names[number] == name
    assert SchemaRelations(0).num_labels == 39


def test_a_stopword_matches_a_part_only_with_its_neighbour():
    schema = Schema(["the", "x", "the", "town"], [(0, ["the", "town"])], [["t"]])
    plain, strict = named(SchemaRelations(), schema), named(SchemaRelations(stopwords=["the"]), schema)
    assert [row[4] for row in plain[:4]] == ["qc_CPM", "qc_default", "qc_CEM", "qc_CEM"]
    assert [row[4] for row in strict[:4]] == ["qc_default", "qc_default", "qc_CEM", "qc_CEM"]


def test_a_name_of_more_than_five_words_matches_as_a_whole():
    words = ["a", "b", "c", "d", "e", "f"]
    rows = named(SchemaRelations(), Schema(words, [(0, words)], [words]))
    assert {(row[6], row[7]) for row in rows[:6]} == {("qc_CEM", "qt_TEM")}


def test_schemas_are_plain_values():
    again = Schema(**{name: getattr(EVERYTHING, name) for name in EVERYTHING.__dataclass_fields__})
    assert again == EVERYTHING
    assert hash(again) == hash(EVERYTHING)
    assert eval(repr(EVERYTHING)) == EVERYTHING
    assert len(EVERYTHING) == 13 + 8 + 4


ONE = {"question": ["a"], "columns": [(0, ["b"])], "tables": [["t"]]}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tables": [["t"], "singer"]}, TypeError, "tables[1] must be a sequence, got str"),
        ({"columns": [(0, [])]}, ValueError, "columns[0][1] must have a name of at least one word, got none"),
        ({"columns": [(0,)]}, ValueError, "columns[0] must have 2 entries, got 1; a column is (number of its table"),
        ({"columns": [(1, ["b"])]}, ValueError, "columns[0][0] must be one of the 1 tables, numbered from 0, got 1"),
        (
            {"columns": [(-1, ["b"])]},
            ValueError,
            "one of the 1 tables, numbered from 0, got -1; a column is (number of its table, or None for '*', words of its name)",
        ),
        ({"columns": [(0, "age")]}, TypeError, "columns[0][1] must be a sequence, got str; a column is"),
        ({"foreign_keys": [(0, 0), (0, 4)]}, ValueError, "foreign_keys[1] must be one of the 1 columns"),
        ({"values": [(1, 0, "TIME")]}, ValueError, "values[0] must be one of the 1 words, numbered from 0, got 1"),
        ({"values": [(0, 0, "DATE")]}, ValueError, "unknown values[0] 'DATE'; expected one of"),
    ],
)
def test_refuses_bad_schemas(change, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Schema(**(ONE | change))


def test_refuses_bad_input():
    with pytest.raises(TypeError, match=r"schemas\[1\] must be a Schema, got dict"):
        SchemaRelations()([SMALL, {}])
    with pytest.raises(ValueError, match="schemas must hold at least one Schema, got none"):
        SchemaRelations()([])
