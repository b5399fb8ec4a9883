"""Measure every way at one length: check its values, time it in turn with the floor, take its peak of memory.

A row of results has the length, the way, and what was measured or why nothing was.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from docs.benchmarks.about import GIB
from docs.benchmarks.measure import Clock, fresh_peak, peak_mib, quartiles
from docs.benchmarks.sequences import FLOOR, Inputs, Sequence, check, ways
from docs.benchmarks.ways import Made, NotRun, Way, Wrong

LEAST_ROUNDS = 3
FORWARD, TRAINING = "forward", "forward+backward"
WRONG, FAILED = "wrong values", "failed"
Row = dict[str, Any]


@dataclass
class Options:
    """How to measure.

    Attributes:
        rounds: counted rounds.
        budget: seconds for one way at one length; a slower way gets fewer rounds, but at least three.
        memory: bytes that a way may need.
        deadline: when no more ways are begun, by ``time.perf_counter``.
        only: a pattern that the name of a way must match; the floor always runs.
        peaks: whether to measure memory.
        checked: ways whose gradients were found to be right.
    """

    rounds: int
    budget: float
    memory: float
    deadline: float
    only: str = ""
    peaks: bool = True
    checked: set[str] = field(default_factory=set)


def measure(setting: Sequence, options: Options) -> list[Row]:
    """A row for every way at one setting."""
    inputs, rows, ready = Inputs(setting), {}, {}
    chosen = [way for way in ways(setting) if way.name == FLOOR or re.search(options.only, way.name)]
    for way in chosen:
        rows[way.name] = {"length": setting.length, "way": way.name}
        try:
            ready[way.name] = prepared(way, setting, inputs, options)
        except Wrong as reason:
            rows[way.name]["not_run"] = f"{WRONG}: {reason}"
        except (NotRun, NotImplementedError) as reason:
            rows[way.name]["not_run"] = str(reason)
        except Exception as error:  # a run on somebody else's machine reports failures and continues
            first = (str(error).splitlines() or [""])[0][:200]
            rows[way.name]["not_run"] = (
                "out of memory" if out_of_memory(error) else f"{FAILED}: {type(error).__name__}: {first}"
            )
    for name, taken in in_rounds(ready, inputs.grad, options, setting.device).items():
        rows[name] |= taken
    for name, made in ready.items() if options.peaks else ():
        if setting.device == "cpu":
            mib = fresh_peak("docs.benchmarks", "peak", "--setting", json.dumps(asdict(setting)), "--only", name)
        else:
            mib = peak_mib(lambda made=made: work(made, inputs.grad), setting.device)
        rows[name]["MiB"] = None if mib is None else round(mib, 2)
    ready.clear()
    gc.collect()
    if setting.device != "cpu":
        torch.cuda.empty_cache()
    return list(rows.values())


def prepared(way: Way, setting: Sequence, inputs: Inputs, options: Options) -> Made:
    """A way that is ready for timing: it fits, is right, and is fast enough."""
    if time.perf_counter() > options.deadline:
        raise NotRun("out of time")
    if way.needs(setting) > options.memory:
        raise NotRun(f"needs {way.needs(setting) / GIB:.3g} GB, the limit is {options.memory / GIB:.3g} GB")
    if way.name not in options.checked and not (way.compiles and setting.device == "cpu"):
        small = Inputs(setting.small())
        check(way, way.make(small), small)
        options.checked.add(way.name)
    made = way.make(inputs)
    taken = Clock(setting.device).time(lambda: check(way, made, inputs))[1]
    if taken > options.budget * 1e3 and setting.device != "cpu":  # its kernels may be compiled by now
        taken = Clock(setting.device).time(lambda: work(made, inputs.grad))[1]
    if taken > options.budget * 1e3:
        raise NotRun(f"one call took {taken / 1e3:.0f} s, the budget is {options.budget:g} s")
    return made


def in_rounds(ready: dict[str, Made], grad: torch.Tensor, options: Options, device: str) -> dict[str, Row]:
    """Times of every way, with the floor first: in turn, round after round; the first round does not count."""
    clock = Clock(device)
    taken: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in ready}
    spent: dict[str, float] = defaultdict(float)
    for turn in range(options.rounds + 1):
        for name, made in ready.items():
            over = spent[name] * (turn + 1) / max(turn, 1) > options.budget
            if over and turn > LEAST_ROUNDS and name != FLOOR:
                continue
            times = once(made, grad, clock)
            spent[name] += sum(times) / 1e3
            if turn:
                taken[name][turn] = times
    return {name: figures(times, taken[FLOOR], ready[name].trains) for name, times in taken.items()}


def once(made: Made, grad: torch.Tensor, clock: Clock) -> tuple[float, float]:
    """Milliseconds without gradients, as in inference, and of forward plus backward (0 if there is none)."""
    with torch.no_grad():
        forward = clock.time(made.call)[1]
    if not made.trains:
        return forward, 0.0
    output, there = clock.time(made.call)
    _, back = clock.time(lambda: torch.autograd.grad(output, list(made.leaves.values()), grad))
    return forward, there + back


def figures(times: dict[int, tuple[float, float]], floor: dict[int, tuple[float, float]], trains: bool) -> Row:
    """Quartiles of milliseconds, and of the ratio to the floor in each round."""
    row: Row = {"rounds": len(times)}
    for index, what in ((0, FORWARD), (1, TRAINING)) if trains else ((0, FORWARD),):
        row[what] = {
            "ms": quartiles([round(t[index], 4) for t in times.values()]),
            "times": quartiles([t[index] / floor[turn][index] for turn, t in times.items()]),
        }
    return row


def work(made: Made, grad: torch.Tensor) -> None:
    """One call, with its backward if it has one."""
    with torch.set_grad_enabled(made.trains):
        output = made.call()
    if made.trains:
        torch.autograd.grad(output, list(made.leaves.values()), grad)


def peak(setting: Sequence, name: str) -> float:
    """Peak MiB of one way in this process, after a call on small inputs has loaded everything."""
    (way,) = (way for way in ways(setting) if way.name == name)
    small = Inputs(setting.small())
    for first in (ways(setting)[0], way):
        work(first.make(small), small.grad)
    inputs = Inputs(setting)
    made, grad = way.make(inputs), inputs.grad
    if way.compiles:
        work(made, grad)
    return peak_mib(lambda: work(made, grad), setting.device)


def out_of_memory(error: Exception) -> bool:
    """Whether the error means that an allocator ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
