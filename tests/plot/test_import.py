"""Pictures load on first use, and say what is missing where a package is not installed."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import torch, relgraph as rg
print("matplotlib" in sys.modules, "relgraph.plot" in sys.modules)
for package in ("matplotlib", "networkx", "scipy"):
    real, sys.modules[package] = sys.modules.get(package), None
    try:
        rg.plot
    except ImportError as error:
        print(error)
    sys.modules.pop(package) if real is None else sys.modules.update({package: real})
print(rg.plot is sys.modules["relgraph.plot"], rg.plot.__name__)
"""


def test_it_is_loaded_on_first_use_with_all_that_it_draws_with():
    wanted = "relgraph.plot needs matplotlib, networkx and scipy: pip install matplotlib networkx scipy"
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == ["False False", *[wanted] * 3, "True relgraph.plot"]
