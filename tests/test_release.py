"""What a release says about itself: one version everywhere, and no address that nobody knows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import relgraph as rg

ROOT = Path(__file__).parents[1]


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == rg.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert newest == rg.__version__


def test_addresses_are_those_of_papers():
    """No repository, site or mailbox has been announced; whatever needs one is left out until then."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"] == {"Paper": "https://arxiv.org/abs/1803.02155"}
    for name in ("CITATION.cff", "SECURITY.md", "CHANGELOG.md", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"https://arxiv.org"}, name
        assert not re.search(r"\S+@\S+\.\w+", text), name
