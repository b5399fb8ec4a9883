"""The two names that the doctests may use without importing them, how many seeds tests run with, and fresh kernels.

The code blocks of the pages are tests too.
"""

import contextlib
import os

import pytest
import torch

import relgraph as rg
from docs.site.blocks import sybil
from relgraph.impl.native import build, compiler

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures without a screen

collect_ignore_glob = ["docs/conf.py", "docs/site/*", "docs/gallery/*", "docs/_build/*"]  # Sphinx's, and what it makes

pytest_collect_file = sybil().pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Several seeds a test: one that passes proves little where numbers are compared."""
    parser.addoption("--seeds", type=int, default=1, help="run every test of tests/ with that many random seeds")


def pytest_configure() -> None:
    """Compile the CPU kernels if their sources have changed, before tests are collected."""
    if os.environ.get(build.SWITCH, "1") == "1":
        with contextlib.suppress(compiler.UnavailableError):  # the header says what is missing
            compiler.compile_native()


def pytest_report_header() -> list[str]:
    """The CPU kernels, and where the tests marked ``cuda`` run."""
    known = build.load()
    kernels = f"cpu kernels: {known.path if isinstance(known, build.Kernels) else known}"
    if torch.cuda.is_available():
        return [kernels, f"cuda: {torch.cuda.get_device_name()}"]
    return [kernels, "cuda: no GPU; tests marked cuda run in Triton's interpreter on the CPU, or are skipped"]


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
    doctest_namespace["rg"] = rg
