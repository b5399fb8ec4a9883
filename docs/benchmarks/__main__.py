"""Compare relation-aware attention with other code for the same task: time and memory, tables and plots.

    python -m docs.benchmarks                            # all of it
    python -m docs.benchmarks --quick                    # a smoke run of about a minute: its figures mean nothing
    python -m docs.benchmarks --only '^edges'            # one sweep: length, size, labels, edges or graphs
    python -m docs.benchmarks --only 'length: relgraph'  # some ways of one sweep
    python -m docs.benchmarks plot --out FOLDER --docs   # plots, tables and docs again from the files of a run
    python -m docs.benchmarks step                       # a training step, relative against sinusoidal positions
    python -m docs.benchmarks --device cuda              # all of it on a GPU, including steps, in ten minutes

Run from the root of the repository, on a quiet machine. A run may continue in the same folder, sweep by sweep.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from docs.benchmarks import results, tables
from docs.benchmarks.about import GIB, about, free_bytes, line
from docs.benchmarks.measure import markdown
from docs.benchmarks.peaks import peak
from docs.benchmarks.run import FAILED, Options, run
from docs.benchmarks.sweeps import sweeps

DTYPES = ("float32", "bfloat16", "float16")
PAGE = Path(__file__).resolve().parents[1] / "benchmarks.md"
SHARE_OF_FREE = 0.6

GPU_MINUTES = 9.0
"""Minutes for a whole run on a GPU, out of the promised ten; a way that is running when they end still finishes."""

GPU_LENGTHS = (1024, 64)
"""Tokens per sentence in a training step on a GPU."""


def main(given: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status; 1 if a way gave wrong values."""
    arguments = _parser().parse_args(given)
    try:
        return _command(arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _command(arguments: argparse.Namespace) -> int:
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.what == "peak":
        peak(arguments)
        return 0
    _check(arguments)
    out = arguments.out or Path("benchmarks-out") / ("quick" if arguments.quick else arguments.device.split(":")[0])
    if arguments.what == "step":
        _step(arguments, out)
        return 0
    wrong = 0
    if arguments.what == "all":
        began = time.perf_counter()
        if arguments.device.startswith("cuda") and not arguments.only:
            wrong += _step_too(arguments, out)
        memory = arguments.memory * GIB if arguments.memory else SHARE_OF_FREE * free_bytes(arguments.device)
        options = Options(arguments.rounds, arguments.budget, int(memory), arguments.only, arguments.peaks)
        if arguments.minutes is not None:
            options.minutes = max(arguments.minutes - (time.perf_counter() - began) / 60.0, 0.0)
        wrong += run(sweeps(arguments.device, arguments.quick, arguments.dtype), options, out, arguments.device)
    publish(out, arguments.docs)
    return 1 if wrong else 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that contradict the machine or each other."""
    if arguments.rounds is None:
        arguments.rounds = 2 if arguments.quick else 9
    if arguments.peaks is None:
        arguments.peaks = 0 if arguments.quick else 1
    if arguments.minutes is None and arguments.device.startswith("cuda"):
        arguments.minutes = GPU_MINUTES
    if arguments.minutes is not None and arguments.minutes <= 0:
        raise ValueError(f"--minutes must be positive, got {arguments.minutes:g}")
    if arguments.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {arguments.rounds}")
    if arguments.budget <= 0:
        raise ValueError(f"--budget must be positive, in seconds, got {arguments.budget:g}")
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device must be cpu: torch sees no GPU here, got {arguments.device}")
    if arguments.docs and arguments.quick:
        raise ValueError("--docs needs a real run, got --quick, whose figures mean nothing")


def publish(out: Path, docs: bool) -> None:
    """Print and write tables, draw plots, and fill the docs if asked to."""
    found = results.read(out)
    made = tables.tables(found)
    text = "\n\n".join(f"## {name}\n\n{table}" for name, table in made.items())
    (out / "tables.md").write_text(text + "\n")
    print(text)
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed; pip install matplotlib", file=sys.stderr)
    else:
        from docs.benchmarks.plots import draw

        pictures = draw(found, out)
        print(*(f"wrote {path}" for path in pictures), sep="\n")
        made |= tables.plots(found, pictures, PAGE)
    if docs:
        print("filled", ", ".join(tables.fill(PAGE, made)))


def _step(arguments: argparse.Namespace, out: Path) -> None:
    """Time training steps, and print and keep the results."""
    from docs.benchmarks.step import Work, measure

    cuda = arguments.device.startswith("cuda")
    tokens = arguments.tokens or (64 if arguments.quick else 25_600 if cuda else 512)
    sizes = {"vocabulary": 1_000, "size": 64, "layers": 1} if arguments.quick else {}
    rows = []
    for length in arguments.length or ([16] if arguments.quick else GPU_LENGTHS if cuda else [64]):
        rows += measure(Work(tokens, length, compiled=arguments.compile, **sizes), arguments.rounds, arguments.device)
    found = about(arguments.device)
    out.mkdir(parents=True, exist_ok=True)
    (out / "step.json").write_text(json.dumps({"about": found, "rows": rows}, indent=1, ensure_ascii=False) + "\n")
    made = {f"{arguments.device.split(':')[0]}:step": f"{line(found)}\n\n{markdown(rows)}"}
    print(*made.values())
    if arguments.docs:
        tables.fill(PAGE, made)


def _step_too(arguments: argparse.Namespace, out: Path) -> int:
    """Time the step as a part of a whole run; return whether it failed, which does not stop the run."""
    try:
        _step(arguments, out)
    except Exception as error:
        print(f"step: {FAILED}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m docs.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["all", "plot", "step", "peak"], default="all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES, help="float32 on a CPU; on a GPU bfloat16, graphs float32")
    parser.add_argument("--threads", type=int, help="threads of torch on the CPU")
    parser.add_argument("--rounds", type=int, help="counted rounds (9; quick 2)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for one way at one setting (30)")
    parser.add_argument("--minutes", type=float, help="minutes for the whole run; later ways are left out (GPU: 9)")
    parser.add_argument("--memory", type=float, help="GB that a way may need (0.6 of free memory)")
    parser.add_argument("--peaks", type=int, help="processes per memory figure; 0 leaves memory out (1; quick 0)")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="regular expression for 'sweep: way'; the floor always runs"
    )
    parser.add_argument(
        "--out", type=Path, help="output folder for results.json, tables.md and plots (benchmarks-out/DEVICE)"
    )
    parser.add_argument("--docs", action="store_true", help="also write tables into docs/benchmarks.md")
    parser.add_argument("--tokens", type=int, help="step: tokens per batch (512; on a GPU 25,600)")
    parser.add_argument("--length", type=int, nargs="+", help="step: tokens per sentence (64; on a GPU 1,024 and 64)")
    parser.add_argument("--compile", action="store_true", help="step: compile both models")
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
