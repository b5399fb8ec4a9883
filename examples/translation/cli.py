"""The commands: prepare, train, average, translate, evaluate, sweep, speed and report."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from examples.translation import checkpoints, preparation, report, speed, sweep
from examples.translation.corpus import decode_lines, read_test
from examples.translation.evaluation import evaluate
from examples.translation.files import save_json, save_text
from examples.translation.model import Translator
from examples.translation.processes import find_device, processes
from examples.translation.search import Search, translate
from examples.translation.settings import POSITIONS, PRECISIONS, PRESETS, ModelSettings, TrainingSettings
from examples.translation.training import Training
from examples.translation.vocabulary import Vocabulary

INTERRUPTED = 130
CHOICES = {"positions": POSITIONS, "precision": PRECISIONS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    own, passed_on = _split(list(sys.argv[1:] if arguments is None else arguments))
    args = _parser().parse_args(own)
    if passed_on and args.command is not sweep.run:
        _parser().error(f"only sweep takes options after --, got {' '.join(passed_on)}")
    args.options = passed_on
    try:
        return args.command(args) or 0
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        print(f"error: {f'{error.filename} does not exist' if missing else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first ``--``."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.translation", description=sys.modules[__package__].__doc__
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    prepare = commands.add_parser("prepare", help="split a corpus and learn its vocabulary")
    preparation.add_arguments(prepare)
    prepare.set_defaults(command=preparation.run)

    train = commands.add_parser("train", help="train a model, or continue a training run")
    train.add_argument("data", type=Path, help="the folder that prepare wrote")
    train.add_argument("run", type=Path, help="the folder to write to; a run already there continues")
    train.add_argument(
        "--preset",
        choices=PRESETS,
        default="small",
        help="sizes, which other options can change; the paper measures the last checkpoint of base (average --last 1) "
        "and the mean of the last 20 of big (--keep 20) (default: small)",
    )
    _add_settings(train, ModelSettings)
    _add_settings(train, TrainingSettings)
    train.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="torch.compile the model (default: on a GPU)",
    )
    train.set_defaults(command=_train)

    average = commands.add_parser("average", help="average the last models of a run")
    average.add_argument("run", type=Path, help="the folder of a training")
    average.add_argument("--last", type=int, help="number of models, 1 for only the last (default: all that are kept)")
    average.set_defaults(command=_average)

    lines = commands.add_parser("translate", help="translate lines of text")
    lines.add_argument("model", type=Path, help="a .pt file, or an averaged run")
    lines.add_argument("--longest", type=int, default=1000, help="most tokens per line (default: 1000)")
    _add_search(lines)
    lines.set_defaults(command=_translate)

    measure = commands.add_parser("evaluate", help="perplexity, BLEU and chrF on test sets")
    measure.add_argument("model", type=Path, help="a .pt file, or an averaged run")
    measure.add_argument("tests", type=Path, nargs="+", help="tab-separated files, one per test")
    measure.add_argument(
        "--output", type=Path, help="folder for results.json and the translations (default: the folder of the model)"
    )
    _add_search(measure)
    measure.set_defaults(command=_evaluate)

    many = commands.add_parser("sweep", help="train and measure every model of the report")
    sweep.add_arguments(many)
    many.set_defaults(command=sweep.run)

    times = commands.add_parser(
        "speed", help="compare the speed of training with relative and with sinusoidal positions"
    )
    speed.add_arguments(times)
    times.set_defaults(command=speed.run)

    page = commands.add_parser("report", help="write the report page from the runs of a sweep")
    report.add_arguments(page)
    page.set_defaults(command=report.run)

    return parser


def _add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for each setting, with its help from the class's docstring."""
    helps = dict(re.findall(r"^ +(\w+): (.+)$", inspect.getdoc(kind) or "", re.MULTILINE))
    for field in fields(kind):
        name = f"--{field.name.replace('_', '-')}"
        text = f"{helps.get(field.name, '').rstrip('.')} (default: {_default(field)})"
        if field.type == "bool":
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            types: dict[Any, Any] = {"int": int, "float": float, "str": str}
            parser.add_argument(name, type=types[field.type], choices=CHOICES.get(field.name), help=text)


def _default(field: Field[Any]) -> str:
    """The default, followed by those of presets that differ."""
    others = [f"{name} {sizes[field.name]}" for name, sizes in PRESETS.items() if field.name in sizes]
    return ", ".join([str(field.default), *others])


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, default=4, help="width of the beam; 1 is greedy search (default: 4)")
    parser.add_argument(
        "--length-penalty", type=float, default=0.6, help="values above 0 favour longer translations (default: 0.6)"
    )
    parser.add_argument(
        "--extra",
        type=int,
        default=50,
        help="how many tokens longer than its source a translation may be (default: 50)",
    )


def _given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    values = {field.name: getattr(args, field.name) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _train(args: argparse.Namespace) -> int:
    model = ModelSettings(**{**PRESETS[args.preset], **_given(args, ModelSettings)})
    settings = TrainingSettings(**_given(args, TrainingSettings))
    with processes() as mine:
        compiled = mine.device.type == "cuda" if args.compile is None else args.compile
        training = Training(args.data, args.run, model, settings, mine, compiled=compiled)
        if mine.leads:
            _announce(args.run, training)
        finished = training.train()
        if mine.leads and not finished:
            print(f"{args.run}: stopped after step {training.position.step}; the same command continues")
        elif mine.leads:
            print(f"{args.run}: {training.position.step:,} steps are done")
    return 0 if finished else INTERRUPTED


def _announce(run: Path, training: Training) -> None:
    """Print what the command is about to train."""
    step = training.position.step
    begin = f"continuing after step {step}" if step else "a new training"
    print(f"{run}: {begin}, {training.describe()['parameters']:,} parameters, on {training.processes.device}")
    if training.too_long:
        print(f"{run}: {training.too_long:,} pairs with more than --longest tokens are left out")


def _average(args: argparse.Namespace) -> None:
    paths = checkpoints.saved_models(args.run)
    if not paths:
        raise ValueError(f"{args.run} must hold the models of a training, found none")
    if args.last is not None and not 1 <= args.last <= len(paths):
        raise ValueError(f"--last must be in [1, {len(paths)}], the models of {args.run}, got {args.last}")
    steps = checkpoints.average(paths[-args.last :] if args.last else paths, args.run / checkpoints.AVERAGE)
    print(f"{args.run / checkpoints.AVERAGE}: the mean of steps {', '.join(map(str, steps))}")


def _load(args: argparse.Namespace) -> tuple[Path, Translator, Vocabulary, Search]:
    """The model's file, the model with its vocabulary, and how to search."""
    how, path = Search(args.beam, args.length_penalty, args.extra), args.model
    if path.is_dir():
        path /= checkpoints.AVERAGE
        if not path.exists():
            raise ValueError(f"{args.model} must hold {checkpoints.AVERAGE}; write it with the command average")
    return path, *checkpoints.load_model(path, find_device()), how


def _translate(args: argparse.Namespace) -> None:
    _, model, vocabulary, how = _load(args)
    lines = list(decode_lines(sys.stdin.buffer, "standard input"))
    found = translate(model, vocabulary, lines, how, longest=args.longest)
    sys.stdout.write("".join(f"{line}\n" for line in found))


def _evaluate(args: argparse.Namespace) -> None:
    tests = {path.name.removesuffix(".gz").removesuffix(".tsv"): read_test([path]) for path in args.tests}
    file, model, vocabulary, how = _load(args)
    folder, results = args.output or file.parent, {}
    for name, pairs in tests.items():
        results[name], found = evaluate(model, vocabulary, pairs, how)
        row = results[name]
        print(
            f"{name}: perplexity {row['perplexity']:.2f}, BLEU {row['bleu']:.2f}, chrF {row['chrf']:.2f}, length ratio "
            f"{row['length_ratio']:.2f}, {row['signature']}"
        )
        save_text(folder / f"{name}.translated.txt", "".join(f"{line}\n" for line in found))
    search = {"beam": how.beam, "length_penalty": how.length_penalty, "extra": how.extra}
    of = {"averaged_steps": checkpoints.steps_of(file), "search": search}
    save_json(folder / "results.json", {**of, "tests": results})
