"""Tests the schema-linking example: one column fits each question, and words reveal nothing else."""

import random

import pytest
import schema_linking as example
from schema_linking import make_question

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
