"""The schema-linking example: one column fits each question, words tell nothing else, and its command line works."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.pyplot import imread

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

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
        behind = "behind" in schema.question
        assert behind == question.behind == ("of" not in schema.question)
        homes = {asked}
        if behind:
            homes = {schema.columns[b][0] for a, b in schema.foreign_keys if schema.columns[a][0] == asked}
        fit = [c for c, (table, (name,)) in enumerate(schema.columns) if name in schema.question and table in homes]
        assert fit == [question.target]


def test_names_alone_do_not_settle_the_answer(questions):
    for question in questions:
        schema = question.schema
        name = schema.columns[question.target][1]
        tables = [table for table, other in schema.columns if other == name]
        assert tables == list(range(len(schema.tables)))
        assert len(schema.question) == len(set(schema.question)) == 5


def test_both_marks_and_every_place_occur(questions):
    assert 60 < sum(question.behind for question in questions) < 140
    assert len({question.target for question in questions}) > 10


def test_words_of_test_questions_are_in_none_of_training():
    assert len({*words_of("train"), *words_of("test"), *example.MARKS}) == example.WORDS + 2
    train, test = (make_batches(3, 24, 0, part) for part in ("train", "test"))
    seen, asked = ({word for batch in part for word in batch.words.tolist()} for part in (train, test))
    assert seen & asked == {0, 1}  # the marks


def test_a_batch_holds_what_its_questions_hold():
    number = {word: at for at, word in enumerate((*example.MARKS, *WORDS))}
    rng = random.Random(3)
    questions = [make_question(rng, WORDS) for _ in range(3)]
    batch = example.Batch.make(questions, number)
    ptr = batch.relations.k_ptr.tolist()
    assert ptr[-1] == len(batch.words) == len(batch.kinds) == batch.distance.q_len
    for question, start, end in zip(questions, ptr[:-1], ptr[1:], strict=True):
        assert end - start == len(question.schema)
        column = start + (batch.kinds[start:end] == 0).sum().item() + question.target
        assert batch.kinds[column] == 1
        assert batch.words[column] == number[question.schema.columns[question.target][1][0]]


def test_items_are_named_in_the_order_of_their_positions(questions):
    schema = questions[0].schema
    names, tables = example.items(schema), [name for (name,) in schema.tables]
    assert len(names) == len(schema)
    assert names[: len(schema.question)] == list(schema.question)
    assert names[-len(tables) :] == tables
    answer = names[len(schema.question) + questions[0].target]
    table, (name,) = schema.columns[questions[0].target]
    assert answer == f"{tables[table]}.{name}"


@pytest.mark.parametrize("variant", example.VARIANTS.values(), ids=example.VARIANTS)
def test_each_schema_scores_its_own_columns(variant):
    torch.manual_seed(0)
    (batch,) = make_batches(1, 5, 0, "test")
    scores = example.Pointer(variant)(batch)
    counts = [(part == 1).sum().item() for part in batch.kinds.split(batch.relations.k_ptr.diff().tolist())]
    assert torch.isfinite(scores).sum(1).tolist() == counts
    assert (scores.gather(1, batch.target[:, None]) > float("-inf")).all()


@pytest.fixture
def short(monkeypatch):
    """A command of three steps, with few questions."""
    monkeypatch.setattr(example, "QUICK", example.Size(9, 6, 2, 2))
    monkeypatch.setattr(example, "SECONDS_A_STEP", {example.QUICK: 0.01})
    return ["--quick", "--steps", "3", "--out"]


def test_command_line_trains_all_rows(tmp_path, capsys, short):
    assert example.main([*short, str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    sizes = {"steps", "questions", "batches", "tests"}
    assert results.keys() == {"python", "torch", "relgraph", "quick", *sizes, "notes", "runs"}
    assert [run["variant"] for run in results["runs"]] == list(example.VARIANTS)
    for run in results["runs"]:
        assert len(run["losses"]) == results["steps"] == 3
        assert all(0 <= run[name] <= 1 for name in ("accuracy", "of", "behind"))
    baselines = results["notes"]["baselines"]
    assert 0 < baselines["any column"] < baselines["a column of that name"] < 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in example.VARIANTS)
    for name in ("results", "labels", "attention", "mass"):
        assert f"picture: {tmp_path / name}.png" in printed
        assert imread(tmp_path / f"{name}.png")[..., :3].std() > 0.05


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch, short):
    train, started = example.train, []

    def stopped(*arguments):
        started.append(arguments[-1])
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(example, "train", stopped)
    assert example.main([*short, str(tmp_path)]) == 130
    printed = capsys.readouterr().out
    assert "stopped: 1 of 3 runs are kept" in printed
    table = printed[printed.index("goes on from there") :]
    assert "no relations" in table
    assert "schema relations" not in table
    assert example.main([*short, str(tmp_path)]) == 0
    first, *others = example.VARIANTS
    assert started == [f"{name}, seed 0" for name in (first, others[0], *others)]


def test_other_settings_in_the_folder_are_an_error(tmp_path, capsys, short):
    (tmp_path / "results.json").write_text('{"steps": 9, "runs": []}')
    with pytest.raises(SystemExit, match="2"):
        example.main([*short, str(tmp_path)])
    assert "begin anew by --fresh" in capsys.readouterr().err


def test_label_mass_is_that_of_every_layer_and_head():
    torch.manual_seed(0)
    model = example.Pointer(example.VARIANTS["schema relations"])
    mass = example.label_mass(model, make_batches(2, 3, 0, "test"))
    assert mass.shape == (example.LAYERS, example.HEADS, example.RELATIONS.num_labels)
    torch.testing.assert_close(mass.sum(-1), torch.ones(mass.shape[:2]))


def test_report_shows_mean_and_spread():
    runs = [example.Run("a", seed, right, right, right, 2.0, []) for seed, right in enumerate((0.5, 0.6, 0.7))]
    assert example.report(runs).count("60.0 % ± 10.0") == 3
