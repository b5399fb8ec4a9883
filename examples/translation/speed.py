"""The command ``speed``: target tokens per second of training, alternating relative and sinusoidal positions."""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import torch
from tqdm import tqdm

from examples.translation.processes import processes
from examples.translation.settings import PRECISIONS, PRESETS, ModelSettings, TrainingSettings
from examples.translation.training import Training

POSITIONS = ("sinusoidal", "relative")
WARM_UP_ROUNDS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="sizes of the model (default: small)")
    parser.add_argument("--max-distance", type=int, default=16, help="k of relative positions (default: 16)")
    parser.add_argument("--batch-tokens", type=int, default=1250, help="as for train (default: 1250)")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="as for train (default: auto)")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of measurements (default: 20)")
    parser.add_argument("--steps", type=int, default=10, help="updates in each measurement (default: 10)")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="torch.compile the models (default: on a GPU)"
    )
    parser.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")


def run(args: argparse.Namespace) -> None:
    """Print the speeds of both, and the ratio of their times per round."""
    if args.rounds < 2 or args.steps < 1:
        raise ValueError(f"--rounds must be at least 2 and --steps at least 1, got {args.rounds} and {args.steps}")
    settings = TrainingSettings(batch_tokens=args.batch_tokens, precision=args.precision)
    base = ModelSettings(**{**PRESETS[args.preset], "max_distance": args.max_distance})
    with processes(args.device) as mine, tempfile.TemporaryDirectory() as folder:
        compiled = mine.device.type == "cuda" if args.compile is None else args.compile
        trainings = [
            Training(args.data, Path(folder) / name, replace(base, positions=name), settings, mine, compiled=compiled)
            for name in POSITIONS
        ]
        rounds = [
            _round(trainings if number % 2 else trainings[::-1], args.steps)
            for number in tqdm(
                range(args.rounds + WARM_UP_ROUNDS), unit="round", leave=False, disable=None if mine.leads else True
            )
        ][WARM_UP_ROUNDS:]
        if not mine.leads:
            return
        where = torch.cuda.get_device_name() if mine.device.type == "cuda" else platform.processor() or "a CPU"
        print(f"{args.preset}, {args.precision}, {where}, {torch.get_num_threads()} threads, torch {torch.__version__}")
        speeds = {t.model.settings.positions: [each[t] for each in rounds] for t in trainings}
    for name, values in speeds.items():
        print(f"{name}: {_spread(values, ',.0f')} target tokens per second")
    ratios = [plain / other for plain, other in zip(speeds["sinusoidal"], speeds["relative"], strict=True)]
    print(f"time of relative divided by sinusoidal: {_spread(ratios, '.3f')}")


def _round(trainings: list[Training], steps: int) -> dict[Training, float]:
    """Target tokens per second of each, over the same number of updates on the same batches."""
    speeds = {}
    for training in trainings:
        _finish(training)
        start = time.perf_counter()
        tokens = sum(training.update()[0] for _ in range(steps))
        _finish(training)
        speeds[training] = tokens / (time.perf_counter() - start)
    return speeds


def _finish(training: Training) -> None:
    if training.processes.device.type == "cuda":
        torch.cuda.synchronize(training.processes.device)


def _spread(values: list[float], form: str) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):{form}} ({low:{form}}–{high:{form}})"
