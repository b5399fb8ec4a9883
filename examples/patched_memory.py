"""A small T5 that reads 8,192 tokens
==================================

One line makes a small T5 encoder read 8,192 tokens in 95 MiB, where transformers needs 3.1 GiB.

T5 adds a learned number to each score, which depends on the distance of query and key. The code of transformers writes
these numbers out for all pairs: N² per head, and as many scores and weights. With twice the text
that is four times the memory. One line has the same model computed by relgraph, which keeps the table of 32 rows:

.. code-block:: python

    rg.interop.transformers.patch(model)

The model here is a tiny T5 encoder with random weights, made from its config: 2 layers, width 128, 4 heads. Nothing is
downloaded. The values of the weights do not affect time or memory.

.. code-block:: sh

    python examples/patched_memory.py            # about five minutes on one CPU core
    python examples/patched_memory.py --quick    # one length, about twenty seconds

The first command printed this table (2026-11, one thread of a busy AMD EPYC, transformers 5.23): MiB and CPU seconds
per call, for transformers' eager attention, its ``sdpa``, and the patched model.

.. code-block:: text

                    tokens    eager MiB      s     sdpa MiB      s  patched MiB      s
    forward            512           31   0.03           14   0.03           10   0.02
    forward          1,024          100   0.14           52   0.13           13   0.05
    forward          2,048          211   0.92          202   0.66           21   0.11
    forward          4,096          803   3.75          796   2.81           45   0.32
    forward          8,192        3,160  12.98        3,156   8.97           95   1.17
    training step      512           36   0.10           41   0.09           17   0.06
    training step    1,024          170   0.34          134   0.36           34   0.12
    training step    2,048          347   1.88          398   1.66           58   0.35
    training step    4,096        1,269   7.10        1,528   6.73          124   1.30
    training step    8,192            –      –            –      –          244   3.98

From 4,096 to 8,192 tokens, a forward pass of transformers needs four times the memory, the patched one twice. At 8,192
tokens that is 3.1 GiB against 95 MiB, for a model of two layers and four heads; T5-small has eight heads. A training
step of the patched model at 8,192 tokens needs 244 MiB. Time still grows with the square of the length, since all pairs
attend: at 8,192 tokens the patched model takes 1.2 CPU seconds and transformers 9 to 13.

The short mode measures one length. Its picture shows the figures of the long run above, which are in
``examples/kept/patched_memory.json``.

A separate process measures each point (``examples/one_call.py``). MiB are the peak of the first call above what the
process held before, which is PyTorch, transformers and the weights: about 450 MiB. Seconds are CPU seconds on one
thread: the median of three more calls, or one more call from 4,096 tokens on. The processes run one after the other, so
ratios of seconds are rough. :doc:`The benchmarks </benchmarks>` take ratios within rounds, and measure T5-small.

The command writes its figures to ``patched-memory-out/results.json`` (``--quick``: ``patched-memory-out/quick/``) point
by point. After Ctrl-C the same command continues.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import one_call
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, picture, until_stopped
from one_call import CALLS, PATCHED, encoder, once, processor, tokens, ways

import relgraph as rg

HERE = Path(one_call.__file__).resolve().parent
KEPT = HERE / "kept" / "patched_memory.json"

# %%
# One line
# --------
#
# The patched model has the same weights and gives the same answers up to rounding. The report says what was replaced.


def same_answers(length: int) -> None:
    """Print what was patched, and how far the answers differ."""
    text, model = tokens(length), encoder("eager").eval()
    wanted = once(model, text, "forward")
    print(rg.interop.transformers.patch(model))
    error = (once(model, text, "forward") - wanted).abs().max() / wanted.abs().max()
    print(f"{length} tokens, patched and not: at most {error:.0e} of the largest number apart")


# %%
# What is measured
# ----------------
#
# The command measures a forward pass without gradients, and a training step (forward and backward), at growing length.
# Transformers' own attention trains only up to half the longest text: beyond that it needs more memory than most
# laptops have.


@dataclass(frozen=True)
class Size:
    """What the command measures.

    Attributes:
        lengths: lengths of the texts.
        calls: what to compute.
        ways: how to compute it.
        repeats: number of timed calls; one for texts of 4,096 tokens and more, whose calls take seconds.
        theirs_trains: the longest text for a training step without relgraph.
    """

    lengths: tuple[int, ...]
    calls: tuple[str, ...]
    ways: tuple[str, ...]
    repeats: int
    theirs_trains: int


FULL = Size((512, 1024, 2048, 4096, 8192), CALLS, tuple(ways()), 3, 4096)
QUICK = Size((2048,), ("forward",), (FULL.ways[-2], PATCHED), 1, 2048)
LONG = 4096
SECONDS = {"full": 300, "quick": 20}


@dataclass
class Point:
    """One call of one way at one length.

    Attributes:
        variant: call, tokens and way, as one string.
        seed: always 0.
        mib: the peak of the call.
        process_mib: the peak including what the process held before.
        seconds: CPU seconds per call.
    """

    variant: str
    seed: int
    mib: float
    process_mib: float
    seconds: float

    @property
    def place(self) -> tuple[str, int, str]:
        """Call, tokens and way."""
        call, length, way = self.variant.split(", ")
        return call, int(length), way


def points(size: Size) -> list[str]:
    """The names of all points: short texts before long ones."""
    return [
        f"{call}, {length}, {way}"
        for length in size.lengths
        for call in size.calls
        for way in size.ways
        if call == "forward" or way == PATCHED or length <= size.theirs_trains
    ]


def measured(variant: str, seed: int, repeats: int) -> Point:
    """A point, measured by a new process."""
    call, length, way = variant.split(", ")
    command = [sys.executable, str(HERE / "one_call.py"), call, length, way, "--repeats"]
    command.append(str(repeats if int(length) < LONG else 1))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{variant} could not be measured:\n{done.stderr}")
    return Point(variant, seed, **json.loads(done.stdout.splitlines()[-1]))


# %%
# The table and the picture
# -------------------------
#
# On logarithmic axes, a line of slope 2 grows with the square of the length, and a line of slope 1 grows with the
# length.


def report(measured: Sequence[Point]) -> str:
    """The table that the command prints: MiB and seconds of each way."""
    found = {point.place: point for point in measured}
    columns = [way for way in FULL.ways if any(place[2] == way for place in found)]
    lines = [f"{'':<15}{'tokens':>7}" + "".join(f"{way + ' MiB':>13}{'s':>7}" for way in columns)]
    for call in CALLS:
        for length in sorted({place[1] for place in found if place[0] == call}):
            row = [found.get((call, length, way)) for way in columns]
            cells = (f"{point.mib:>13,.0f}{point.seconds:>7.2f}" if point else f"{'–':>13}{'–':>7}" for point in row)
            lines.append(f"{call:<15}{length:>7,}" + "".join(cells))
    return "\n".join(lines)


def draw(folder: Path, record: dict[str, Any]) -> None:
    """Memory and time against length, from what a run has written."""
    found = [Point(**run) for run in record["runs"]]
    with picture(folder / "results.png", 10, 4.5, columns=2) as axes:
        for ax, field, unit in zip(axes, ("mib", "seconds"), ("MiB", "CPU seconds"), strict=True):
            for number, way in enumerate(reversed(FULL.ways)):
                for call, style in zip(CALLS, ("-", "--"), strict=True):
                    mine = [(p.place[1], getattr(p, field)) for p in found if p.place[::2] == (call, way)]
                    if mine:
                        ax.plot(*zip(*mine, strict=True), style, marker="o", color=f"C{number}", label=f"{way}, {call}")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            lengths = sorted({point.place[1] for point in found})
            ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
            ax.set(xlabel="tokens", ylabel=unit)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_title("Peak memory of a call")
        axes[1].set_title("Time of a call")
        axes[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        where = f"{record['notes']['processor']}, one thread, {record['notes']['date']}"
        axes[0].figure.suptitle(where, fontsize=9, color="0.4")


# %%
# The command
# -----------


def main(argv: Sequence[str] | None = None) -> int:
    arguments = Options(
        "patched-memory-out", "Measure memory and time of a T5 encoder at growing length, patched and unpatched.",
        "one length; the picture shows the long run", apart=True,
    ).read(argv)  # fmt: skip
    size = QUICK if arguments.quick else FULL
    settings = {"quick": arguments.quick, "repeats": size.repeats}
    runs = Runs.of_command(arguments.out, Point, settings, fresh=arguments.fresh)
    announce(len(points(size)), SECONDS["quick" if arguments.quick else "full"], runs.folder)
    same_answers(size.lengths[0])
    finished = runs.each(
        points(size), [0], lambda name, seed: (measured(name, seed, size.repeats), None),
        tell=lambda point: f"{point.mib:,.0f} MiB, {point.seconds:.2f} CPU seconds",
    )  # fmt: skip
    print(report(runs.done))
    if not finished:
        return INTERRUPTED
    runs.save(processor=processor(), date=time.strftime("%Y-%m"))
    print(f"results: {runs.path}")
    if arguments.quick:
        print("the picture shows the long run, from its kept figures")
    draw(runs.folder, json.loads((KEPT if arguments.quick else runs.path).read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
