"""The wheel and the source archive: what they hold, and what they say of themselves."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import relgraph as rg

pytest.importorskip("build", reason="building needs the package build: the extra relgraph[dev]")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Build the wheel for every machine and the source archive in a copy of the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "relgraph", source / "relgraph", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "RELGRAPH_LIBRARIES": ""})
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def test_both_hold_every_module_the_kernels_the_marker_of_types_and_the_licence(archives):
    wheel, sdist = archives
    kinds = "*.py", "*.cc", "*.cpp", "*.h"
    modules = {path.relative_to(ROOT).as_posix() for kind in kinds for path in (ROOT / "relgraph").rglob(kind)}
    held = set(zipfile.ZipFile(wheel).namelist())
    about = f"relgraph-{rg.__version__}.dist-info"
    assert {name for name in held if not name.startswith(about)} == modules | {"relgraph/py.typed"}
    assert f"{about}/licenses/LICENSE" in held
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | {"relgraph/py.typed", "LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_metadata_name_licence_versions_and_extras(archives):
    wheel, _ = archives
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"relgraph-{rg.__version__}.dist-info/METADATA").decode()
    about = message_from_string(text)
    assert about["Name"] == "relgraph"
    assert about["Version"] == rg.__version__
    assert about["License-Expression"] == "MIT"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert [line for line in about.get_all("Requires-Dist") if "extra" not in line] == ["torch>=2.11"]
    assert {"pyg", "networkx", "conllu", "plot", "triton", "examples", "docs", "test"} <= set(
        about.get_all("Provides-Extra")
    )
    assert "Typing :: Typed" in about.get_all("Classifier")


def test_twine_finds_nothing_to_say(archives):
    pytest.importorskip("twine", reason="the check needs twine: the extra relgraph[dev]")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_importing_loads_no_compiler_and_no_package_of_an_extra():
    code = "import sys, torch; before = set(sys.modules); import relgraph; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"sympy", "torch._dynamo", "torch._inductor", "triton", "networkx", "torch_geometric", "transformers"}
    assert "relgraph" in loaded
    assert not heavy & set(loaded)
