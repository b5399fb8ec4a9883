"""Tests the quickstart: data reveal no answers, labels belong to their function, and tests do not choose settings."""

import random
import sysconfig
from pathlib import Path

import code_relations
import pytest
import stdlib_functions as data
import torch
from experiments import quickstart

from relgraph.interop import python


@pytest.fixture(scope="module")
def parts():
    """Training and test functions from every sixth file of the standard library."""
    files = data.source_files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "source_files", lambda root: list(files(root))[::6])
        return data.load()


@pytest.fixture(scope="module")
def questions(parts):
    train, test = parts
    return data.Questions(test[:200], data.Vocabulary(train[:500]))


def _read(tmp_path, source, longest=300):
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    return [f for f, _ in data.read_functions(tmp_path / "module.py", "module.py", data.Sizes(1, longest))]


def test_files_and_functions_of_all_parts_are_disjoint(parts):
    train, test = parts
    assert len(train) > 200
    assert len(test) > 60
    assert all(data.is_test_file(f.path) for f in test)
    assert not any(data.is_test_file(f.path) for f in train)
    # validation functions come from other training files
    root = Path(sysconfig.get_paths()["stdlib"]) / "asyncio"
    train, held_out = data.load(root=root, validation=True)
    everything = data.load(root=root)
    assert everything == data.load(root=root)
    assert {f.path for f in train}.isdisjoint(f.path for f in held_out)
    assert {f.path for f in train + held_out} == {f.path for f in everything[0]}
    assert not any(data.is_validation_file(f.path) for f in test)


def test_every_candidate_stands_where_it_is_said_to_and_elsewhere_too(parts):
    for function in parts[0] + parts[1]:
        assert len(set(function.names)) == len(function.names) >= 2
        for token, variable in zip(function.tokens, function.variables, strict=True):
            assert variable == -1 or function.names[variable] == token
        assert set(function.variables) - {-1} == set(range(len(function.names)))
        assert not data.RECEIVERS & set(function.names)
        assert function.uses
        assert all(function.variables.count(function.variables[at]) > 1 for at in function.uses)


def test_the_hole_hides_its_name(questions):
    before = [words.clone() for words in questions.words]
    asked = questions.draw(random.Random(3))
    batch = questions.batch(asked)
    rows = torch.arange(len(asked))
    assert (batch.words[rows, batch.hole] == questions.hole).all()
    assert (batch.variables[rows, batch.hole] == -1).all()
    for b, (number, hole) in enumerate(asked):
        function, length = questions.functions[number], len(questions.functions[number].tokens)
        assert function.names[batch.target[b]] == function.tokens[hole]
        assert (batch.variables[b] == batch.target[b]).any()
        others = torch.arange(length) != hole
        assert torch.equal(batch.words[b, :length][others], questions.words[number][others])
        assert torch.equal(batch.variables[b, :length][others], questions.variables[number][others])
        assert batch.padding[b].tolist() == [False] * length + [True] * (batch.words.shape[1] - length)
    assert all(torch.equal(a, b) for a, b in zip(before, questions.words, strict=True))


def _refilled(tmp_path, function, hole, name):
    """The function with another of its variables in the hole, read from its source like any other."""
    line, column = function.places[hole]
    lines = function.source.split("\n")
    lines[line] = lines[line][:column] + name + lines[line][column + len(function.tokens[hole]) :]
    return _read(tmp_path, "if 1:\n" * function.source[0].isspace() + "\n".join(lines), longest=1000)


def _unhidden(function):
    around = code_relations.AROUND if function.source[0].isspace() else ""
    return python.read(around + function.source).edges("LAST_READ")


def test_the_graph_of_a_question_does_not_depend_on_what_is_hidden(tmp_path, parts):
    """The edges are the same for each variable in the hole; without hiding they differ."""
    compared = differing = 0
    rng = random.Random(0)
    for function in rng.sample(parts[1], 60):
        hole = rng.choice(function.uses)
        graph = code_relations.question_graph(function, hole)
        for name in function.names:
            for other in _refilled(tmp_path, function, hole, name):
                rest = [f.tokens[:hole] + f.tokens[hole + 1 :] for f in (function, other)]
                assert rest[0] == rest[1]
                assert code_relations.hide(other, hole) == code_relations.hide(function, hole)
                assert code_relations.question_graph(other, hole) == graph
                compared += 1
                differing += name != function.tokens[hole] and _unhidden(other) != _unhidden(function)
    assert compared > 200
    assert differing > 100


def test_validation_tries_the_same_settings_for_every_row():
    tried = [{(v.learning_rate, v.embedding_std) for v in quickstart.settings(row)} for row in quickstart.VARIANTS]
    assert len(tried[0]) == 6
    assert all(settings == tried[0] for settings in tried)
