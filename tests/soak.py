"""``python -m tests.soak --minutes 5``: everything at once for a long time; does memory grow, do handles leak?

Rounds of work, each in new Python threads, over lengths, labels, implementations and types that change: the short calls
of ``tests.fuzz``, steps of training with new labels, layers that train, decoding with a cache. After each round nothing
runs, and memory and objects are counted. At the end each count must have stopped growing.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relgraph as rg
from relgraph.impl.native import build
from relgraph.labels import memory
from relgraph.plan import LabelPlan
from relgraph.plan.memory import _by_ints
from tests.fuzz.cases import draw
from tests.fuzz.compare import IMPLS, Arguments
from tests.layers import encoder_layer

MIB = 1 << 20
FEWEST = 12
"""Measures, without those of the warm-up, that it takes to tell a trend."""


class Sample(NamedTuple):
    """What is held while nothing runs; ``seconds`` since the start."""

    seconds: float
    memory: int
    handles: int
    threads: int
    tensors: int
    labels: int
    plans: int
    kept: int


GROWTH = {"memory": 24 * MIB, "handles": 3, "threads": 4, "tensors": 200, "labels": 20, "plans": 20, "kept": 130}
"""How much more a measure may be at the end, as noise, than after the warm-up."""


def measure(start: float) -> Sample:
    """A sample, after garbage is collected and free memory is given back."""
    gc.collect()
    _trim()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    counts: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, Tensor):
            counts["tensors"] += 1
        elif issubclass(kind, rg.Labels):
            counts["labels"] += 1
        elif kind is LabelPlan:
            counts["plans"] += 1
    return Sample(
        time.monotonic() - start,
        int(_number(status, "VmRSS")) * 1024,
        len(os.listdir("/proc/self/fd")),
        int(_number(status, "Threads")),
        counts["tensors"],
        counts["labels"],
        counts["plans"],
        _kept(),
    )


def _number(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE)
    assert found is not None
    return found[1]


def _trim() -> None:
    """Ask glibc to give back what is free, so that what is left is held."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _kept() -> int:
    """Memories of tensors, of plans without tensors and of labels; layouts that the fused kernels keep."""
    from relgraph.impl.triton import attend

    return sum(len(one.found) for one in (memory._entries, _by_ints, attend._constants))


def verdict(samples: Sequence[Sample]) -> list[str]:
    """What grows, a line each; the first third is warm-up.

    A measure grows when its median rises from each quarter of what is left to the next, and in all by more than noise.
    """
    left = samples[len(samples) // 3 :]
    if len(left) < FEWEST:
        return []
    quarter = len(left) // 4
    found = []
    for name, noise in GROWTH.items():
        values = [getattr(sample, name) for sample in left]
        middles = [median(values[at * quarter : (at + 1) * quarter]) for at in range(4)]
        rises = all(a < b for a, b in pairwise(middles))
        if rises and middles[-1] - middles[0] > noise:
            minutes = (left[-1].seconds - left[0].seconds) / 60
            shown = [f"{m / MIB:.1f} MiB" if name == "memory" else f"{m:g}" for m in middles]
            found.append(f"{name} grows steadily: {', '.join(shown)} by quarter of {minutes:.1f} minutes")
    return found


def some_labels(rng: Random, most: int, least: int = 1) -> rg.Labels:
    """Labels of a sequence of a random length, each kind as likely."""
    n = rng.randint(least, most)
    generator = torch.Generator().manual_seed(rng.getrandbits(32))

    def ids(*shape: int) -> Tensor:
        return torch.randint(0, 7, shape, generator=generator)

    ends = torch.randint(0, n, (2, 3 * n), generator=generator)
    distance = rg.DistanceLabels(n, lookup=[min(abs(d), 6) for d in range(-12, 13)], left=12, num_labels=7)
    ptr = torch.tensor([0, *sorted(rng.choices(range(n + 1), k=5)), n])
    kinds: tuple[Callable[[], rg.Labels], ...] = (
        lambda: rg.ClippedDistance(3)(n),
        lambda: distance,
        lambda: rg.DenseLabels(ids(n, n), 7),
        lambda: rg.EdgeLabels(ends, ids(3 * n), 7, q_len=n),
        lambda: rg.EdgeLabels(ends, ids(3 * n), 7, q_len=n, default=distance, duplicates=rng.choice(["first", "sum"])),
        lambda: rg.SumLabels(distance, rg.DenseLabels(ids(n, n), 7)),
        lambda: rg.BlockLabels(ids(int((ptr.diff() ** 2).sum())), 7, ptr),
    )
    return rng.choice(kinds)()


def short_call(rng: Random) -> None:
    """A call as the fuzz draws it, by some implementation, forward and backward."""
    case = draw(rng.getrandbits(40))
    if case.frame.batch == 0:
        return
    dtype = torch.float64 if case.float64_only else rng.choice([torch.float64, torch.float32])
    call = Arguments(case, dtype)
    refused = rg.which_impl(*call.positional, **call.options, **call.more, **call.needs).refused
    call.run(rng.choice([None, *(impl for impl in IMPLS if impl not in refused)]))


def table_of(labels: rg.Labels, size: int = 8) -> Any:
    """A key table for each part of the labels."""
    sizes = labels.num_labels
    return tuple(torch.randn(n, size) for n in sizes) if isinstance(sizes, tuple) else torch.randn(sizes, size)


def new_labels(rng: Random) -> None:
    """A step of training by the compiled kernels over 512 positions, with labels that no other step has."""
    labels = some_labels(rng, 512, 512)
    shape = (512, 1, 8) if labels.packed else (1, 1, 512, 8)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    tables = table_of(labels)
    rg.relation_attention(q, k, v, labels, tables, impl=None if build.missing() else "native").sum().backward()


def training(rng: Random) -> None:
    """A few steps of an encoder layer over lengths that change."""
    labeler = rg.ClippedDistance(rng.randint(1, 16))
    layer = encoder_layer(32, 4, 64, labeler=labeler, dropout=rng.choice([0.0, 0.1]))
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    for _ in range(3):
        x = torch.randn(2, rng.randint(1, 200), 32)
        loss = layer(x, src_key_padding_mask=torch.rand(x.shape[:2]) < 0.2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def decoding(rng: Random) -> None:
    """A prompt, then one row at a time, with the keys and values of all before in a cache."""
    labeler = rg.ClippedDistance(4)
    layer = rg.RelationAttention(32, 4, num_labels=labeler.num_labels).eval()
    cache = rg.KVCache(max_len=rng.choice([None, 80]))
    for _ in range(2):
        steps = [rng.randint(1, 30), *[1] * rng.randint(1, 40)]
        for n in steps:
            start = len(cache)
            layer(torch.randn(2, n, 32), labels=labeler(n, start + n, q_offset=start), is_causal=True, cache=cache)
        cache.reset()


Piece = Callable[[Random], None]

WORK: tuple[Piece, ...] = (short_call, new_labels, training, decoding)
"""What a round is made of."""


def work(pieces: Sequence[Piece], rng: Random, until: float, done: Counter[str], failures: list[str]) -> None:
    """Pieces of work until it is time to stop, or something fails anywhere."""
    while time.monotonic() < until and not failures:
        piece, seed = rng.choice(pieces), rng.getrandbits(48)
        try:
            piece(Random(seed))
        except Exception:
            failures.append(f"{piece.__name__} with Random({seed}) failed:\n{traceback.format_exc()}")
        done[piece.__name__] += 1


def soak(
    seconds: float,
    threads: int,
    *,
    seed: int = 0,
    every: float = 2.0,
    tell: float = 20.0,
    pieces: Sequence[Piece] = WORK,
) -> int:
    """Work for so long and print what is held.

    Args:
        seconds: how long.
        threads: Python threads at work at a time.
        seed: of everything that is drawn.
        every: the seconds of a round.
        tell: the seconds between two lines.
        pieces: what to do, each as likely.

    Returns:
        0, or 1 where something failed or grew.
    """
    rng, start = Random(seed), time.monotonic()
    done: Counter[str] = Counter()
    failures: list[str] = []
    samples: list[Sample] = []
    told, usual = -tell, torch.get_num_threads()
    print(f"{seconds:.0f} seconds, {threads} threads, seed {seed}")
    try:
        while time.monotonic() - start < seconds and not failures:
            torch.set_num_threads(rng.choice([1, usual, 2]))
            until = min(time.monotonic() + every, start + seconds)
            team = [
                threading.Thread(target=work, args=(pieces, Random(rng.getrandbits(64)), until, done, failures))
                for _ in range(threads)
            ]
            for one in team:
                one.start()
            for one in team:
                one.join()
            samples.append(measure(start))
            if samples[-1].seconds - told >= tell:
                told = samples[-1].seconds
                print(_line(samples[-1]), flush=True)
    finally:
        torch.set_num_threads(usual)
    print(_line(samples[-1]))
    print("done: " + ", ".join(f"{count:,} {name}" for name, count in sorted(done.items())))
    grown = verdict(samples)
    short = len(samples) * 2 // 3 < FEWEST
    if short:
        print("too short to tell whether anything grows")
    fine = "nothing failed" if short else "nothing failed, nothing grows"
    print("\n".join([*failures, *grown]) or fine)
    return 1 if failures or grown else 0


def _line(sample: Sample) -> str:
    held = ", ".join(f"{name} {getattr(sample, name):,}" for name in GROWTH if name != "memory")
    return f"{sample.seconds:6.0f} s  {sample.memory / MIB:8.1f} MiB  {held}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (5); a fraction will do")
    parser.add_argument("--threads", type=int, default=2, help="Python threads at work at a time (2)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (0)")
    arguments = parser.parse_args(argv)
    return soak(60 * arguments.minutes, arguments.threads, seed=arguments.seed)


if __name__ == "__main__":
    raise SystemExit(main())
