"""Tests training runs as real processes that are killed."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation.training import saved_models
from tests.examples.translation.cases import ROOT, assert_same_end, latest, metrics, options

KILLS = 4
STEPS = 300
SETTINGS = {"log_every": 1, "validate_every": 20, "save_every": 5, "keep": 1000, "warm_up": 50, "dropout": 0.1}
PATIENCE = 120
STARTED = []


@pytest.fixture(autouse=True)
def _none_left():
    """Make sure that a failed test leaves no process behind."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE)
    STARTED.clear()


def start(data, run, **values):
    """Start a training run in a separate process; its output goes to ``run.txt``."""
    train = ["-m", "examples.translation", "train", data, run]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with run.with_name(f"{run.name}.txt").open("w") as output:
        call = list(map(str, [sys.executable, *train, *options(**values)]))
        STARTED.append(subprocess.Popen(call, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT))
    return STARTED[-1]


def printed(run):
    return run.with_name(f"{run.name}.txt").read_text()


def opened(run):
    """Identifies the log file: every start of a training run replaces it."""
    path = run / "metrics.csv"
    return path.stat().st_ino if path.exists() else None


def logged(run):
    """The last step of the log."""
    return max((int(row["step"]) for row in metrics(run) if row["split"] == "train" and row["nll"]), default=0)


def wait_for_step(process, run, step, before):
    """Wait until a process with a log file other than ``before`` has logged a step."""
    end = time.monotonic() + PATIENCE
    while opened(run) == before or logged(run) < step:
        assert process.poll() is None, f"it ended before step {step}:\n{printed(run)}"
        assert time.monotonic() < end, f"it has not come to step {step}:\n{printed(run)}"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_again_and_again_it_ends_as_if_never_killed(data, tmp_path):
    unbroken, run, draws, saved = tmp_path / "unbroken", tmp_path / "run", random.Random(0), [0]
    assert start(data, unbroken, steps=STEPS, **SETTINGS).wait(PATIENCE) == 0
    for kill in range(KILLS):
        before, share = opened(run), (STEPS - saved[-1]) // (KILLS - kill + 1)
        process = start(data, run, steps=STEPS, **SETTINGS)
        wait_for_step(process, run, saved[-1] + draws.randint(0, 2 * share - 1), before)
        time.sleep(draws.uniform(0, 0.03))
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        begin = f"continuing after step {saved[-1]}," if saved[-1] else "a new training,"
        assert begin in printed(run)
        done = [row["step"] for row in metrics(run) if row["split"] == "train"]
        assert done == [str(i + 1) for i in range(len(done))]
        saved.append(latest(run)["position"]["step"] if (run / "latest.pt").exists() else 0)
        assert saved[-2] <= saved[-1] < STEPS
        assert len(done) - saved[-1] <= SETTINGS["save_every"]
    assert start(data, run, steps=STEPS, **SETTINGS).wait(PATIENCE) == 0
    assert_same_end(run, unbroken)
    models = [path.name for path in saved_models(unbroken)]
    assert [path.name for path in saved_models(run)] == models
