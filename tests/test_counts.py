"""Small calls do as much around their kernels as the repository says, and no more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from relgraph.impl.native import build
from tests import counts

SHARE = 0.05
KEPT = json.loads(counts.FILE.read_text(encoding="utf-8")).get(counts.versions())


@pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")
@pytest.mark.skipif(KEPT is None, reason=f"no counts are kept for {counts.versions()}: python -m tests.counts --write")
def test_no_work_comes_back():
    # in a process of its own: what other tests have imported changes the counts
    command = [sys.executable, "-W", "ignore", "-m", "tests.counts", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    wrong = []
    for name, row in KEPT.items():
        for what, number in row.items():
            now, allowed = found[name][what], max(1, SHARE * number)
            # the room that kernels take differs between processors
            if now > number + allowed or (now < number - allowed and what != "peak bytes"):
                wrong.append(f"{name}: {what} are {now}, were {number}")
    assert not wrong, "if this is meant, python -m tests.counts --write keeps the new counts:\n" + "\n".join(wrong)
    assert found.keys() == KEPT.keys()
