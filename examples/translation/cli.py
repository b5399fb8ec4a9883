"""The commands: prepare, train, translate, speed and report."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from examples.translation import corpus, report, speed
from examples.translation.evaluation import evaluate
from examples.translation.files import save_json, save_tensors, save_text
from examples.translation.processes import find_device, processes
from examples.translation.search import Search, translate
from examples.translation.settings import POSITIONS, PRECISIONS, PRESETS, ModelSettings, TrainingSettings
from examples.translation.training import Training, average, load_model

INTERRUPTED = 130
CHOICES = {"positions": POSITIONS, "precision": PRECISIONS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    args = _parser().parse_args(arguments)
    try:
        args.command(args)
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        print(f"error: {f'{error.filename} does not exist' if missing else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues from the last checkpoint", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.translation", description=sys.modules[__package__].__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    prepare = commands.add_parser("prepare", help="split a corpus and learn its vocabulary")
    corpus.add_arguments(prepare)
    prepare.set_defaults(command=corpus.prepare)

    train = commands.add_parser("train", help="train a model and measure it on the tests, or continue a training run")
    train.add_argument("data", type=Path, help="the folder that prepare wrote")
    train.add_argument("run", type=Path, help="the folder to write to; a run already there continues")
    train.add_argument(
        "--preset", choices=PRESETS, default="small", help="sizes, which other options can change (default: small)"
    )
    for kind in (ModelSettings, TrainingSettings, Search):
        _add_settings(train, kind)
    train.set_defaults(command=_train)

    lines = commands.add_parser("translate", help="translate lines of text")
    lines.add_argument("run", type=Path, help="the folder of a training that is done")
    _add_settings(lines, Search)
    lines.set_defaults(command=_translate)

    times = commands.add_parser(
        "speed", help="compare the speed of training with relative and with sinusoidal positions"
    )
    speed.add_arguments(times)
    times.set_defaults(command=speed.run)

    page = commands.add_parser("report", help="write a page of tables and pictures from a folder of runs")
    report.add_arguments(page)
    page.set_defaults(command=report.run)
    return parser


def _add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for each setting, with its help from the class's docstring."""
    helps = dict(re.findall(r"^ +(\w+): (.+)$", inspect.getdoc(kind) or "", re.MULTILINE))
    types: dict[Any, Any] = {"int": int, "float": float, "str": str}
    for field in fields(kind):
        name = f"--{field.name.replace('_', '-')}"
        presets = [f"{name} {sizes[field.name]}" for name, sizes in PRESETS.items() if field.name in sizes]
        text = f"{helps.get(field.name, '').rstrip('.')} (default: {', '.join([str(field.default), *presets])})"
        if field.type == "bool":
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(name, type=types[field.type], choices=CHOICES.get(field.name), help=text)


def _given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    values = {field.name: getattr(args, field.name) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _train(args: argparse.Namespace) -> None:
    model = ModelSettings(**{**PRESETS[args.preset], **_given(args, ModelSettings)})
    settings, how = TrainingSettings(**_given(args, TrainingSettings)), Search(**_given(args, Search))
    with processes() as alone:
        training = Training(args.data, args.run, model, settings, alone)
        step, config, results = training.position.step, training.describe(), args.run / report.RESULTS
        if alone.leads:
            begin = f"continuing after step {step}" if step else "a new training"
            print(f"{args.run}: {begin}, {config['parameters']:,} parameters, {config['pairs']:,} pairs", flush=True)
            if step < settings.steps or not _measured(results, settings.keep, how):
                results.unlink(missing_ok=True)
        training.train()
    if alone.leads and not results.exists():
        steps = average(args.run, model, training.vocabulary, settings.keep)
        measure(args.data, args.run, how, {"config": config, "averaged_steps": steps, "search": asdict(how)})
    if alone.leads:
        print(f"{args.run}: {training.position.step:,} steps are done and measured in {results}")


def _measured(results: Path, keep: int, how: Search) -> bool:
    """Whether there are results, of a mean of as many models and of this search."""
    if not results.exists():
        return False
    known = json.loads(results.read_text(encoding="utf-8"))
    return known["config"]["training"]["keep"] == keep and known["search"] == asdict(how)


def measure(data: Path, run: Path, how: Search, about: dict[str, Any]) -> None:
    """Translate the tests; write the translations, what BLEU sums over them, and the measures after ``about``."""
    model, vocabulary = load_model(run, find_device())
    tests, statistics = {}, {}
    for path in sorted(data.glob("test*.tsv")):
        tests[path.stem], statistics[path.stem], found = evaluate(model, vocabulary, corpus.read_corpus([path]), how)
        row = tests[path.stem]
        figures = f"perplexity {row['perplexity']:.2f}, BLEU {row['bleu']:.2f}, chrF {row['chrf']:.2f}"
        print(f"{path.stem}: {figures}, {row['signature']}", flush=True)
        save_text(run / f"{path.stem}.translated.txt", "".join(f"{line}\n" for line in found))
    save_tensors(run / report.STATISTICS, statistics)
    save_json(run / report.RESULTS, {**about, "tests": tests})


def _translate(args: argparse.Namespace) -> None:
    model, vocabulary = load_model(args.run, find_device())
    lines = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").split("\n")
    found = translate(model, vocabulary, lines, Search(**_given(args, Search)))
    sys.stdout.write("".join(f"{line}\n" for line in found))
