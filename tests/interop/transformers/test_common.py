"""Which transformers is needed, and what is said without it."""

from __future__ import annotations

import sys

import pytest

transformers = pytest.importorskip("transformers")

from relgraph.interop.transformers import common  # noqa: E402


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers: pip install 'transformers>=5\.24,<6\.0'$"):
        common.check_version()


@pytest.mark.parametrize("found", [(5, 23), (6, 0)])
def test_another_version(monkeypatch, found):
    monkeypatch.setattr(common, "version", lambda: found)
    with pytest.raises(ImportError, match=r"needs transformers 5\.24 or newer, before 6\.0, got \d"):
        common.check_version()
