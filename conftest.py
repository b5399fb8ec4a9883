"""The two names that the doctests may use without importing them, and how many seeds tests run with.

The code blocks of the pages are tests too.
"""

import os

import pytest
import torch

import relgraph as rg
from docs.site.blocks import sybil

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures without a screen

collect_ignore_glob = ["docs/conf.py", "docs/site/*", "docs/gallery/*", "docs/_build/*"]  # Sphinx's, and what it makes

pytest_collect_file = sybil().pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Several seeds a test: one that passes proves little where numbers are compared."""
    parser.addoption("--seeds", type=int, default=1, help="run every test of tests/ with that many random seeds")


def pytest_report_header() -> str:
    """Where the tests marked ``cuda`` run."""
    if torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}"
    return "cuda: no GPU; tests marked cuda run in Triton's interpreter on the CPU, or are skipped"


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
    doctest_namespace["rg"] = rg
