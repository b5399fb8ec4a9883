"""The quickstart: its data hold no answers, and its command line trains, prints and writes."""

import itertools
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

import code_relations  # noqa: E402
import quickstart  # noqa: E402
import stdlib_functions as data  # noqa: E402

import relgraph as rg  # noqa: E402
from relgraph.interop import python  # noqa: E402


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


@pytest.mark.slow
def test_files_and_functions_of_both_parts_are_disjoint(parts):
    train, test = parts
    assert len(train) > 1000
    assert len(test) > 200
    assert not {f.path for f in train} & {f.path for f in test}
    assert all(data.is_test_file(f.path) for f in test)
    assert not any(data.is_test_file(f.path) for f in train)


def test_validation_functions_are_training_functions_of_other_files(parts):
    root = Path(sysconfig.get_paths()["stdlib"]) / "asyncio"
    train, held_out = data.load(root=root, validation=True)
    everything = data.load(root=root)
    assert {f.path for f in train}.isdisjoint(f.path for f in held_out)
    assert {f.path for f in train + held_out} == {f.path for f in everything[0]}
    files = {f.path for f in parts[0]}
    assert 0.1 < sum(map(data.is_validation_file, files)) / len(files) < 0.3
    assert not any(data.is_validation_file(f.path) for f in parts[1])


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


def _refilled(tmp_path, function, hole, name):
    """The function with another variable of its own where the hole is, read from its source as any other."""
    line, column = function.places[hole]
    lines = function.source.split("\n")
    lines[line] = lines[line][:column] + name + lines[line][column + len(function.tokens[hole]) :]
    return [f for f, _ in _read(tmp_path, "if 1:\n" * function.source[0].isspace() + "\n".join(lines), longest=1000)]


def test_the_graph_of_a_question_does_not_depend_on_what_is_hidden(tmp_path, parts):
    """Whichever of its variables a function has in the hole, the edges are the same; read unhidden they differ."""
    compared = differing = 0
    rng = random.Random(0)
    for function in rng.sample(parts[1], 60):
        hole = rng.choice(function.uses)
        graph = code_relations.question_graph(function, hole)
        for name in function.names:
            for other in _refilled(tmp_path, function, hole, name):
                assert (
                    other.tokens[:hole] + other.tokens[hole + 1 :]
                    == function.tokens[:hole] + function.tokens[hole + 1 :]
                )
                assert code_relations.hide(other, hole) == code_relations.hide(function, hole)
                assert code_relations.question_graph(other, hole) == graph
                compared += 1
                differing += name != function.tokens[hole] and _unhidden(other) != _unhidden(function)
    assert compared > 200
    assert differing > 100


def _unhidden(function):
    around = code_relations.AROUND if function.source[0].isspace() else ""
    return python.read(around + function.source).edges("LAST_READ")


def test_the_fresh_name_stands_nowhere_else(tmp_path):
    """Not even where the hidden variable is called like it, or what stands around has its name."""
    source = "def f(hidden, b):\n    hidden_ = b\n    return {} + hidden + b + hidden_\n"
    graphs = []
    for name in ("hidden", "b", "hidden_"):
        ((function, _),) = _read(tmp_path, source.format(name))
        hole = function.tokens.index("return") + 1
        assert "return hidden__ +" in code_relations.hide(function, hole)
        graphs.append(code_relations.question_graph(function, hole))
    assert graphs[0] == graphs[1] == graphs[2]


def test_the_nodes_of_a_graph_are_the_tokens_of_its_function(parts):
    for function in random.Random(1).sample(parts[0] + parts[1], 100):
        around = code_relations.AROUND if function.source[0].isspace() else ""
        first = code_relations.TOKENS_AROUND if around else 0
        source = python.read(around + function.source).only(first + at for at in function.order)
        for token, read, kind in zip(function.tokens, source.tokens, source.kinds, strict=True):
            assert token == read or (kind, token) in {("STRING", "<str>"), ("NUMBER", "<num>")}


def test_code_relations_are_those_of_each_function(tmp_path):
    """Every pair of a batch: its first relation, the other way after all of one way, and else its distance."""
    source = "def f(a, b):\n    c = a\n    return c, b\ndef g(x, y):\n    z = x + y\n    return z * x, y\n"
    functions = [f for f, _ in _read(tmp_path, source)]
    asked = data.Questions(functions, data.Vocabulary(functions))
    holes = [function.uses[0] for function in functions]
    ids, attend = quickstart.code_relations(asked.batch(list(enumerate(holes)))).to_dense()
    assert attend.all()
    names = quickstart.CODE.names
    for b, (function, hole) in enumerate(zip(functions, holes, strict=True)):
        read = python.read(code_relations.hide(function, hole))
        expected: dict[tuple[int, int], str] = {}
        for way in (1, -1):
            for name in python.EDGE_TYPES:
                for key, query in read.edges(name):
                    pair = (query, key) if way == 1 else (key, query)
                    expected.setdefault(pair, name if way == 1 else f"{name}⁻¹")
        assert {"SYNTAX", "SYNTAX⁻¹", "LAST_WRITE"} <= set(expected.values())
        for i, j in itertools.product(range(len(function.tokens)), repeat=2):
            distance = f"{max(-8, min(8, j - i))}"
            assert names[ids[b, i, j]] == expected.get((i, j), distance)


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
        state["embedding.weight"] /= model.variant.embedding_std / models[0].variant.embedding_std
        for name, value in shared.items():
            torch.testing.assert_close(state[name], value, rtol=1e-6, atol=0)
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
    mass = quickstart.label_mass(model, questions.batch(questions.draw(random.Random(0))[:5]))
    assert mass.shape == (quickstart.LAYERS, quickstart.HEADS, quickstart.CODE.num_labels)
    torch.testing.assert_close(mass.sum(-1), torch.ones(mass.shape[:2]))


def test_a_sum_of_labels_is_drawn_with_the_labels_of_all_its_parts(tmp_path, questions):
    labeler = quickstart.DISTANCE + rg.ClippedDistance(2)
    variant = quickstart.Variant("sum", labeler, lambda batch: labeler(batch.words.shape[1]))
    part = quickstart.Data(questions, questions, questions.draw(random.Random(0))[:10])
    model = quickstart.build(variant, len(questions.vocabulary), 0)
    mass = quickstart.label_mass(model, next(part.testing()))
    assert mass.shape == (quickstart.LAYERS, quickstart.HEADS, 17 + 5)
    quickstart.draw(tmp_path, model, part)
    from matplotlib.pyplot import imread

    for name in ("tables", "attention"):
        assert imread(tmp_path / f"{name}-sum.png")[..., :3].std() > 0.05


def test_every_row_is_tried_with_the_same_settings():
    tried = [
        {(v.learning_rate, v.embedding_std) for v in quickstart.settings(variant)} for variant in quickstart.VARIANTS
    ]
    assert all(t == tried[0] for t in tried)
    assert len(tried[0]) == 6
    for variant in quickstart.VARIANTS:
        assert (variant.learning_rate, variant.embedding_std) in tried[0]
        assert all(v.labeler == variant.labeler for v in quickstart.settings(variant))


def test_validation_tests_nothing(tmp_path, monkeypatch, capsys, questions):
    part = quickstart.Data(questions, questions, questions.draw(random.Random(0))[:20])
    monkeypatch.setattr(quickstart.Data, "read", classmethod(lambda _, quick, validate: part if validate else None))
    options = ("--validate", "--variants", "relative", "--steps", "1", "--threads", "1", "--out", str(tmp_path))
    assert quickstart.main(options) == 0
    printed = capsys.readouterr().out
    for rate, std in itertools.product(quickstart.LEARNING_RATES, quickstart.EMBEDDING_STDS):
        assert f"relative, rate {rate:g}, std {std:g}" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "results.json"]


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


@pytest.mark.slow
def test_command_line_trains_all_rows(tmp_path):
    done = _command("--quick", "--steps", "5", "--threads", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["variant"] for r in results["runs"]] == [v.name for v in quickstart.VARIANTS]
    assert all(len(r["losses"]) == 5 and 0 <= r["accuracy"] <= 1 for r in results["runs"])
    assert 0 < results["notes"]["baselines"]["chance"] < 1
    for variant in quickstart.VARIANTS:
        assert variant.name in done.stdout
    from matplotlib.pyplot import imread

    kinds = [f"{kind}-{name}" for kind in ("tables", "attention") for name in ("relative", "code-relations")]
    for name in ("results", "labels", *kinds):
        picture = tmp_path / f"{name}.png"
        assert f"picture: {picture}" in done.stdout
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


@pytest.fixture
def part(monkeypatch, questions):
    """Few questions for the command line, whatever is asked for."""
    few = quickstart.Data(questions, questions, questions.draw(random.Random(0))[:20])
    monkeypatch.setattr(quickstart.Data, "read", classmethod(lambda *_: few))
    return few


def test_ctrl_c_prints_what_is_done_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys, part):
    train, started = quickstart.train, []

    def stopped(*arguments):
        started.append(arguments[-1])
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(quickstart, "train", stopped)
    command = ["--steps", "2", "--variants", "none", "relative", "--out", str(tmp_path)]
    assert quickstart.main(command) == 130
    printed = capsys.readouterr().out
    assert "stopped: 1 of 2 runs are kept" in printed
    table = printed[printed.index("goes on from there") :]
    assert "none" in table
    assert "relative" not in table
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 1
    assert quickstart.main(command) == 0
    assert started == ["none, seed 0", "relative, seed 0", "relative, seed 0"]
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"results.png", "tables-relative.png", "attention-relative.png"}


def test_ctrl_c_while_functions_are_read(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(quickstart.Data, "read", stop)
    assert quickstart.main(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().out == "\nstopped\n"


def test_minutes_are_measured_once(tmp_path, monkeypatch, part):
    measured = iter((3, 5))
    monkeypatch.setattr(quickstart, "steps_within", lambda *_: next(measured))
    command = ["--minutes", "1", "--variants", "none", "--out", str(tmp_path)]
    assert quickstart.main(command) == 0
    assert quickstart.main([*command, "--seeds", "2"]) == 0
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(run["seed"], len(run["losses"])) for run in runs] == [(0, 3), (1, 3)]


def test_steps_within_counts_all_runs(monkeypatch, part):
    clock = iter((0.0, 30.0))
    monkeypatch.setattr(quickstart.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(quickstart, "train", lambda *_: [])
    assert quickstart.steps_within(2, quickstart.VARIANTS, 4, part) == 10


def test_other_settings_in_the_folder_are_an_error(tmp_path, capsys, part):
    (tmp_path / "results.json").write_text('{"steps": 9, "runs": []}')
    assert quickstart.main(["--steps", "2", "--out", str(tmp_path)]) == 2
    assert "begin anew by --fresh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "folder"),
    [([], "quickstart-out"), (["--quick"], "quickstart-out/quick"), (["--validate"], "quickstart-out/validate")],
)
def test_short_and_long_commands_write_to_folders_of_their_own(options, folder, part):
    arguments = quickstart.parse_arguments(options)
    assert quickstart.keep(arguments, part).folder == Path(folder)
