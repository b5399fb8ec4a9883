"""Run the experiment behind a page of the gallery: ``python examples/run.py karate_club --quick``."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, until_stopped
from experiments import Experiment
from kept_results import KEPT, SHORT, Kept

FOLDER = Path(__file__).resolve().parent / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def summary(name: str) -> str:
    """The first line of an experiment's docstring; its packages need not be installed."""
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that the first word names; what follows are its options."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in NAMES:
        parser = argparse.ArgumentParser(
            description="Run the experiment behind a page of the gallery. NAME --help shows its options.",
            epilog="\n".join(["experiments:", *(f"  {name:<22}{summary(name)}" for name in NAMES)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("name", choices=NAMES, metavar="NAME", help="one of the experiments below")
        parser.parse_args(argv)
    return run(argv[0], import_module(f"experiments.{argv[0]}").EXPERIMENT, argv[1:])


def run(name: str, experiment: Experiment, argv: Sequence[str]) -> int:
    """Train the rows that ``results.json`` lacks, print the table and draw; return the exit status."""
    rows = [*experiment.rows]
    usual = experiment.long_rows or rows
    options = Options(
        f"{name.replace('_', '-')}-out", summary(name), experiment.short,
        rows=(rows, usual, experiment.short_rows or usual), **experiment.numbers,
    )  # fmt: skip
    options.prog = f"run.py {name}"
    if experiment.options:
        experiment.options(options)
    arguments = options.read(argv)
    if experiment.check:
        experiment.check(options, arguments)
    work = experiment.begin(arguments)
    settings = {"quick": arguments.quick, **work.settings}
    try:
        runs = Runs(arguments.out, experiment.kind, settings, fresh=arguments.fresh)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    announce(len(arguments.rows) * len(arguments.seeds), work.seconds, runs.folder, work.processes)
    if work.prepare:
        work.prepare()
    finished = runs.each(arguments.rows, arguments.seeds, work.run, work.processes, experiment.tell)
    if arguments.quick:
        print(SHORT)
    rules, report = {"rules": work.rules()} if work.rules else {}, work.report or experiment.report
    assert report
    print(report(runs.done, *rules.values()))
    if not finished:
        return INTERRUPTED
    if rules:
        runs.save(**rules)
    print(f"results: {runs.path}")
    if arguments.quick and (KEPT / f"{name}.json").is_file():
        Kept.read(name).draw(runs.folder)
    if work.draw:
        work.draw(runs)
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
