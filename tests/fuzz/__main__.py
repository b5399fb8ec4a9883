"""``python -m tests.fuzz --seeds 10000``: hold the library to the oracle on as many drawn calls."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first (0)")
    parser.add_argument("--only", nargs="+", help="which checks: impls, labels, edges, conv, layer (all)")
    parser.add_argument("--impl", nargs="+", help="which implementations, and no other check; none is impl=None")
    parser.add_argument("--triton", action="store_true", help="triton too, in its interpreter: slow")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds and print what fails; 1 where something does."""
    arguments = parse_arguments(argv)
    if arguments.triton or "triton" in (arguments.impl or ()):
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is loaded
    from tests.fuzz.checks import CHECKS, run
    from tests.fuzz.compare import IMPLS, FuzzError

    impls = tuple(arguments.impl or (*IMPLS, "none", *(["triton"] if arguments.triton else [])))
    names = arguments.only or (["impls"] if arguments.impl else CHECKS)
    answered: Counter[str] = Counter()
    failed: list[int] = []
    start = told = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for name in names:
            try:
                answered.update(run(name, seed, impls))
            except Exception as error:
                failed.append(seed)
                if isinstance(error, FuzzError):
                    print("\n".join(["", f"{name}: {error}", *error.__notes__]), flush=True)
                else:
                    print(f"\n{name}, seed {seed}:", flush=True)
                    traceback.print_exc(file=sys.stdout)
        if failed and arguments.stop:
            break
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{seed + 1 - arguments.first:,} seeds in {told - start:.0f} s, {len(failed)} failures", flush=True)
    print(f"{arguments.seeds:,} seeds from {arguments.first} in {time.monotonic() - start:.0f} s")
    print("answered: " + ", ".join(f"{name} {count:,}" for name, count in answered.items()))
    if failed:
        print(f"{len(failed)} failed: {' '.join(map(str, dict.fromkeys(failed)))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
