"""Compare attention with labels with other code for the same task, length by length: time, memory, and a plot.

    python -m docs.benchmarks --threads 1        # all ways on a CPU
    python -m docs.benchmarks --device cuda      # on a GPU, in ten minutes
    python -m docs.benchmarks --quick            # a smoke run: its figures mean nothing
    python -m docs.benchmarks --only 'relgraph'  # some ways
    python -m docs.benchmarks show --out FOLDER  # tables and plot again from the results of a run

Run from the root of the repository, on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from docs.benchmarks import sequences
from docs.benchmarks.about import GIB, about, free_bytes, line
from docs.benchmarks.plots import draw
from docs.benchmarks.run import FAILED, WRONG, Options, measure, peak
from docs.benchmarks.tables import tables

LENGTHS = {"quick": (128, 256), "cpu": (256, 512, 1024, 2048, 4096), "cuda": (512, 1024, 2048, 4096, 8192, 16384)}
SHARE_OF_FREE = 0.6
GPU_MINUTES = 9.0
"""Minutes for a run on a GPU, out of the promised ten; a way that is running when they end still finishes."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, and write results.json, tables.md and a plot; return 1 if a way failed or gave wrong values."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["measure", "show", "peak"], default="measure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32; on a GPU bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch on the CPU")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds (9)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for one way at one length (30)")
    parser.add_argument("--minutes", type=float, help="minutes after which no more ways are begun (GPU: 9)")
    parser.add_argument("--memory", type=float, help="GB that a way may need (0.6 of free memory)")
    parser.add_argument("--only", default="", help="regular expression for the names of ways; the floor always runs")
    parser.add_argument("--out", type=Path, help="output folder (benchmarks-out/DEVICE)")
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    if arguments.what == "peak":
        print(peak(sequences.Sequence(**json.loads(arguments.setting)), arguments.only))
        return 0
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be cpu: torch sees no GPU here")
    out = arguments.out or Path("benchmarks-out") / ("quick" if arguments.quick else arguments.device)
    if arguments.what == "measure":
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_measured(arguments), indent=1, ensure_ascii=False)
        (out / "results.json").write_text(text + "\n")
    results = json.loads((out / "results.json").read_text())
    text = f"{line(results['about'])}\n\n{tables(results)}\n"
    (out / "tables.md").write_text(text)
    print(text)
    draw(results, out / "length-training.png")
    return int(any(row.get("not_run", "").startswith((WRONG, FAILED)) for row in results["rows"]))


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rows, with the machine."""
    cuda = arguments.device == "cuda"
    minutes = arguments.minutes or (GPU_MINUTES if cuda else math.inf)
    options = Options(
        arguments.rounds, arguments.budget,
        arguments.memory * GIB if arguments.memory else SHARE_OF_FREE * free_bytes(arguments.device),
        time.perf_counter() + 60.0 * minutes, arguments.only, peaks=not arguments.quick,
    )  # fmt: skip
    sizes = {"heads": 2, "size": 16, "labels": 8} if arguments.quick else {"heads": 16 if cuda else 8}
    dtype = arguments.dtype or ("bfloat16" if cuda else "float32")
    rows = []
    for length in LENGTHS["quick" if arguments.quick else arguments.device]:
        print(f"length {length:,}", file=sys.stderr)
        setting = sequences.Sequence(length=length, device=arguments.device, dtype=dtype, **sizes)
        rows += measure(setting, options)
    return {"about": about(arguments.device), "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
