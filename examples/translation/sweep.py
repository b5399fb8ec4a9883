"""The command ``sweep``: trains, averages and measures every model of the report."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.translation.files import load_json, save_json
from examples.translation.settings import TrainingSettings

DISTANCES = (0, 1, 2, 4, 8, 16, 64, 256)
OURS = (8,)
"""Distances that are not in the paper's Table 2."""
PAPER = 16
SHAPES: dict[str, dict[str, Any]] = {
    "base": {"width": 128, "heads": 4, "hidden": 256, "dropout": 0.1, "per_head": True},
    "big": {"width": 256, "heads": 8, "hidden": 1024, "dropout": 0.3, "per_head": False},
}
"""Sizes of small models with the proportions of the paper's base and big model."""
DEPTHS: dict[str, dict[str, Any]] = {
    f"depth {layers}": {"width": 128, "heads": 4, "hidden": 512, "layers": layers} for layers in (1, 3)
}
"""Sizes of models of another depth."""
DEPTH_DISTANCES = (1, 4, PAPER)


@dataclass(frozen=True)
class Model:
    """A name, the settings that define the model, and how many checkpoints to average (default: all that are saved)."""

    name: str
    settings: dict[str, Any]
    last: int | None = None

    @property
    def options(self) -> list[str]:
        """The options of ``train``."""
        found = []
        for name, value in self.settings.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                found.append(f"--{option}" if value else f"--no-{option}")
            else:
                found += [f"--{option}", str(value)]
        return found


def models() -> list[Model]:
    """All models: first one size, as in the paper's Tables 1 to 3, then Table 1 with other shapes, then depths."""
    base, big = SHAPES.values()
    sinusoidal = {"positions": "sinusoidal"}
    return [
        Model("none", {"positions": "none"}),
        Model("sinusoidal", sinusoidal),
        Model(f"relative-{PAPER}", _relative(PAPER)),
        *(Model(f"relative-{k}", _relative(k)) for k in DISTANCES if k != PAPER),
        *(Model(name, {"positions": name}) for name in ("shifted", "learned", "rotary", "alibi")),
        Model(f"key-{PAPER}", {**_relative(PAPER), "value_table": False}),
        Model(f"value-{PAPER}", {**_relative(PAPER), "key_table": False}),
        Model(f"heads-{PAPER}", {**_relative(PAPER), "per_head": True}),
        Model(f"both-{PAPER}", {**_relative(PAPER), "positions": "both"}),
        Model("base-sinusoidal", {**base, **sinusoidal}, last=1),
        Model("base-relative-16", {**base, **_relative(16)}, last=1),
        Model("big-sinusoidal", {**big, **sinusoidal}, last=20),
        Model("big-relative-8", {**big, **_relative(8)}, last=20),
        *(
            Model(f"{depth.replace(' ', '-')}-{k}", {"layers": sizes["layers"], **_relative(k)})
            for depth, sizes in DEPTHS.items()
            for k in DEPTH_DISTANCES
        ),
    ]


def _relative(distance: int) -> dict[str, Any]:
    return {"positions": "relative", "max_distance": distance}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("data", type=Path, help="the folder that prepare wrote")
    parser.add_argument("runs", type=Path, help="folder for the runs; finished runs are not repeated")
    parser.add_argument("--seeds", type=int, default=5, help="runs per model (default: 5)")
    parser.add_argument(
        "--only", nargs="+", choices=[model.name for model in models()], help="only these models (default: all)"
    )
    parser.epilog = "Options after -- go to every training run: ... sweep DATA RUNS -- --steps 2500 --warm-up 600"


def run(args: argparse.Namespace) -> int:
    """Make the missing runs; return 1 if any failed, after all others have run."""
    tests = sorted(args.data.glob("test*.tsv"))
    if not tests:
        raise ValueError(f"{args.data} must hold tests, test*.tsv, found none")
    if args.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {args.seeds}")
    chosen = [model for model in models() if not args.only or model.name in args.only]
    jobs = [(model, seed, args.runs / f"{model.name}-seed{seed}") for seed in range(args.seeds) for model in chosen]
    missing = [job for job in jobs if not (job[2] / "results.json").exists()]
    if not any(args.runs.glob("*/results.json")):
        save_json(args.runs / "sweep.json", {"options": args.options})
    elif (before := load_json(args.runs / "sweep.json")["options"]) != args.options:
        raise ValueError(
            f"{args.runs} holds runs with the options {before}, got {args.options}: they could not be compared"
        )
    print(f"{args.runs}: {len(missing)} of {len(jobs)} runs are still to do, each in its own folder")
    failed = [job[2] for job in missing if not _one(job, args.data, tests, args.options)]
    for folder in failed:
        print(f"failed: {folder}; see {folder}.txt", file=sys.stderr)
    return 1 if failed else 0


def _one(job: tuple[Model, int, Path], data: Path, tests: Sequence[Path], options: Sequence[str]) -> bool:
    """Train, average and measure, with output to a file next to the run; return whether all commands succeeded."""
    model, seed, run = job
    saving, averaging = _checkpoints(model, options)
    commands = [
        ["train", str(data), str(run), *options, *model.options, *saving, "--seed", str(seed)],
        ["average", str(run), *averaging],
        ["evaluate", str(run), *map(str, tests)],
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with Path(f"{run}.txt").open("a", encoding="utf-8") as output:
        for command in commands:
            call = [sys.executable, "-m", "examples.translation", *command]
            if subprocess.run(call, env=environment, stdout=output, stderr=output, check=False).returncode:
                return False
    return True


def _checkpoints(model: Model, options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of ``train`` and ``average``; a big shape saves checkpoints every hundredth of the training."""
    if model.last is None:
        return [], []
    if model.last == 1:
        return [], ["--last", "1"]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int, default=TrainingSettings.steps)
    steps = parser.parse_known_args(options)[0].steps
    every = max(1, steps // 100)
    return ["--save-every", str(every), "--keep", str(model.last)], ["--last", str(min(model.last, steps // every))]
