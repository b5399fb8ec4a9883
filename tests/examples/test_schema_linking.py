"""Tests the schema-linking example: one column fits each question, and words reveal nothing else."""

import random

import pytest
import torch
from experiments import schema_linking as example
from experiments.schema_linking import ROWS, Batch
from schema_linking import MARKS, NUMBER, make_question

WORDS = [f"w{n}" for n in range(100)]


@pytest.fixture(scope="module")
def questions():
    rng = random.Random(0)
    return [make_question(rng, WORDS) for _ in range(200)]


def test_the_answer_follows_from_names_and_keys(questions):
    """Answer the question from the schema again, by trying every column."""
    for schema, target, behind in questions:
        (asked,) = [t for t, (name,) in enumerate(schema.tables) if name in schema.question]
        assert behind == ("behind" in schema.question) == ("of" not in schema.question)
        homes = {asked}
        if behind:
            homes = {schema.columns[b][0] for a, b in schema.foreign_keys if schema.columns[a][0] == asked}
        fit = [c for c, (table, (name,)) in enumerate(schema.columns) if name in schema.question and table in homes]
        assert fit == [target]


def test_a_match_of_names_settles_of_and_leaves_behind_open(questions):
    for schema, target, behind in questions:
        matches = example.match_names(schema)[len(schema.question) :]
        both = [column for column, match in enumerate(matches[: len(schema.columns)]) if all(match)]
        assert (both == [target]) == (not behind)
        assert sum(name for name, _ in matches) == len(schema.tables) + 1  # columns of that name, and the table's name
    named, told = example.guesses([Batch.make(questions, dict.fromkeys([*WORDS, *MARKS], 0))]).values()
    assert told["of"] == 1.0
    assert 1 / 5 <= named["of"] <= 1 / 4 <= told["behind"] <= 1 / 3


@pytest.mark.parametrize("name", ROWS)
def test_rows_read_a_question_in_a_batch_as_alone(name):
    torch.manual_seed(0)
    row, rng = ROWS[name], random.Random(0)
    model, asked = row.model(), [make_question(rng, sorted(NUMBER)) for _ in range(3)]
    scores, last = (row.scores(model, Batch.make(some))[-1] for some in (asked, asked[2:]))
    torch.testing.assert_close(scores[: len(last)], last)
    assert scores[len(last) :].isinf().all()
    kinds = {weight.split(".tables.")[1].split(".")[0] for weight in model.state_dict() if ".tables." in weight}
    assert kinds == (set() if row.labeler is None else set(row.tables))


def test_rotary_positions_say_more_than_none():
    """With the same weights, where only positions differ."""
    batch, scores = Batch.make([make_question(random.Random(0), sorted(NUMBER))]), []
    for name in ("no relations", "rotary"):
        torch.manual_seed(0)
        scores.append(ROWS[name].scores(ROWS[name].model(), batch))
    assert (scores[0] - scores[1]).abs().max() > 1e-3
