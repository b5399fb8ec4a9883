"""Pictures load on first use, and say what is missing where a package is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

MISSING = """
import sys
sys.modules[{package!r}] = None
import torch, relgraph as rg
try:
    {call}
except ImportError as error:
    print(error)
"""


def printed(package, call):
    code = MISSING.format(package=package, call=call)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("package", ["matplotlib", "networkx", "scipy"])
def test_without_what_it_draws_with(package):
    wanted = "relgraph.plot needs matplotlib, networkx and scipy: pip install matplotlib networkx scipy"
    assert printed(package, "rg.plot") == wanted


def test_it_is_loaded_on_first_use():
    code = "import sys, relgraph as rg; print('matplotlib' in sys.modules, 'relgraph.plot' in sys.modules); rg.plot; "
    code += "print(rg.plot is sys.modules['relgraph.plot'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", "False", "True"]
