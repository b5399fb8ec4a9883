"""Packages of AOTInductor run without Python, by the program that docs/howto/deploy.md shows."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from relgraph.impl.native import compiler


@functools.cache
def program() -> Path:
    """The program, compiled once by a process."""
    folder, libraries = Path(tempfile.mkdtemp()), f"{Path(torch.__file__).parent}/lib"
    command = [*(compiler.find_compiler() or ()), "-std=c++20", f"-I{Path(torch.__file__).parent}/include"]
    command += [str(Path(__file__).parents[1] / "docs/howto/exported.cpp"), f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-o", str(folder / "run")]
    subprocess.run(command, check=True)
    return folder / "run"


def run(package: str, inputs: Sequence[Tensor], folder: Path, *, file: str = "") -> Tensor:
    """What a package gives; ``file`` is the one with compiled kernels."""
    paths = [str(folder / f"{name}.pt") for name in ("output", *range(len(inputs)))]
    for x, path in zip(inputs, paths[1:], strict=True):
        torch.save(x, path)
    subprocess.run([str(program()), file, package, *paths], check=True)
    return torch.load(paths[0])
