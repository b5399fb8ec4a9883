"""The quickstart: its data hold no answers, and its command line trains, prints and writes."""

import json
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import quickstart  # noqa: E402
import stdlib_functions as data  # noqa: E402


@pytest.fixture(scope="module")
def parts():
    return data.load()


@pytest.fixture(scope="module")
def questions(parts):
    train, test = parts
    return data.Questions(test[:200], data.Vocabulary(train[:500]))


def _read(tmp_path, source, **sizes):
    path = tmp_path / "module.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return list(data.read_functions(path, "module.py", data.Sizes(**{"shortest": 1, **sizes})))


def test_files_and_functions_of_both_parts_are_disjoint(parts):
    train, test = parts
    assert len(train) > 1000
    assert len(test) > 200
    assert not {f.path for f in train} & {f.path for f in test}
    assert all(data.is_test_file(f.path) for f in test)
    assert not any(data.is_test_file(f.path) for f in train)


def test_no_body_occurs_twice(tmp_path):
    body = "(a, b):\n    c = a + b\n    return c * a\n"
    for number in range(40):
        (tmp_path / f"m{number}.py").write_text(
            f"def f{number}{body}" + f"def g{number}(x, y):\n    return x * {number}, y, x\n"
        )
    train, test = data.load(data.Sizes(shortest=5), tmp_path)
    assert sum(f.name.startswith("f") for f in train + test) == 1


def test_every_candidate_stands_where_it_is_said_to(parts):
    for function in parts[0] + parts[1]:
        assert len(function.tokens) == len(function.variables)
        assert len(set(function.names)) == len(function.names) >= 2
        for token, variable in zip(function.tokens, function.variables, strict=True):
            assert variable == -1 or function.names[variable] == token
        assert set(function.variables) - {-1} == set(range(len(function.names)))
        assert not data.RECEIVERS & set(function.names)


def test_a_hidden_variable_stands_elsewhere_too(parts):
    for function in parts[0] + parts[1]:
        assert function.uses
        for at in function.uses:
            assert function.variables.count(function.variables[at]) > 1


def test_the_hole_hides_its_name(questions):
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


def test_making_a_batch_leaves_the_functions_alone(questions):
    before = [words.clone() for words in questions.words]
    questions.batch(questions.draw(random.Random(0)))
    assert all(torch.equal(a, b) for a, b in zip(before, questions.words, strict=True))


def test_swapping_what_is_hidden_changes_no_input(tmp_path, questions):
    """Two functions that differ in the hidden token alone give the same input: nothing else holds the answer."""
    source = "def f(a, b):\n    c = a + b\n    return {} + a + b + c\n"
    batches = []
    for name in "ab":
        functions = [f for f, _ in _read(tmp_path, source.format(name))]
        asked = data.Questions(functions, questions.vocabulary)
        hole = functions[0].uses[2]
        batches.append(asked.batch([(0, hole)]))
    first, second = batches
    assert torch.equal(first.words, second.words)
    assert torch.equal(first.variables, second.variables)
    assert first.target.item() != second.target.item()


def test_split_keeps_every_question_once_and_its_limit(questions):
    asked = questions.draw(random.Random(0), 2)
    batches = questions.split(asked, 1000, random.Random(1))
    assert sorted(q for batch in batches for q in batch) == sorted(asked)
    for batch in batches:
        longest = max(len(questions.words[number]) for number, _ in batch)
        assert len(batch) == 1 or longest * len(batch) <= 1000


def test_reading_twice_gives_the_same():
    root = Path(sysconfig.get_paths()["stdlib"]) / "email"
    assert data.load(root=root) == data.load(root=root)


def test_layout_docstrings_strings_and_positions(tmp_path):
    source = 'class C:\n    def f(self, é, b=7):\n        """Doc."""\n        é = f"{b}" + "ü" + b  # note\n        return é\n'
    ((function, body),) = _read(tmp_path, source)
    assert function.name == "f"
    assert " ".join(function.tokens) == (
        "def f ( self , é , b = <num> ) : <newline> <indent> é = <str> + <str> + b <newline> return é"
    )
    assert body == function.tokens[function.tokens.index("<indent>") + 1 :]
    assert function.names == ("é", "b")
    assert [function.tokens[at] for at in function.uses] == ["b", "é"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(:\n",
        b"\xff\xfe\x00bad",
        "x = 1\x00\n",
        "def f(a, b):\n  return a\n return b\n",
        "# coding: nonsense\nx = 1\n",
    ],
)
def test_unreadable_files_are_passed_over(tmp_path, source):
    assert _read(tmp_path, source) == []


def test_deep_nesting_is_passed_over(tmp_path):
    assert _read(tmp_path, "x = " + "-" * 100_000 + "1\n") == []


def test_a_folder_without_functions_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="too few functions"):
        data.load(root=tmp_path)


def test_variants_start_alike(questions):
    models = [quickstart.build(variant, len(questions.vocabulary), 0) for variant in quickstart.VARIANTS]
    shared = models[0].state_dict()
    for model in models[1:]:
        state = model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in shared.items())
        assert all(".tables." in name for name in state.keys() - shared.keys())


def test_scores_are_those_of_the_candidates_whatever_the_padding(questions):
    model = quickstart.build(quickstart.VARIANTS[-1], len(questions.vocabulary), 0)
    asked = questions.draw(random.Random(0))[:12]
    scores = model(questions.batch(asked))
    for row, question in zip(scores, asked, strict=True):
        count = len(questions.functions[question[0]].names)
        assert torch.isfinite(row[:count]).all()
        assert (row[count:] == float("-inf")).all()
        torch.testing.assert_close(model(questions.batch([question]))[0], row[:count], atol=1e-4, rtol=1e-4)


def test_label_mass_sums_to_one(questions):
    model = quickstart.build(quickstart.VARIANTS[-1], len(questions.vocabulary), 0)
    mass = model.label_mass(questions.batch(questions.draw(random.Random(0))[:5]))
    assert mass.shape == (quickstart.LAYERS, quickstart.HEADS, quickstart.DISTANCE.num_labels)
    torch.testing.assert_close(mass.sum(-1), torch.ones(mass.shape[:2]))


def test_training_is_the_same_twice(questions):
    def losses():
        model = quickstart.build(quickstart.VARIANTS[-1], len(questions.vocabulary), 1)
        rng = random.Random(1)
        batches = questions.split(questions.draw(rng), 600, rng)
        return quickstart.train(model, map(questions.batch, batches), 3)

    assert losses() == losses()


def _command(*arguments):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def test_command_line_trains_all_rows(tmp_path):
    done = _command("--quick", "--steps", "5", "--threads", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["variant"] for r in results["runs"]] == [v.name for v in quickstart.VARIANTS]
    assert all(len(r["losses"]) == 5 and 0 <= r["accuracy"] <= 1 for r in results["runs"])
    assert 0 < results["baselines"]["chance"] < 1
    for variant in quickstart.VARIANTS:
        assert variant.name in done.stdout
    picture = tmp_path / "tables-relative.png"
    assert str(picture) in done.stdout
    from matplotlib.pyplot import imread

    assert imread(picture)[..., :3].std() > 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "must be above 0"),
        (["--steps", "many"], "invalid int value"),
        (["--minutes", "nan"], "must be above 0"),
        (["--steps", "3", "--minutes", "1"], "not allowed with"),
        (["--seeds", "-1"], "must be above 0"),
        (["--variants", "graph"], "invalid choice"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        quickstart.parse_arguments(arguments)
    assert message in capsys.readouterr().err


def test_a_table_of_several_seeds_has_mean_and_spread():
    runs = [quickstart.Run("a", seed, 1000, accuracy, 2.0) for seed, accuracy in enumerate((0.5, 0.6, 0.7))]
    table = quickstart.report(runs, {"chance": 0.25})
    assert "60.0 % ± 10.0 (50.0–70.0)" in table
    assert "25.0 %" in table
    assert "1,000" in table


def test_ctrl_c_prints_what_is_done(tmp_path, monkeypatch, capsys, questions):
    part = quickstart.Data(questions, questions, questions.draw(random.Random(0))[:20])
    monkeypatch.setattr(quickstart.Data, "read", classmethod(lambda _, quick: part))
    real, calls = quickstart.run, []

    def run(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(quickstart, "run", run)
    assert quickstart.main(["--steps", "2", "--threads", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "stopped" in printed
    assert "none" in printed
    assert "relative" not in printed
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 1
