"""What several processes send and hold: counted, measured, and compared with a model; see README.md.

python -m docs.benchmarks.processes bytes      # bytes that 2, 4 and 8 processes send, beside the model
python -m docs.benchmarks.processes memory     # peak memory of 4 processes, beside one process and the model
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from docs.benchmarks.about import about, line
from docs.benchmarks.measure import markdown
from docs.benchmarks.processes import counted, model, peaks
from docs.benchmarks.processes.model import Sequences

WITHIN = 0.05
"""So far may counted bytes be from the model."""


def main(given: Sequence[str] | None = None) -> int:
    """Prints what is asked for; 1 if counted bytes are too far from the model."""
    arguments = _parser().parse_args(given)
    kept = torch.get_num_threads()
    torch.set_num_threads(getattr(arguments, "threads", kept))
    try:
        return {"bytes": _bytes, "memory": _memory}[arguments.what](arguments)
    finally:
        torch.set_num_threads(kept)


def _bytes(arguments: argparse.Namespace) -> int:
    rows, far = [], 0
    for size in [2] if arguments.quick else arguments.processes:
        found = counted.count(size)
        far += sum(abs(row.ratio - 1) > WITHIN for row in found)
        rows += [
            {"processes": size, "what": row.what, "counted": f"{row.counted:,.0f}", "model": f"{row.model:,.0f}",
             "ratio": f"{row.ratio:.4f}"}
            for row in found
        ]  # fmt: skip
    print(markdown(rows))
    print(f"\n{len(rows)} counts, {far} of them more than {WITHIN:.0%} from the model; {line(about('cpu'))}")
    return int(far > 0)


def _memory(arguments: argparse.Namespace) -> int:
    setting = peaks.Setting(
        n=2048 if arguments.quick else arguments.n, heads=arguments.heads, size=arguments.size,
        is_causal=arguments.causal, impl=arguments.impl,
    )  # fmt: skip
    work = Sequences(setting.n, 1, setting.heads, setting.heads, setting.size, 2 * setting.clip + 1)
    rows = []
    for row in peaks.measured(setting, arguments.processes):
        method = None if row["mode"] == "one process" else str(row["mode"])
        size = 1 if method is None else arguments.processes
        row["model, MiB"] = round(model.attention_memory(work, method, size, model.COPIES) / 2**20)
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    print(markdown(rows))
    edge = peaks.bytes_of_an_edge(200_000 if arguments.quick else 1_000_000)
    print(f"\nEach further edge: {edge:.0f} bytes, model {model.EDGE}.\n\n{line(about('cpu'))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m docs.benchmarks.processes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="what", required=True)
    sent = parts.add_parser("bytes", help="bytes sent, beside the model")
    sent.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    memory = parts.add_parser("memory", help="peak memory, beside one process")
    memory.add_argument("--processes", type=int, default=4)
    memory.add_argument("--n", type=int, default=16_384)
    memory.add_argument("--heads", type=int, default=8)
    memory.add_argument("--size", type=int, default=64)
    memory.add_argument("--causal", action="store_true", help="rows are dealt out by head and tail")
    memory.add_argument("--impl", help="by the rule when left out")
    for part in (sent, memory):
        part.add_argument("--threads", type=int, default=1, help="of torch in each process")
        part.add_argument("--quick", action="store_true", help="a smoke run: 2 processes, short sequences")
    return parser


if __name__ == "__main__":
    sys.exit(main())
