"""Runs the benchmark: checks every way at every setting, times it in turn with the floor, and measures its peak.

Results are rows in ``results.json``, one per setting and way. A row says what was measured, or why nothing was.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from docs.benchmarks.about import GIB, about
from docs.benchmarks.measure import Clock, quartiles
from docs.benchmarks.peaks import take_peaks, work
from docs.benchmarks.results import FORWARD, TRAINING, Results, Row, summary
from docs.benchmarks.sweeps import Setting, Sweep, described, each
from docs.benchmarks.ways import Made, NotRun, Side, Way, Wrong, side_of

LEAST_ROUNDS = 3
Times = dict[int, tuple[float, float]]  # of a round: forward, and forward plus backward
OUT_OF_MEMORY = "not run: out of memory"
WRONG = "not run: wrong values"
OUT_OF_TIME = "not run: out of time"
FAILED = "not run: failed"


@dataclass
class Options:
    """How to measure.

    Attributes:
        rounds: counted rounds.
        budget: seconds for one way at one setting; a slower way gets fewer rounds, but at least three.
        memory: bytes that a way may need.
        only: a pattern that ``sweep: way`` must match; the floor always runs.
        peaks: processes per memory figure on a CPU; 0 leaves memory out.
        checked: ways whose gradients were found to be right.
        minutes: minutes for the whole run, or None. Each setting may take its share of the remaining time; later
            ways are left out.
    """

    rounds: int
    budget: float
    memory: int
    only: str = ""
    peaks: int = 1
    checked: set[str] = field(default_factory=set)
    minutes: float | None = None


PREPARING = 0.6
"""The share of a setting's time after which no more ways are built, because the ready ones must still be timed."""


@dataclass(frozen=True)
class Box:
    """The time limit of one setting."""

    begins: float
    ends: float

    @staticmethod
    def of(deadline: float | None, settings_left: int) -> Box:
        """About twice an even share of the remaining time, as important settings come first; all of it for the last."""
        now = time.perf_counter()
        share = 2.0 / (settings_left + 1)
        return Box(now, math.inf if deadline is None else now + share * max(deadline - now, 0.0))

    def full(self, part: float = 1.0) -> bool:
        """Whether this part of the time has passed."""
        return math.isfinite(self.ends) and time.perf_counter() >= self.begins + part * (self.ends - self.begins)

    def each_of(self, ways: int, most: float) -> float:
        """Seconds for each of so many ways, at most so many."""
        return min(most, max(self.ends - time.perf_counter(), 0.0) / max(ways, 1))


def run(chosen: list[Sweep], options: Options, out: Path, device: str) -> int:
    """Measure all settings and save after each; return how many ways gave wrong values."""
    results = Results(out, about(device), chosen)
    names: dict[Setting, list[str]] = defaultdict(list)
    for sweep, setting in each(chosen):
        names[setting].append(sweep.name)
    began = time.strftime("%Y-%m-%d %H:%M:%S")  # ratios compare rows of the same run
    deadline = None if options.minutes is None else time.perf_counter() + 60.0 * options.minutes
    for number, (setting, sweeps) in enumerate(names.items(), 1):
        start = time.perf_counter()
        print(f"[{number}/{len(names)}] {setting}", flush=True)
        for row in measure(setting, sweeps, options, Box.of(deadline, len(names) - number + 1)):
            results.put({**row, "run": began})
            print(f"    {summary(row)}", flush=True)
        results.save()
        print(f"    {time.perf_counter() - start:.0f} s", flush=True)
    return sum(row.get("not_run", "").startswith((WRONG, FAILED)) for row in results.rows)


def wanted(sweeps: Iterable[str], way: str, pattern: str) -> bool:
    """Whether ``--only`` selects a way in one of the sweeps."""
    return any(re.search(pattern, f"{sweep}: {way}") for sweep in sweeps)


def measure(setting: Setting, sweeps: list[str], options: Options, box: Box | None = None) -> list[Row]:
    """A row for every way at one setting."""
    box = box or Box.of(None, 1)
    try:
        side = side_of(setting)
    except NotRun as reason:
        row = {"setting": described(setting), "way": "all ways", "not_run": str(reason)}
        return [row] if wanted(sweeps, "all ways", options.only) else []
    floor, *others = side.ways(setting)
    others = [way for way in others if wanted(sweeps, way.name, options.only)]
    if not others and not wanted(sweeps, floor.name, options.only):
        return []
    inputs = side.inputs(setting)
    rows: dict[str, Row] = {}
    ready: dict[str, Made] = {}
    for way in (floor, *others):
        rows[way.name] = {"setting": described(setting), "way": way.name}
        if box.full(PREPARING):
            rows[way.name]["not_run"] = OUT_OF_TIME
            continue
        try:
            made, error = prepare(side, way, setting, inputs, options)
            ready[way.name] = made
            rows[way.name] |= {"error": None if math.isnan(error) else error, "note": made.note}
        except NotRun as reason:
            rows[way.name]["not_run"] = str(reason)
        except Wrong as reason:
            rows[way.name]["not_run"] = f"{WRONG}: {reason}"
        except NotImplementedError as reason:  # from an implementation that does not support this
            rows[way.name]["not_run"] = f"not run: {reason}"
        except Exception as error:
            if isinstance(error, RuntimeError) and out_of_memory(error):
                rows[way.name]["not_run"] = OUT_OF_MEMORY
            elif setting.device == "cpu":
                raise
            else:  # a run on somebody else's GPU should report failures and continue
                first = (str(error).splitlines() or [""])[0]
                rows[way.name]["not_run"] = f"{FAILED}: {type(error).__name__}: {first[:200]}"
    timed = replace(options, budget=box.each_of(len(ready), options.budget))
    for name, found in turns(ready, floor.name, inputs.grad, timed, setting.device).items():
        rows[name] |= found
    if options.peaks:
        ways = [way for way in (floor, *others) if "not_run" not in rows[way.name]]
        take_peaks(ways, ready, inputs, setting, rows, options.peaks)
    del ready, inputs
    _free(setting)
    return list(rows.values())


def prepare(side: Side[Any], way: Way[Any], setting: Any, inputs: Any, options: Options) -> tuple[Made, float]:
    """A way that is ready for timing: it fits, is right, and is fast enough."""
    needed = way.needs(setting)
    if needed > options.memory:
        raise NotRun(f"not run: needs about {needed / GIB:.3g} GB, the limit is {options.memory / GIB:.3g} GB")
    forward_only = way.compiles and setting.device == "cpu"
    if way.name not in options.checked and not forward_only:
        small = side.inputs(side.small(setting))
        side.check(way, way.make(small), small)
        options.checked.add(way.name)
    made = way.make(inputs)
    start = time.perf_counter()
    error = side.check(way, made, inputs)
    taken = time.perf_counter() - start
    if taken > options.budget and setting.device != "cpu":  # its kernels may be compiled by now
        taken = Clock(setting.device).time(lambda: work(made, inputs.grad))[1] / 1e3
    if taken > options.budget:
        raise NotRun(f"not run: one call took {taken:.0f} s, the budget is {options.budget:g} s")
    return made, error


def turns(ready: dict[str, Made], floor: str, grad: torch.Tensor, options: Options, device: str) -> dict[str, Row]:
    """Times of every way, with the floor first: in turn, round after round; the first round does not count."""
    clock = Clock(device)
    taken: dict[str, Times] = {name: {} for name in ready}
    spent: dict[str, float] = defaultdict(float)
    lost: dict[str, Row] = {}
    for turn in range(options.rounds + 1):
        for name, made in ready.items():
            over = spent[name] * (turn + 1) / max(turn, 1) > options.budget
            if name in lost or (over and turn > LEAST_ROUNDS and name != floor):
                continue
            try:
                forward, training = once(made, grad, clock)
            except RuntimeError as error:
                if not out_of_memory(error) or name == floor:
                    raise
                lost[name] = {"not_run": OUT_OF_MEMORY}
                continue
            spent[name] += (forward + training) / 1e3
            if turn:
                taken[name][turn] = forward, training
    found = {
        name: figures(times, taken.get(floor), ready[name].trains) for name, times in taken.items() if name not in lost
    }
    return found | lost


def once(made: Made, grad: torch.Tensor, clock: Clock) -> tuple[float, float]:
    """Milliseconds without gradients, as in inference, and of forward plus backward (0 if there is none)."""
    with torch.no_grad():
        forward = clock.time(made.call)[1]
    if not made.trains:
        return forward, 0.0
    output, there = clock.time(made.call)
    leaves = list(made.leaves.values())
    _, back = clock.time(lambda: torch.autograd.grad(output, leaves, grad))
    return forward, there + back


def figures(times: Times, floor: Times | None, trains: bool) -> Row:
    """Quartiles of milliseconds and, if the floor ran, of the ratio to it in each round; and all milliseconds."""
    row: Row = {"rounds": len(times)}
    for index, what in ((0, FORWARD), (1, TRAINING)):
        if index == 0 or trains:
            ms = {turn: round(t[index], 4) for turn, t in times.items()}
            row[what] = {"ms": quartiles(list(ms.values())), "turns": ms}
            if floor is not None:
                row[what]["times"] = quartiles([t[index] / floor[turn][index] for turn, t in times.items()])
    return row


def out_of_memory(error: RuntimeError) -> bool:
    """Whether the error means that an allocator ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free(setting: Setting) -> None:
    gc.collect()
    if setting.device != "cpu":
        torch.cuda.empty_cache()
