"""The command ``speed``: target tokens per second of training, alternating relative and sinusoidal positions."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import torch

from examples.translation.processes import Processes, find_device
from examples.translation.settings import PRECISIONS, ModelSettings, TrainingSettings
from examples.translation.training import Training

POSITIONS = ("sinusoidal", "relative")
BATCH_TOKENS = 1250
WARM_UP_ROUNDS, ROUNDS = 2, 20
STEPS = 10
"""Updates in each measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="as for train (default: auto)")


def run(args: argparse.Namespace) -> None:
    """Print the speeds of both, and the ratio of their times per round, as medians with quartiles."""
    settings = TrainingSettings(batch_tokens=BATCH_TOKENS, precision=args.precision)
    mine = Processes(0, 1, find_device())
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            name: Training(
                args.data, Path(folder) / name, ModelSettings(positions=name), settings, mine,
                compiled=mine.device.type == "cuda",
            )
            for name in POSITIONS
        }  # fmt: skip
        speeds: dict[str, list[float]] = {name: [] for name in POSITIONS}
        for number in range(ROUNDS + WARM_UP_ROUNDS):
            for name in POSITIONS if number % 2 else POSITIONS[::-1]:
                speeds[name].append(_speed(trainings[name]))
    plain, relative = (values[WARM_UP_ROUNDS:] for values in speeds.values())
    for name, values in zip(POSITIONS, (plain, relative), strict=True):
        print(f"{name}: {_spread(values, ',.0f')} target tokens per second")
    ratios = [one / other for one, other in zip(plain, relative, strict=True)]
    print(f"time of relative divided by sinusoidal: {_spread(ratios, '.3f')}")


def _speed(training: Training) -> float:
    """Target tokens per second of some updates."""
    _finish(training)
    start = time.perf_counter()
    tokens = sum(training.update()[0] for _ in range(STEPS))
    _finish(training)
    return tokens / (time.perf_counter() - start)


def _finish(training: Training) -> None:
    if training.processes.device.type == "cuda":
        torch.cuda.synchronize(training.processes.device)


def _spread(values: list[float], form: str) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):{form}} ({low:{form}}–{high:{form}})"
