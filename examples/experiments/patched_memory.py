"""Memory and CPU seconds of a small T5 encoder at growing length, by transformers and patched.

A new process measures each call: memory that one call has freed can stay with its process for the next call. Seconds
are the median of three calls, or one call from 4,096 tokens on, whose calls take seconds. Without relgraph the longest
text of a training step has 4,096 tokens: twice the text would need about 5 to 6 GiB.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import patched_memory as page
import torch

from experiments import Experiment, Work

ROWS = {f"{call}, {way}": (way, call) for call in page.CALLS for way in page.WAYS}
LENGTHS, QUICK_LENGTHS, THEIRS_TRAINS, LONG = (512, 1024, 2048, 4096, 8192), (2048,), 4096, 4096


@dataclass
class Run:
    """The peak of a call and its CPU seconds, by number of tokens."""

    variant: str
    seed: int
    mib: dict[int, float]
    seconds: dict[int, float]

    def __post_init__(self) -> None:
        """JSON turns the numbers of tokens into strings; turn them back."""
        for name in ("mib", "seconds"):
            setattr(self, name, {int(length): figure for length, figure in getattr(self, name).items()})


def in_new_process(work: Callable[..., Any], *given: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        return pool.submit(work, *given).result()


def run(name: str, seed: int, lengths: Sequence[int]) -> Run:
    way, call = ROWS[name]
    if way != "patched" and call == "training step":
        lengths = [length for length in lengths if length <= THEIRS_TRAINS]
    found = {n: in_new_process(page.measure, way, call, n, 1 if n >= LONG else 3) for n in lengths}
    mib, seconds = ({n: round(pair[place], 4) for n, pair in found.items()} for place in (0, 1))
    return Run(name, seed, mib, seconds)


def report(runs: Sequence[Run]) -> str:
    """MiB and seconds of each row."""
    lengths = sorted({length for run in runs for length in run.mib})
    lines = [f"{'row':<22}" + "".join(f"{f'{unit}{n:,}':>9}" for unit in ("", "s: ") for n in lengths)]
    for run in runs:
        pairs = ((run.mib, ".1f"), (run.seconds, ".2f"))
        cells = (f"{figures[n]:{form}}" if n in figures else "–" for figures, form in pairs for n in lengths)
        lines.append(f"{run.variant:<22}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def begin(arguments: Namespace) -> Work:
    lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
    seconds = len(arguments.rows) * len(arguments.seeds) * (10 if arguments.quick else 50)
    return Work({"lengths": lengths}, seconds, lambda name, seed: (run(name, seed, lengths), None))


EXPERIMENT = Experiment(
    Run, [*ROWS], "one length, forward; about twenty seconds", {"seeds": (1, 1)}, begin, report=report,
    tell=lambda run: ", ".join(f"{run.mib[n]:,.0f} MiB and {run.seconds[n]:.2f} s at {n:,} tokens" for n in run.mib),
    short_rows=("forward, eager", "forward, patched"),
)  # fmt: skip
