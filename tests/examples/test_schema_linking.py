"""The schema-linking example: one column fits each question, and names settle what they are said to settle."""

import random

import pytest
import schema_linking as example
from schema_linking import make_batches, make_question, words_of

WORDS = [f"w{n}" for n in range(100)]


@pytest.fixture(scope="module")
def questions():
    rng = random.Random(0)
    return [make_question(rng, WORDS) for _ in range(200)]


def test_the_answer_follows_from_names_and_keys(questions):
    """Read the question off the schema again, by trying every column."""
    for question in questions:
        schema = question.schema
        (asked,) = [t for t, (name,) in enumerate(schema.tables) if name in schema.question]
        (mark,) = {*schema.question} & {*example.MARKS}
        assert mark == question.mark
        referred = {schema.columns[b][0] for a, b in schema.foreign_keys if schema.columns[a][0] == asked}
        homes = {"only": range(len(schema.tables)), "of": [asked], "behind": referred}[mark]
        fit = [c for c, (table, (name,)) in enumerate(schema.columns) if name in schema.question and table in homes]
        assert fit == [question.target]


def test_names_settle_only_and_of_but_not_behind(questions):
    for question in questions:
        schema = question.schema
        name = schema.columns[question.target][1]
        homes = [table for table, other in schema.columns if other == name]
        assert len(homes) == (1 if question.mark == "only" else len(schema.tables))
        assert len(schema.question) == len(set(schema.question)) == 5
        matches = example.match_names(schema)[5:]
        both = [column for column, match in enumerate(matches[: len(schema.columns)]) if all(match)]
        assert both == [question.target] or question.mark != "of"
        assert both != [question.target] or question.mark != "behind"
        assert sum(match[0] for match in matches) == len(homes) + 1  # and the table's
    assert all(40 < sum(question.mark == mark for question in questions) < 100 for mark in example.MARKS)
    assert len({question.target for question in questions}) > 10


def test_rules_by_names_are_right_as_often_as_they_can_be(questions):
    batch = example.Batch.make(questions, dict.fromkeys([*WORDS, *example.MARKS], 0))
    named, told = example.guesses([batch]).values()
    assert named["only"] == told["only"] == told["of"] == 1.0
    assert 0.2 < named["of"] < 0.25
    assert named["behind"] < told["behind"] < 1 / 3


def test_words_of_test_questions_are_in_none_of_training():
    assert len({*words_of("train"), *words_of("test"), *example.MARKS}) == example.WORDS + 3
    train, test = (make_batches(3, 24, 0, part) for part in ("train", "test"))
    seen, asked = ({word for batch in part for word in batch.words.tolist()} for part in (train, test))
    assert seen & asked == {0, 1, 2}  # the marks
