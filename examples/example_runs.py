"""Code that the examples share: training, runs that continue after Ctrl-C, and pictures."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from translation.files import save_json, whole
from translation.intervals import interval

import relgraph as rg

INTERRUPTED = 130
"""The exit status that shells give a process that Ctrl-C ended."""

LINE_EVERY = 30.0
"""Seconds between two lines of progress."""

_work: Callable[[Any], Any] | None = None  # what copies of this process do: a closure, which cannot be sent to them


def train(
    model: nn.Module, losses: Iterable[Tensor], steps: int, learning_rate: float, *, warm_up: float = 0.1, title: str
) -> float:
    """Train with AdamW, warm-up and linear decay; return the seconds of the CPU.

    Args:
        model: the model to train.
        losses: the loss of each step; an iterator that computes it on demand.
        steps: number of steps; fewer if ``losses`` ends before.
        learning_rate: the peak rate.
        warm_up: the share of the steps in which the rate rises.
        title: names the lines of progress.
    """
    optimizer, rate = _optimizer(model, steps, learning_rate, warm_up)
    begun, printed = time.process_time(), time.perf_counter()
    for step, loss in enumerate(islice(losses, steps), 1):
        _step(model, optimizer, rate, loss)
        if time.perf_counter() - printed >= LINE_EVERY:
            printed = time.perf_counter()
            _tell(title, step, steps, loss.item())
    return time.process_time() - begun


def train_on(
    folder: Path, name: str, seed: int, model: nn.Module, loss_of: Callable[[int], Tensor], steps: int,
    learning_rate: float,
) -> float:  # fmt: skip
    """Train as :func:`train` does, and keep model and optimizer in a file twice a minute; continue from there.

    Args:
        folder: holds the file of an unfinished training; the end removes it.
        name: of the row.
        seed: of torch's generator, which starts anew with each step.
        model: the model to train.
        loss_of: the loss of a step, which depends on nothing but the model, its number and torch's generator.
        steps: number of steps.
        learning_rate: the peak rate.

    Returns:
        Seconds of this thread's CPU, with those of the parts that were interrupted.
    """
    optimizer, rate = _optimizer(model, steps, learning_rate, 0.1)
    path, start, begun = model_path(folder, name, seed).with_suffix(".training"), 0, time.thread_time()
    if path.exists():
        kept = torch.load(path, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        rate.load_state_dict(kept["rate"])
        start, begun = kept["step"], begun - kept["seconds"]
    printed = time.perf_counter()
    for step in range(start, steps):
        torch.manual_seed(seed * steps + step)
        loss = loss_of(step)
        _step(model, optimizer, rate, loss)
        if time.perf_counter() - printed >= LINE_EVERY:
            printed = time.perf_counter()
            _tell(f"{name}, seed {seed}", step + 1, steps, loss.item())
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rate": rate.state_dict()}
            with whole(path) as file:
                torch.save({**states, "step": step + 1, "seconds": time.thread_time() - begun}, file)
    path.unlink(missing_ok=True)
    return time.thread_time() - begun


def _tell(title: str, step: int, steps: int, loss: float) -> None:
    print(f"{title}: step {step} of {steps}, loss {loss:.3f}", file=sys.stderr, flush=True)


def _step(model: nn.Module, optimizer: Any, rate: Any, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    rate.step()


def _optimizer(model: nn.Module, steps: int, learning_rate: float, warm_up: float) -> tuple[Any, Any]:
    """AdamW, and its rate, which rises in the first steps and then falls to 0."""
    # foreach gives bitwise the same numbers in four fifths of the time of a Python loop
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, (0.9, 0.98), weight_decay=0.01, foreach=True)
    rising = max(1.0, warm_up * steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / rising, 1 - s / steps))


def spell(seconds: float) -> str:
    """A time in a suitable unit: ``45 s``, ``24 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def model_path(folder: Path, name: str, seed: int) -> Path:
    """The file of a run's weights; with the ending ``.training`` that of an unfinished run."""
    return folder / f"model-{''.join(c if c.isalnum() else '-' for c in name)}-{seed}.pt"


class Runs:
    """The runs of one command in ``results.json``, with their models in the same folder.

    Args:
        folder: where to write; created if missing.
        kind: the dataclass of a run; ``variant`` and ``seed`` identify a run.
        settings: what all runs have in common. Runs already in the folder count only if they have the same
            settings.
        fresh: start over and ignore runs already in the folder.

    Raises:
        ValueError: the folder holds runs with other settings.
    """

    def __init__(self, folder: Path, kind: type, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.folder, self.kind, self.fresh = folder, kind, fresh
        self.path = folder / "results.json"
        versions = {"python": platform.python_version(), "torch": torch.__version__, "relgraph": rg.__version__}
        self.settings = json.loads(json.dumps(versions | settings))  # as they read back from JSON
        self.done: list[Any] = []
        if self.path.exists() and not fresh:
            self._read()

    def _read(self) -> None:
        record = json.loads(self.path.read_text(encoding="utf-8"))
        runs = record.pop("runs")
        record.pop("notes", None)
        other = [name for name in {*record, *self.settings} if record.get(name) != self.settings.get(name)]
        if other:
            was, wanted = ({name: place.get(name) for name in sorted(other)} for place in (record, self.settings))
            raise ValueError(
                f"{self.path} must hold runs with these settings, {wanted}, got {was}: "
                "choose another folder with --out, or start over with --fresh"
            )
        self.done = [self.kind(**run) for run in runs]

    def each(
        self, names: Sequence[str], seeds: Iterable[int], run: Callable[[str, int], tuple[Any, Any]],
        processes: int = 1, tell: Callable[[Any], str] | None = None,
    ) -> bool:  # fmt: skip
        """Make the runs that are missing, all rows of one seed before the next seed; print a line after each run.

        Args:
            names: the rows.
            seeds: the seeds of each row.
            run: trains a row with a seed; returns the run, and a module whose weights to keep, or None.
            processes: how many runs to make at once; if several, each in its own process.
            tell: returns what to print about a finished run, such as its score.

        Returns:
            True if all runs are done, False after Ctrl-C.
        """
        wanted = [(name, seed) for seed in seeds for name in names]
        finished = {(run.variant, run.seed) for run in self.done}
        missing = [pair for pair in wanted if pair not in finished]
        if len(missing) < len(wanted):
            print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are already in {self.path}")

        def keep(pair: tuple[str, int]) -> tuple[Any, float]:
            """Make a run and write its weights; also return how many seconds it took."""
            start = time.perf_counter()
            done, model = run(*pair)
            if isinstance(model, nn.Module):
                with whole(self.model_path(*pair)) as path:
                    torch.save(model.state_dict(), path)
            return done, time.perf_counter() - start

        place = {pair: number for number, pair in enumerate(wanted)}
        try:
            for number, (done, seconds) in enumerate(side_by_side(keep, missing, processes), 1):
                self.done.append(done)
                # in the order of the request, whichever ended first
                self.done.sort(key=lambda run: place.get((run.variant, run.seed), -1))
                self.save()
                score = f"{tell(done)}, " if tell else ""
                count = f"{number} of {len(missing)} runs done"
                print(f"{done.variant}, seed {done.seed}: {score}{spell(seconds)}; {count}", flush=True)
        except KeyboardInterrupt:
            kept = sum((run.variant, run.seed) in wanted for run in self.done)
            where = f"{kept} of {len(wanted)} runs are kept in {self.path}" if kept else "no run was finished"
            command = "the same command without --fresh" if self.fresh else "the same command"
            print(f"\nstopped: {where}; {command} continues from there")
            return False
        return True

    def model_path(self, name: str, seed: int) -> Path:
        """The file of a run's weights."""
        return model_path(self.folder, name, seed)

    def load(self, model: nn.Module, name: str, seed: int) -> nn.Module:
        """Load the weights that the run ended with into the model."""
        model.load_state_dict(torch.load(self.model_path(name, seed), weights_only=True))
        return model.eval()

    def save(self, **notes: Any) -> None:
        """Write all runs, and notes derived from them."""
        record = {**self.settings, **({"notes": notes} if notes else {}), "runs": [asdict(run) for run in self.done]}
        save_json(self.path, record)


def side_by_side(work: Callable[[Any], Any], jobs: Iterable[Any], processes: int) -> Iterator[Any]:
    """Do jobs in copies of this process (fork), several at once; yield the results in the order in which the jobs end.

    The copies have the data that this process has read. Ctrl-C ends all of them, and so does an error of one. One
    process does its jobs itself.
    """
    if processes == 1:
        yield from map(work, jobs)
        return
    global _work
    _work = work
    with warnings.catch_warnings():
        # Python 3.12 warns about numpy's threads, which a copy does not need
        warnings.simplefilter("ignore", DeprecationWarning)
        fork, quiet = multiprocessing.get_context("fork"), (signal.SIGINT, signal.SIG_IGN)
        pool = ProcessPoolExecutor(processes, fork, signal.signal, quiet)
        ends = as_completed([pool.submit(_do, job) for job in jobs])
    with pool:
        try:
            for end in ends:
                yield end.result()
        except BaseException:  # Ctrl-C, a run that failed, a process that the system killed
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _do(job: Any) -> Any:
    assert _work is not None
    return _work(job)


def cores() -> int:
    """How many runs may be made at once, each in its own process: the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1  # fork is not safe elsewhere


def until_stopped(main: Callable[[], int]) -> int:
    """Call ``main`` and return its status, or that of Ctrl-C; finished work stays saved."""
    try:
        return main()
    except KeyboardInterrupt:
        print("\nstopped; finished work is saved, and the same command continues from there")
        return INTERRUPTED


def percent(shares: Sequence[float], unit: str = " %") -> str:
    """Shares as ``96.4 % ± 1.4``: mean and, for several shares, sample standard deviation."""
    values = [100 * share for share in shares]
    return f"{mean(values):.1f}{unit}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def lead(ours: Mapping[int, float], theirs: Mapping[int, float], scale: float = 100, digits: int = 1) -> str:
    """One row's lead over another, as ``+2.1 (-0.3 to +4.5)``; with several seeds, with its interval.

    Args:
        ours: one share per seed.
        theirs: the other row's shares; the comparison pairs the seeds that both rows have.
        scale: multiplies the shares; 100 for percent.
        digits: decimals of the figures.
    """
    gains = [scale * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs]
    if len(gains) < 2:
        return f"{mean(gains):+.{digits}f}"
    low, high = interval(gains)
    return f"{mean(gains):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def leads(
    shares: Mapping[str, Mapping[int, float]], pairs: Iterable[tuple[str, str]], scale: float = 100, digits: int = 1
) -> list[str]:
    """A line for each pair of rows that have a seed in common: the first row's lead over the second."""
    return [
        f"{one} against {other}: {lead(shares[one], shares[other], scale, digits)}"
        for one, other in pairs
        if shares.get(one, {}).keys() & shares.get(other, {}).keys()
    ]


def announce(runs: int, seconds: float, folder: Path, processes: int = 1) -> None:
    """Print what the command is about to do, how long that takes on an idle machine and where it writes."""
    what = "1 run" if runs == 1 else f"{runs} runs"
    where = "one idle CPU core" if processes == 1 else f"{processes} idle CPU cores"
    long = spell(max(1, seconds / processes))
    print(f"{what}, about {long} on {where}; each is saved to {folder} when it ends; pictures come last", flush=True)


@contextmanager
def picture(
    path: Path, width: float = 8, height: float = 5, rows: int = 1, columns: int = 1, *, note: str = ""
) -> Iterator[Any]:
    """One or several axes to draw on; what is drawn is written to ``path``, which is printed; a note comes on top."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    if note:
        figure.suptitle(note, fontsize=10, color="0.35")
    yield figure.subplots(rows, columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"picture: {path}")


def by_row(runs: Iterable[Any]) -> dict[str, list[Any]]:
    """The runs of each row."""
    rows: dict[str, list[Any]] = {}
    for run in runs:
        rows.setdefault(run.variant, []).append(run)
    return rows


def by_seed(runs: Iterable[Any], figure: str) -> dict[str, dict[int, float]]:
    """A figure of each run, by row and seed."""
    return {name: {run.seed: getattr(run, figure) for run in row} for name, row in by_row(runs).items()}
