"""Shared by all benchmarks here: clocks, rounds, memory peaks, and printing.

Ways run in turn, round after round, so that a machine that slows down slows all of them; ratios are taken within a
round. A peak is the memory of the process (CPU) or of torch's allocator (CUDA) above what the inputs hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Rows = list[dict[str, object]]
T = TypeVar("T")
MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """Measures the milliseconds of a call: by events on a GPU, by wall time on a CPU."""

    def __init__(self, device: str = "cpu") -> None:
        self.cuda = torch.device(device).type == "cuda"

    def time(self, function: Callable[[], T]) -> tuple[T, float]:
        """The result of the call, and its milliseconds."""
        if not self.cuda:
            start = time.perf_counter()
            result = function()
            return result, (time.perf_counter() - start) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        result = function()
        end.record()
        torch.cuda.synchronize()
        return result, begin.elapsed_time(end)


def in_turn(steps: dict[str, Callable[[], T]], count: int) -> dict[str, list[T]]:
    """What each step returns in ``count`` rounds, in which every step runs once; a round before them does not count."""
    taken: dict[str, list[T]] = {name: [] for name in steps}
    for turn in range(1 + count):
        for name, step in steps.items():
            found = step()
            if turn:
                taken[name].append(found)
    return taken


def rounds(
    functions: dict[str, Callable[[], Tensor]], count: int, device: str = "cpu"
) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of forward, and of forward plus backward, in ``count`` rounds after an uncounted one."""
    clock, grads = Clock(device), []

    def both(function: Callable[[], Tensor]) -> tuple[float, float]:
        out, forward = clock.time(function)
        if not grads:
            grads.append(torch.randn_like(out))
        _, backward = clock.time(lambda: out.backward(grads[0]))
        return forward, forward + backward

    return in_turn({name: partial(both, function) for name, function in functions.items()}, count)


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and quartiles as text."""
    low, median, high = quartiles(values)
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def ratio(times: Sequence[float], floor: Sequence[float], digits: int = 2) -> str:
    """The ratio of two ways within each round: median and quartiles."""
    return spread([time / least for time, least in zip(times, floor, strict=True)], digits)


def report(taken: dict[str, list[tuple[float, float]]]) -> Rows:
    """A row per way: median milliseconds, and the ratio to the first way with its quartiles."""
    floor = next(iter(taken.values()))
    rows: Rows = []
    for name, times in taken.items():
        row: dict[str, object] = {"way": name}
        for index, what in ((0, "forward"), (1, "forward+backward")):
            mine = [time[index] for time in times]
            row[f"{what} ms"] = round(statistics.median(mine), 2)
            row[f"{what} ×"] = ratio(mine, [time[index] for time in floor])
        rows.append(row)
    return rows


def peak_mib(function: Callable[[], object], device: str = "cpu") -> float:
    """The most MiB that a call holds above what is held before it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / MIB
    held = resident()
    forget_peak()
    function()
    return max(highest() - held, 0.0)


def fresh_peak(*command: str) -> float | None:
    """The MiB that a module prints in a process of its own; None if the system killed it for lack of memory."""
    threads = "--threads", str(torch.get_num_threads())
    done = subprocess.run([sys.executable, "-m", *command, *threads], capture_output=True, text=True, cwd=ROOT)
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode:
        raise RuntimeError(f"the peak of {' '.join(command)} could not be measured:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def resident() -> float:
    """MiB that this process holds now, after it returns freed memory where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def forget_peak() -> None:
    """Restart the count of the peak, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def highest() -> float:
    """The most MiB that this process has held since :func:`forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(rows: Rows) -> str:
    """The rows as a Markdown table."""
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    lines += [f"| {' | '.join(str(row[key]) for key in head)} |" for row in rows]
    return "\n".join(lines)
