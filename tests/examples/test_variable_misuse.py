"""Tests the variable-misuse example: it reads GREAT's lines, plants misuses, and counts right answers."""

import gzip
import json
from collections import Counter

import pytest
import run as runner
import torch
from experiments import variable_misuse as example
from great_data import PARTS, Batch, from_json, plant
from stdlib_functions import Sizes, read_functions

import relgraph as rg

TOKENS = ["#NEWLINE#", "def add(", "a", ",", "b", ")", ":", "#NEWLINE#", "#INDENT#", "return", "a", "+", "a"]
EDGES = [[9, 1, 5, "enum_RETURNS_TO"], [10, 2, 3, "enum_LAST_WRITE"], [12, 10, 10, "enum_LAST_LEXICAL_USE"]]
SOURCE = """class C:
    def f(self, one, two):
        \"\"\"Doc.\"\"\"
        three = one + two
        return three * one
"""


def line(project="some/project", bug=True, **changes):
    """A function that adds a to itself; with a bug its second operand should be b."""
    item = {
        "has_bug": bug,
        "source_tokens": TOKENS,
        "edges": EDGES,
        "error_location": 12 if bug else 0,
        "repair_targets": [4] if bug else [],
        "repair_candidates": [4, 2, 10, 12] if bug else ["b", 4, 10, 12, "a", 2],
        "provenances": [{"datasetProvenance": {"filepath": f"{project}/file.py"}}],
    }
    return json.dumps(item | changes)


def read_function(tmp_path, source):
    """The only function of a module."""
    (tmp_path / "module.py").write_text(source)
    ((function, _),) = read_functions(tmp_path / "module.py", "a/module.py", Sizes(shortest=1))
    return function


def test_a_line_is_read():
    record = from_json(line())
    assert record.tokens == tuple(TOKENS)
    assert record.variables == (-1, -1, 0, -1, 1, -1, -1, -1, -1, -1, 0, -1, 0)
    assert (record.error, record.repair, record.project) == (12, 1, "some/project")
    clean = from_json(line(bug=False))
    assert (clean.variables, clean.error, clean.repair) == (record.variables, 0, -1)
    assert from_json(line(repair_candidates=[12, 4, 10, 2])).variables == clean.variables
    graph = record.graph
    assert graph.edge_index.T.tolist() == [edge[:2] for edge in EDGES]
    types = [rg.labelers.GREAT_TYPES[number] for number in graph.edge_type]
    assert types == ["RETURNS_TO", "LAST_WRITE", "LAST_LEXICAL_USE"]
    with pytest.raises(ValueError, match=r"edges must have types of .* got \['NOVEL'\]"):
        from_json(line(edges=[[1, 2, 12, "enum_NOVEL"]]))


def test_no_project_is_in_two_parts():
    parts = [from_json(line(f"user/project{n}")).part for n in range(1000)]
    counts = {part: parts.count(part) / 1000 for part in PARTS}
    assert counts == pytest.approx({"train": 0.7, "validation": 0.1, "test": 0.2}, abs=0.05)
    assert from_json(line()).part == from_json(line(bug=False)).part


def test_a_planted_function_is_the_function_with_that_source(tmp_path):
    """Nothing else reveals the misuse: reading the changed text gives the same tokens, variables and edges."""
    function = read_function(tmp_path, SOURCE)
    record = plant(function, function.tokens.index("return") + 1, function.names.index("two"))
    again = plant(read_function(tmp_path, SOURCE.replace("return three", "return two")))
    assert (again.tokens, again.variables, again.graph) == (record.tokens, record.variables, record.graph)


class Oracle(torch.nn.Module):
    """Always places the bug at column ``place`` and repairs it with variable ``repair``."""

    def __init__(self, place, repair):
        super().__init__()
        self.answers = place, repair

    def forward(self, words, labels, places):
        scores = torch.zeros(places.shape).masked_fill(places < 0, float("-inf"))
        scores[:, self.answers[0]] = 1
        return scores, scores

    def repair(self, x, owner, place):
        scores = torch.zeros(len(place), 2)
        scores[:, self.answers[1]] = 1
        return scores


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ((4, 1), {"bug": 0.75, "place": 2 / 3, "repair": 1.0, "both": 2 / 3}),
        ((4, 0), {"bug": 0.75, "place": 2 / 3, "repair": 0.0, "both": 0.0}),
        ((0, 1), {"bug": 0.25, "place": 0.0, "repair": 1.0, "both": 0.0}),
    ],
)
def test_accuracies(answers, right):
    records = [from_json(line()), from_json(line()), from_json(line(error_location=10)), from_json(line(bug=False))]
    data = [Batch.make(records[:2]), Batch.make(records[2:])]
    assert example.accuracy(Oracle(*answers), example.VARIANTS["none"], data) == pytest.approx(right)


def test_guesses():
    found = example.guesses([from_json(line()), from_json(line(error_location=10)), from_json(line(bug=False))])
    assert found["chance"] == pytest.approx({"bug": 2 / 3, "place": 1 / 4, "repair": 1.0})
    assert found["most often seen"] == found["last before"] == {"repair": 1.0}
    assert found["last place"] == {"place": 0.5}


def test_command_line_reads_lines(tmp_path):
    lines, projects = tmp_path / "lines.jsonl.gz", [f"user/project{n}" for n in range(30)]
    with gzip.open(lines, "wt") as file:
        file.writelines(line(project, bug) + "\n" for project in projects for bug in (True, False))
    options = ["--quick", "--steps", "1", "--rows", *example.VARIANTS, "--out", str(tmp_path)]
    assert runner.main(["variable_misuse", "--data", str(lines), *options]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["variant"] for run in results["runs"]] == list(example.VARIANTS)
    bugs = Counter(from_json(line(project)).part for project in projects)
    assert results["functions_and_bugs"] == {part: [2 * count, count] for part, count in bugs.items()}
    assert results["data"] == "GREAT"
