"""The jobs of CI: together they run every test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / ".ci" / "job"

pytestmark = pytest.mark.skipif(not JOB.is_file(), reason="a source distribution has no .ci")


def test_each_folder_with_tests_is_in_one_job():
    calls = re.findall(r"^(?:job_\w+\(\) \{)? *tests ([\w/. ]*\w)", JOB.read_text(), re.MULTILINE)
    named = [folder for call in calls for folder in call.split()]
    folders = {
        f"tests/{path.parent.relative_to(ROOT / 'tests').parts[0]}" for path in ROOT.glob("tests/*/**/test_*.py")
    }
    assert sorted(named) == sorted([*folders, "tests", "relgraph", "docs", "README.md"])


def test_each_job_is_listed_and_each_listed_job_exists():
    text = JOB.read_text()
    (names,) = re.findall(r"^names=\((.*)\)$", text, re.MULTILINE)
    assert sorted(names.split()) == sorted(re.findall(r"^job_(\w+)\(\)", text, re.MULTILINE))
