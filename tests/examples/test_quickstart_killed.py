"""The quickstart killed at random moments: what was finished stays, and the same command ends as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--quick", "--steps", "8", "--threads", "1", "--variants", "none", "relative", "--seeds", "3")
RUNS = [(name, seed) for seed in range(3) for name in ("none", "relative")]
KILLS = 6

FEW_FILES = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import stdlib_functions
everything = stdlib_functions.source_files
stdlib_functions.source_files = lambda root: list(everything(root))[::12]
import quickstart
raise SystemExit(quickstart.main())
"""
"""The quickstart over every twelfth file: reading all of them would take most of the time."""


def start(folder):
    """The command, which has read its functions and begins to work."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", FEW_FILES, str(ROOT / "examples"), *OPTIONS, "--out", str(folder)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    first = process.stdout.readline()
    assert "training functions" in first, first + process.stdout.read()
    return process


def finish(folder):
    """The command run to its end: what it printed, and the seconds after functions were read."""
    with start(folder) as process:
        begun = time.monotonic()
        printed = process.stdout.read()
        assert process.wait(timeout=300) == 0, printed
    return printed, time.monotonic() - begun


def kill(process, folder, delay):
    """SIGKILL after some seconds; with None as soon as a file is half written. Whether it hit."""
    until = time.monotonic() + (60 if delay is None else delay)
    there = partial(folder)
    with process:
        while time.monotonic() < until and process.poll() is None and (delay is not None or partial(folder) <= there):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def partial(folder):
    """The files that are half written, or were when somebody was killed."""
    return {path.name for path in folder.iterdir() if "partial" in path.name} if folder.exists() else set()


def kept(folder):
    """All runs that stand in the folder, without their seconds."""
    path = folder / "results.json"
    if not path.exists():
        return []
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [{name: value for name, value in run.items() if name != "seconds"} for run in runs]


def models(folder):
    """The weights of every model that is there, by name of its file."""
    return {path.name: torch.load(path, weights_only=True) for path in sorted(folder.glob("model-*.pt"))}


def visible(folder):
    """What is in the folder, but for what begins with a dot."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_nothing_finished_is_lost_by_kills(tmp_path):
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    _, seconds = finish(undisturbed)
    wanted, wanted_models = kept(undisturbed), models(undisturbed)
    assert [(run["variant"], run["seed"]) for run in wanted] == RUNS
    assert len(wanted_models) == len(RUNS)
    rng, before, hits = random.Random(0), [], 0
    for number in range(KILLS):
        # every other one in the midst of a write; the rest soon, so that some work is left for those that follow
        hits += kill(start(folder), folder, rng.uniform(0.0, 0.3 * seconds) if number % 2 else None)
        runs, there = kept(folder), models(folder)
        assert runs[: len(before)] == before, "a run that was finished is lost"
        assert runs == wanted[: len(runs)]
        assert {f"model-{run['variant']}-{run['seed']}.pt" for run in runs} <= there.keys()
        for name, weights in there.items():
            assert_equal_weights(weights, wanted_models[name])
        before = runs
    assert hits >= KILLS // 2
    printed, _ = finish(folder)
    assert not before or f"{len(before)} of {len(RUNS)} runs stand in" in printed
    assert kept(folder) == wanted
    for name, weights in models(folder).items():
        assert_equal_weights(weights, wanted_models[name])
    notes, same = (json.loads((at / "results.json").read_text())["notes"] for at in (undisturbed, folder))
    assert notes == same
    assert visible(folder) == visible(undisturbed)
    for path in folder.glob("*.png"):
        assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
