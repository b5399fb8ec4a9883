"""Tests the examples of training frameworks, by the commands of their pages: two processes train like one."""

import importlib.util
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def losses(framework, processes, *launcher):
    """The first and last loss that the example prints."""
    command = [sys.executable, *launcher, str(EXAMPLES / f"with_{framework}.py")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.search(rf"processes: {processes}\nloss: (\S+) in the first step, (\S+) in the last", run.stdout)
    return [float(loss) for loss in found.groups()]


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_two_processes_train_like_one(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    with ThreadPoolExecutor() as pool:
        first, second = pool.submit(losses, framework, 1), pool.submit(losses, framework, 2, *TWO)
    one = first.result()
    assert one[1] < one[0] / 2
    assert second.result() == pytest.approx(one, rel=1e-3)
