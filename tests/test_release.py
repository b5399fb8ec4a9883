"""What a release says about itself: one version everywhere, and no address that nobody knows."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import relgraph as rg
from relgraph.__main__ import TESTED

ROOT = Path(__file__).parents[1]
SCRIPTS = pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="a source distribution has no .ci")


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == rg.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert newest == rg.__version__


def test_classifiers_name_the_pythons_that_are_tested():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    assert named == sorted({python for _, python in TESTED})


def test_addresses_are_those_of_papers():
    """No repository, site or mailbox has been announced; whatever needs one is left out until then."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"] == {"Paper": "https://arxiv.org/abs/1803.02155"}
    for name in ("CITATION.cff", "SECURITY.md", "CHANGELOG.md", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"https://arxiv.org"}, name
        assert not re.search(r"\S+@\S+\.\w+", text), name


@SCRIPTS
@pytest.mark.parametrize(("script", "argument"), [("wheels", "made"), ("release", "0.1.0")])
def test_what_is_missing_is_said_before_anything_is_made(script, argument, tmp_path):
    """On a machine without programs and without the packages of an installation."""
    command = [sys.executable, "-I", "-S", ROOT / ".ci" / script, argument]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    missing = "aarch64-linux-gnu-g++, g++, twine, auditwheel, build, setuptools"
    assert done.returncode == 2
    assert done.stderr.endswith(f" error: these must be installed: {missing}\n")
    assert list(tmp_path.iterdir()) == []


@SCRIPTS
def test_a_wheel_whose_kernels_do_not_run_is_no_release(tmp_path):
    """The exit status of the report is 0 there: native is refused, it does not fail."""
    release = runpy.run_path(str(ROOT / ".ci/release"))
    here = {"cwd": ROOT, "PATH": os.environ["PATH"], "RELGRAPH_NATIVE": "0"}
    with pytest.raises(SystemExit, match="some.whl must run impl='native' here, got: has no compiled kernels"):
        release["check_kernels"]("some.whl", Path(sys.executable), **here)
