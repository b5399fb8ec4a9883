"""Tests the examples of training frameworks on one and two processes: they train like the plain loop."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(framework):
    """The output of the example, run as its page says."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(EXAMPLES / f"with_{framework}.py")]
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_training_on_two_processes_is_that_of_a_plain_loop(framework):
    text = printed(framework)
    assert "processes: 2" in text
    first, last = map(float, re.search(r"loss: (\S+) in the first step, (\S+) in the last", text).groups())
    assert last < first / 2
    off = float(re.search(r"from a plain loop on one process: (\S+)", text)[1])
    assert off < 1e-3
