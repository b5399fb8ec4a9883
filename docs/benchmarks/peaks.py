"""Measures the peak memory of one call: of torch's allocator on a GPU, of a new process on a CPU."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from docs.benchmarks.measure import fresh_peak, peak_mib, quartiles
from docs.benchmarks.results import Row
from docs.benchmarks.sweeps import Setting, described, restored
from docs.benchmarks.ways import Made, Side, Way, side_of


def take_peaks(
    ways: list[Way[Any]], ready: dict[str, Made], inputs: Any, setting: Setting, rows: dict[str, Row], count: int
) -> None:
    """Peak MiB of one call of every way: in this process on a GPU, in new processes on a CPU."""
    for way in ways:
        if setting.device != "cpu":
            peaks = [peak_mib(lambda made=ready[way.name]: work(made, inputs.grad), setting.device)]
        else:
            of_way = "--setting", json.dumps(described(setting)), "--way", way.name
            peaks = [fresh_peak("docs.benchmarks", "peak", *of_way) for _ in range(count)]
        taken = [x for x in peaks if x is not None]
        if len(taken) == len(peaks):
            rows[way.name]["MiB"] = [round(x, 2) for x in quartiles(taken)]
        else:
            rows[way.name]["note"] += "; no peak: its process was killed"


def work(made: Made, grad: torch.Tensor) -> None:
    """One call, with its backward if it has one."""
    if made.trains:
        torch.autograd.grad(made.call(), list(made.leaves.values()), grad)
    else:
        with torch.no_grad():
            made.call()


def peak(arguments: argparse.Namespace) -> None:
    """Print the peak MiB of one way at one setting, after a call on small inputs has loaded everything."""
    setting = restored(json.loads(arguments.setting))
    side: Side[Any] = side_of(setting)
    (way,) = [way for way in side.ways(setting) if way.name == arguments.way]
    small = side.inputs(side.small(setting))
    floor, first = side.ways(setting)[0].make(small), way.make(small)
    work(floor, small.grad)
    work(first, small.grad)
    inputs = side.inputs(setting)
    made, grad = way.make(inputs), inputs.grad
    if way.compiles:
        work(made, grad)
    print(peak_mib(lambda: work(made, grad), setting.device))
