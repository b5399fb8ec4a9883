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

BATCH_TOKENS = 1250
WARM_UP_ROUNDS, ROUNDS = 2, 20
STEPS = 10
"""Updates in each measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="as for train (default: float32)")


def run(args: argparse.Namespace) -> None:
    """Print the speeds of both, and the ratio of their times per round, as medians with quartiles."""
    settings = TrainingSettings(batch_tokens=BATCH_TOKENS, precision=args.precision)
    alone = Processes(0, 1, find_device())
    with tempfile.TemporaryDirectory() as folder:
        plain, relative = (
            Training(args.data, Path(folder), ModelSettings(positions=name), settings, alone)
            for name in ("sinusoidal", "relative")
        )
    speeds: dict[Training, list[float]] = {plain: [], relative: []}
    for number in range(ROUNDS + WARM_UP_ROUNDS):
        for training in (plain, relative) if number % 2 else (relative, plain):
            start = time.perf_counter()
            tokens = sum(training.update() for _ in range(STEPS))
            if alone.device.type == "cuda":
                torch.cuda.synchronize()
            speeds[training].append(tokens / (time.perf_counter() - start))
    one, other = (speeds[training][WARM_UP_ROUNDS:] for training in (plain, relative))
    print(f"sinusoidal: {_spread(one, ',.0f')} target tokens per second")
    print(f"relative: {_spread(other, ',.0f')} target tokens per second")
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    print(f"time of relative divided by sinusoidal: {_spread(ratios, '.3f')}")


def _spread(values: list[float], form: str) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):{form}} ({low:{form}}–{high:{form}})"
