"""Measure one call of a small T5 encoder, in its own process: CPU seconds and peak memory.

    python examples/one_call.py forward 2048 patched

prints JSON. Peak memory belongs to a process: memory that one call has allocated stays there for the next call. So
``patched_memory.py`` starts this file once for each point of its picture.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import T5Config, T5EncoderModel

import relgraph as rg

CALLS = ("forward", "training step")
PATCHED = "patched"
WAYS = ("eager", "sdpa", PATCHED)
"""The attention implementations that transformers has for T5, and relgraph's replacement."""

TOKENS, LAYERS, HEADS, WIDTH = 1000, 2, 4, 128
FEW = 16
"""A length at which a call needs almost no memory, but loads everything that later calls need."""

MIB = 2**20


def encoder(way: str) -> T5EncoderModel:
    """A T5 encoder with random weights, the same for all ways."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=TOKENS, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS,
        dropout_rate=0.0, attn_implementation="eager" if way == PATCHED else way,
    )  # fmt: skip
    model = T5EncoderModel(config)
    if way == PATCHED:
        rg.interop.transformers.patch(model)
    return model


def ways() -> list[str]:
    """All ways that this version of transformers has: T5 has ``sdpa`` from 5.0 on."""
    found = []
    for way in WAYS:
        with suppress(ValueError):  # this version does not have it
            encoder(way)
            found.append(way)
    return found


def tokens(length: int) -> Tensor:
    """One text of random tokens."""
    return torch.randint(1, TOKENS, (1, length), generator=torch.Generator().manual_seed(length))


def once(model: T5EncoderModel, text: Tensor, call: str) -> Tensor:
    """The last hidden states ``[1, N, WIDTH]``; a training step also computes all gradients."""
    if call == "forward":
        with torch.no_grad():
            return model(text).last_hidden_state
    model.zero_grad()
    states = model(text).last_hidden_state
    states.square().mean().backward()
    return states


def held_mib() -> float:
    """The memory that this process holds now, after it returns freed memory where the C library can."""
    status = Path("/proc/self/statm")
    if not status.exists():  # other systems only report the peak; before the call that is nearly the same
        return highest_mib()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(status.read_text().split()[1]) * resource.getpagesize() / MIB


def forget_peak() -> None:
    """Make Linux count the peak from now on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def highest_mib() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts the memory of the process that started this one into ru_maxrss
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def measured(call: str, length: int, way: str, repeats: int) -> dict[str, float]:
    """The peak of the first call above the memory held before it, and the median CPU seconds of the calls after it."""
    model, text = encoder(way), tokens(length)
    once(model, tokens(FEW), call)
    idle = held_mib()
    forget_peak()
    once(model, text, call)
    peak = highest_mib()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()  # counts this process only
        once(model, text, call)
        seconds.append(time.process_time() - start)
    return {"mib": round(max(peak - idle, 0.0), 1), "process_mib": round(peak, 1), "seconds": round(median(seconds), 4)}


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure CPU seconds and peak memory of one call of a small T5 encoder; print JSON."
    )
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("length", type=int, help="number of tokens")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--repeats", type=int, default=3, help="number of timed calls (3)")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(json.dumps(measured(given.call, given.length, given.way, given.repeats)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
