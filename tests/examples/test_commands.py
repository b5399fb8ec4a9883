"""Tests every example's command: it trains, prints, draws, reads real data, and continues after an interruption."""

import importlib
import json
from functools import cache
from types import SimpleNamespace

import pytest
import run as runner
import torch
from matplotlib.pyplot import imread

SOURCE = """class C:
    def f(self, one, two):
        three = 1 + one + two
        return three * one
"""
"""A function with two places for misuses."""


def kinship(example, patch, _):
    patch.setattr(example, "QUICK", example.Size(9, 3, 2, 1))
    return ["--steps", "2"], list(example.SHORT_ROWS), ["results"]


def copying(example, patch, _):
    patch.setattr(example, "TESTED", 1)
    return ["--steps", "2"], list(example.EXPERIMENT.short_rows), ["reach"]


def schema_linking(example, patch, _):
    patch.setattr(example, "QUICK", example.Size(9, 6, 2, 2))
    return ["--steps", "3", "--rows", *example.ROWS], list(example.ROWS), ["results"]


def relational_tables(example, patch, _):
    patch.setattr(example, "QUICK", example.Size(9, 6, 2, 2))
    return ["--steps", "3"], list(example.EXPERIMENT.short_rows), ["results"]


def dependency_trees(example, patch, _):
    pytest.importorskip("conllu")
    patch.setattr(example, "QUICK_SENTENCES", {"train": 12, "dev": 4, "test": 6})
    return ["--steps", "2", "--rows", *example.ROWS], list(example.ROWS), ["results"]


def variable_misuse(example, patch, folder):
    package = folder / "library" / "package"
    package.mkdir(parents=True)
    for number in range(20):
        (package / f"m{number}.py").write_text(SOURCE)
    patch.setattr(example.sysconfig, "get_paths", lambda: {"stdlib": str(package)})
    return ["--steps", "2"], list(example.EXPERIMENT.short_rows), ["results", "labels", "attention", "mass"]


def graph_classification(example, patch, _):
    patch.setattr(example, "QUICK_GRAPHS", 40)
    return ["--epochs", "1"], list(example.EXPERIMENT.short_rows), ["results"]


def additive_scores(example, patch, _):
    patch.setattr(example, "QUICK_GRAPHS", 40)
    return ["--steps", "2", "--epochs", "1"], list(example.SCORES), ["results"]


def karate_club(example, *_):
    return ["--steps", "2", "--seeds", "1"], list(example.ROWS), ["results"]


def quickstart(example, patch, _):
    import stdlib_functions

    files = stdlib_functions.source_files
    patch.setattr(stdlib_functions, "source_files", lambda root: list(files(root))[::30])
    patch.setattr(example, "load", cache(example.load))
    of_rows = [f"{kind}-{row}" for kind in ("tables", "attention") for row in ("relative", "code-relations")]
    rows = sorted((variant.name for variant in example.VARIANTS), key=lambda row: row != "code relations")
    return ["--steps", "2", "--rows", *rows], rows, ["results", "labels", *of_rows]


def naming_functions(example, patch, folder):
    files = [folder / "named" / f"m{number}.py" for number in range(20)]
    files[0].parent.mkdir()
    for number, path in enumerate(files):
        path.write_text(SOURCE.replace("def f", "def get_value").replace("three", f"three{number}"))
    patch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(folder / "named")})
    return ["--steps", "2"], list(example.EXPERIMENT.long_rows), ["results", "labels", "attention", "norms"]


def pretrained_relations(example, patch, _):
    from experiments import quickstart as task

    options, _, _ = quickstart(task, patch, _)
    return options[:2], list(example.ROWS), ["results", "labels", "tables"]


WITH_PYG = (graph_classification, additive_scores, kinship, karate_club)
CASES = (schema_linking, relational_tables, dependency_trees, variable_misuse, *WITH_PYG, quickstart, naming_functions)
CASES += (pretrained_relations, copying)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.__name__)
def example(request, tmp_path_factory):
    """A small version of an example: its module, its command, its rows and its pictures."""
    if request.param in WITH_PYG:
        pytest.importorskip("torch_geometric")
    if request.param is pretrained_relations:
        pytest.importorskip("transformers")
    if request.param is relational_tables:
        pytest.importorskip("pandas")
    name = request.param.__name__
    by_runner = name in runner.NAMES
    module = importlib.import_module(f"experiments.{name}" if by_runner else name)
    main = (lambda command: runner.main([name, *command])) if by_runner else module.main
    folder, threads = tmp_path_factory.mktemp("example"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        options, rows, pictures = request.param(module, patch, folder)
        yield SimpleNamespace(
            module=module, main=main, command=["--quick", *options, "--out"], rows=rows, pictures=pictures
        )
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(example, tmp_path_factory):
    """The folder of a command that nothing stopped."""
    folder = tmp_path_factory.mktemp("finished")
    assert example.main([*example.command, str(folder)]) == 0
    return folder


def results(folder):
    """The output files, without times."""
    record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for run in record["runs"]:
        del run["seconds"]
    return record


def numbers(value):
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in numbers(part)]
    return [value]


def test_short_mode_trains_all_rows_and_draws(example, finished):
    record = results(finished)
    assert [run["variant"] for run in record["runs"]] == example.rows
    for run in record["runs"]:
        shares = [
            numbers(value)
            for name, value in run.items()
            if name not in ("variant", "seed", "parameters", "epoch", "answers")
        ]
        assert all(0 <= share <= 1 for part in shares for share in part)
    assert all(0 <= share <= 1 for note in record.get("notes", {}).values() for share in numbers(note))
    assert {path.stem for path in finished.glob("*.png")} == set(example.pictures)
    assert all(imread(path)[..., :3].std() > 0.05 for path in finished.glob("*.png"))


def test_help_lists_all_experiments(capsys):
    with pytest.raises(SystemExit, match="^0$"):
        runner.main(["--help"])
    listed = capsys.readouterr().out.split("experiments:")[1]
    assert [line.split()[0] for line in listed.strip().splitlines()] == runner.NAMES
    with pytest.raises(SystemExit, match="^2$"):
        runner.main(["nothing"])
    assert "choose from" in capsys.readouterr().err


@pytest.mark.parametrize("example", [relational_tables], indirect=True, ids=["relational_tables"])
def test_a_stopped_command_goes_on_where_it_was(example, finished, tmp_path, capsys, monkeypatch):
    train, started = example.module.train, []

    def stopped(*arguments, **options):
        started.append(options)
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(example.module, "train", stopped)
    command = [*example.command, str(tmp_path)]
    assert example.main(command) == 130
    printed = capsys.readouterr().out
    assert f"stopped: 1 of {len(example.rows)} runs are kept" in printed
    assert example.rows[0] in printed[printed.index("stopped") :]
    assert example.main(command) == 0
    assert len(started) == len(example.rows) + 1
    assert results(tmp_path) == results(finished)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in finished.iterdir()}
