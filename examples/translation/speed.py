"""The command ``speed``: target tokens per second of training, alternating relative and sinusoidal positions."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import torch

from examples.translation.processes import Processes, find_device
from examples.translation.settings import PRECISIONS, PRESETS, ModelSettings, TrainingSettings
from examples.translation.training import Training

POSITIONS = ("sinusoidal", "relative")
WARM_UP_ROUNDS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="sizes of the model (default: small)")
    parser.add_argument("--batch-tokens", type=int, default=1250, help="as for train (default: 1250)")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="as for train (default: auto)")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of measurements (default: 20)")
    parser.add_argument("--steps", type=int, default=10, help="updates in each measurement (default: 10)")
    parser.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")


def run(args: argparse.Namespace) -> None:
    """Print the speeds of both, and the ratio of their times per round, as medians with quartiles."""
    if args.rounds < 2 or args.steps < 1:
        raise ValueError(f"--rounds must be at least 2 and --steps at least 1, got {args.rounds} and {args.steps}")
    settings = TrainingSettings(batch_tokens=args.batch_tokens, precision=args.precision)
    base, mine = ModelSettings(**PRESETS[args.preset]), Processes(0, 1, find_device(args.device))
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            name: Training(
                args.data, Path(folder) / name, replace(base, positions=name), settings, mine,
                compiled=mine.device.type == "cuda",
            )
            for name in POSITIONS
        }  # fmt: skip
        speeds: dict[str, list[float]] = {name: [] for name in POSITIONS}
        for number in range(args.rounds + WARM_UP_ROUNDS):
            for name in POSITIONS if number % 2 else POSITIONS[::-1]:
                speeds[name].append(_speed(trainings[name], args.steps))
    plain, relative = (values[WARM_UP_ROUNDS:] for values in speeds.values())
    for name, values in zip(POSITIONS, (plain, relative), strict=True):
        print(f"{name}: {_spread(values, ',.0f')} target tokens per second")
    ratios = [one / other for one, other in zip(plain, relative, strict=True)]
    print(f"time of relative divided by sinusoidal: {_spread(ratios, '.3f')}")


def _speed(training: Training, steps: int) -> float:
    """Target tokens per second of some updates."""
    _finish(training)
    start = time.perf_counter()
    tokens = sum(training.update()[0] for _ in range(steps))
    _finish(training)
    return tokens / (time.perf_counter() - start)


def _finish(training: Training) -> None:
    if training.processes.device.type == "cuda":
        torch.cuda.synchronize(training.processes.device)


def _spread(values: list[float], form: str) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):{form}} ({low:{form}}–{high:{form}})"
