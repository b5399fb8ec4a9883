"""The command ``sweep``: trains, averages and measures every model of the report, several at a time."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from examples.translation.files import load_json, save_json
from examples.translation.settings import TrainingSettings

DISTANCES = (0, 1, 2, 4, 8, 16, 64, 256)
OURS = (8,)
"""Distances that are not in the paper's Table 2."""
PAPER = 16


@dataclass(frozen=True)
class Shape:
    """A small model with the proportions of the paper's base or big model.

    Attributes:
        distance: k of its relative positions.
        sizes: its settings, which override the sweep's.
        last: how many checkpoints to average.
    """

    distance: int
    sizes: dict[str, Any]
    last: int

    def options(self) -> tuple[str, ...]:
        """The options of ``train``."""
        sizes = {name: value for name, value in self.sizes.items() if name != "per_head"}
        per_head = "--per-head" if self.sizes["per_head"] else "--no-per-head"
        return (*(str(part) for item in sizes.items() for part in (f"--{item[0]}", item[1])), per_head)


SHAPES = {
    "base": Shape(16, {"width": 128, "heads": 4, "hidden": 256, "dropout": 0.1, "per_head": True}, last=1),
    "big": Shape(8, {"width": 256, "heads": 8, "hidden": 1024, "dropout": 0.3, "per_head": False}, last=20),
}


@dataclass(frozen=True)
class Model:
    """A name, the options of ``train`` that define the model, and how many checkpoints to average."""

    name: str
    options: tuple[str, ...]
    last: int | None = None


def models() -> list[Model]:
    """All models: first one size, as in the paper's Tables 1 to 3, then Table 1 again with other shapes."""
    relative = ("--positions", "relative", "--max-distance")
    return [
        Model("none", ("--positions", "none")),
        Model("sinusoidal", ("--positions", "sinusoidal")),
        Model(f"relative-{PAPER}", (*relative, str(PAPER))),
        *(Model(f"relative-{k}", (*relative, str(k))) for k in DISTANCES if k != PAPER),
        Model("learned", ("--positions", "learned")),
        Model(f"key-{PAPER}", (*relative, str(PAPER), "--no-value-table")),
        Model(f"value-{PAPER}", (*relative, str(PAPER), "--no-key-table")),
        Model(f"both-{PAPER}", ("--positions", "both", "--max-distance", str(PAPER))),
        *(model for name, shape in SHAPES.items() for model in _of_shape(name, shape)),
    ]


def _of_shape(name: str, shape: Shape) -> list[Model]:
    """The two rows of the paper's Table 1 for each shape."""
    relative = ("--positions", "relative", "--max-distance", str(shape.distance))
    return [
        Model(f"{name}-sinusoidal", (*shape.options(), "--positions", "sinusoidal"), shape.last),
        Model(f"{name}-relative-{shape.distance}", (*shape.options(), *relative), shape.last),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("runs", type=Path, help="folder for the runs; finished runs are not repeated")
    parser.add_argument("--seeds", type=int, default=5, help="runs per model (default: 5)")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads per run (default: 1)")
    parser.add_argument(
        "--only", nargs="+", choices=[model.name for model in models()], help="only these models (default: all)"
    )
    parser.epilog = "Options after -- go to every training run: ... sweep DATA RUNS -- --steps 2500 --warm-up 600"


def run(args: argparse.Namespace) -> int:
    """Make the missing runs; return 1 if any failed, after all others have run."""
    if args.seeds < 1 or args.workers < 1 or args.threads < 1:
        raise ValueError("--seeds, --workers and --threads must be at least 1")
    tests = sorted(args.data.glob("test*.tsv"))
    if not tests:
        raise ValueError(f"{args.data} must hold tests, test*.tsv, found none")
    chosen = [model for model in models() if not args.only or model.name in args.only]
    jobs = [(model, seed, args.runs / f"{model.name}-seed{seed}") for seed in range(args.seeds) for model in chosen]
    waiting = [job for job in jobs if not (job[2] / "results.json").exists()]
    if not any(args.runs.glob("*/results.json")):
        save_json(args.runs / "sweep.json", {"options": args.options})
    elif (before := load_json(args.runs / "sweep.json")["options"]) != args.options:
        raise ValueError(
            f"{args.runs} holds runs with the options {before}, got {args.options}: they could not be compared"
        )
    print(f"{args.runs}: {len(waiting)} of {len(jobs)} runs are still to do, each in its own folder")
    failed: list[Path] = []
    with ThreadPoolExecutor(args.workers) as pool, _bar(len(jobs), len(waiting)) as bar:
        futures: dict[Future[bool], Path] = {
            pool.submit(_one, model, seed, folder, args.data, tests, args.options, args.threads): folder
            for model, seed, folder in waiting
        }
        try:
            left = set(futures)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    failed += [] if future.result() else [futures[future]]
                    bar.update()
                    bar.set_description(futures[future].name)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # Ctrl-C also reached the running ones, which save and end
            raise
    for folder in failed:
        print(f"failed: {folder}; see {folder}.txt", file=sys.stderr)
    return 1 if failed else 0


def _bar(jobs: int, waiting: int) -> Any:
    return tqdm(total=jobs, initial=jobs - waiting, unit="run", leave=False, disable=None)


def _one(
    model: Model, seed: int, run: Path, data: Path, tests: Sequence[Path], options: Sequence[str], threads: int
) -> bool:
    """Train, average and measure, with output to a file next to the run; return whether all commands succeeded."""
    saving, averaging = _checkpoints(model, options)
    commands = [
        ["train", str(data), str(run), *options, *model.options, *saving, "--seed", str(seed)],
        ["average", str(run), *averaging],
        ["evaluate", str(run), *map(str, tests)],
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with Path(f"{run}.txt").open("a", encoding="utf-8") as output:
        for command in commands:
            call = [sys.executable, "-m", "examples.translation", *command]
            if subprocess.run(call, env=environment, stdout=output, stderr=output, check=False).returncode:
                return False
    return True


def _checkpoints(model: Model, options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of ``train`` and ``average``; a shape saves checkpoints every hundredth of the training."""
    if model.last is None:
        return [], []
    if model.last == 1:
        return [], ["--last", "1"]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int, default=TrainingSettings.steps)
    steps = parser.parse_known_args(options)[0].steps
    every = max(1, steps // 100)
    return ["--save-every", str(every), "--keep", str(model.last)], ["--last", str(min(model.last, steps // every))]
