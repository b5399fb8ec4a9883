"""Tests the page on several processes: its command runs its scripts, and two processes print the same as one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from docs.site.blocks import ROOT, commands

PAGE = (ROOT / "docs" / "howto" / "several-processes.md").read_text(encoding="utf-8")


def run(command: list[str], folder: Path) -> list[str]:
    """The output lines of a command that runs in a folder with ``train.py``."""
    here = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_print_what_one_prints(tmp_path):
    (tmp_path / "train.py").write_text("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
    shown = [words for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for words in commands(block)]
    [torchrun] = [words for words in shown if words[0] == "torchrun" and words[-1] == "train.py"]
    alone = run([sys.executable, "train.py"], tmp_path)
    assert len(alone) == 3 and len(set(alone)) == 3
    assert run(torchrun, tmp_path) == alone
