"""Make deliberate faults in a copy of the code, one at a time, and say which ones the tests catch.

``python -m tests.faults`` makes all of them, ``python -m tests.faults NAME ...`` some, ``--list`` only prints them.
A fault is caught if a test fails. Tests that cannot be collected, a crash and a run without end are no catch. The exit
status is 1 if a fault is not caught, or if its text is no longer in the code.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
LONGEST = 600
"""The seconds after which a run of pytest is ended."""


class Run(NamedTuple):
    """The exit status of pytest, None if it ran too long, and what it printed."""

    status: int | None
    output: str

    @property
    def outcome(self) -> str:
        """What the run says about a fault; it begins with "caught" only if a test failed."""
        if self.status is None:
            return f"no test failed within {LONGEST} s"
        failed = re.search(r"^FAILED (.+?)(?: - .*)?$", self.output, re.MULTILINE)
        if self.status == 1 and failed is not None:
            return f"caught by {failed[1]}"
        return "NOT CAUGHT" if self.status == 0 else f"no test failed, and pytest ended with {self.status}"


def main() -> int:
    """Print a line for each fault, then the totals; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the faults to make; all by default")
    parser.add_argument("--list", action="store_true", help="print the faults and what each means")
    parser.add_argument("--no-clean", action="store_true", help="do not run the tests without a fault first")
    options = parser.parse_args()
    unknown = set(options.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    chosen = [fault for fault in FAULTS if fault.name in options.names or not options.names]
    if options.list:
        for fault in chosen:
            print(f"{fault.name}: {fault.meaning} [{fault.file}]")
        return 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy_tracked_files(copy)
        if not options.no_clean and not _passes_without_fault(copy, chosen):
            return 1
        outcomes = [_outcome(copy, fault) for fault in chosen]
    caught = sum(outcome.startswith("caught") for outcome in outcomes)
    print(f"{caught} of {len(chosen)} faults caught in {time.monotonic() - begun:.0f} s")
    return int(caught < len(chosen))


def _copy_tracked_files(copy: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, (os.fsdecode(name) for name in names)):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())


def _passes_without_fault(copy: Path, faults: Sequence[Fault]) -> bool:
    """Whether all tests of these faults pass in the copy; if not, print what pytest printed."""
    tests = dict.fromkeys(test for fault in faults for test in fault.tests.split())
    begun = time.monotonic()
    run = _pytest(copy, [*tests])
    print(f"without a fault: {'passed' if run.status == 0 else 'failed'}, {time.monotonic() - begun:.0f} s", flush=True)
    if run.status != 0:
        print(run.output)
    return run.status == 0


def _outcome(copy: Path, fault: Fault) -> str:
    """Make the fault, run its tests, take it back, and print a line."""
    begun, path = time.monotonic(), copy / fault.file
    sound = path.read_text(encoding="utf-8") if path.is_file() else ""
    if sound.count(fault.old) != 1:
        outcome = f"old text found {sound.count(fault.old)} times in {fault.file}"
    else:
        path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
        run = _pytest(copy, fault.tests.split())
        outcome = run.outcome
        if run.status not in (0, 1):
            print(run.output)
        path.write_text(sound, encoding="utf-8")
    print(f"{fault.name}: {outcome}, {time.monotonic() - begun:.0f} s", flush=True)
    return outcome


def _pytest(copy: Path, tests: Sequence[str]) -> Run:
    """Run tests in the copy, up to the first that fails."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    # pytest compiles changed sources; a library is kept under their hash, so that the next run finds it
    environment.setdefault("RELGRAPH_CACHE", str(Path.home() / ".cache" / "relgraph-faults"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
        return Run(None, printed.decode() if isinstance(printed, bytes) else printed)
    return Run(done.returncode, done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())
