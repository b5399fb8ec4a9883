"""Tests the schema-linking example: one column fits each question, and words reveal nothing else."""

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
    """Answer the question from the schema again, by trying every column."""
    for question in questions:
        schema = question.schema
        (asked,) = [t for t, (name,) in enumerate(schema.tables) if name in schema.question]
        behind = "behind" in schema.question
        assert behind == question.behind == ("of" not in schema.question)
        homes = {asked}
        if behind:
            homes = {schema.columns[b][0] for a, b in schema.foreign_keys if schema.columns[a][0] == asked}
        fit = [c for c, (table, (name,)) in enumerate(schema.columns) if name in schema.question and table in homes]
        assert fit == [question.target]


def test_names_and_places_alone_do_not_settle_the_answer(questions):
    for question in questions:
        schema = question.schema
        name = schema.columns[question.target][1]
        assert [table for table, other in schema.columns if other == name] == list(range(len(schema.tables)))
        assert len(schema.question) == len(set(schema.question)) == 5
    assert 60 < sum(question.behind for question in questions) < 140
    assert len({question.target for question in questions}) > 10


def test_a_match_of_names_settles_of_and_leaves_behind_open(questions):
    for question in questions:
        schema = question.schema
        matches = example.match_names(schema)[len(schema.question) :]
        both = [column for column, match in enumerate(matches[: len(schema.columns)]) if all(match)]
        assert (both == [question.target]) == (not question.behind)
        assert sum(name for name, _ in matches) == len(schema.tables) + 1  # columns of that name, and the table's name
    named, told = example.guesses([example.Batch.make(questions, dict.fromkeys([*WORDS, *example.MARKS], 0))]).values()
    assert told["of"] == 1.0
    assert 1 / 5 <= named["of"] <= 1 / 4 <= told["behind"] <= 1 / 3


def test_words_of_test_questions_are_in_none_of_training():
    assert len({*words_of("train"), *words_of("test"), *example.MARKS}) == example.WORDS + 2
    train, test = (make_batches(3, 24, 0, part) for part in ("train", "test"))
    seen, asked = ({word for batch in part for word in batch.words.tolist()} for part in (train, test))
    assert seen & asked == {0, 1}  # the marks
