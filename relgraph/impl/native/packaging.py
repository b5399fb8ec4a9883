"""The commands by which setuptools adds compiled kernels to an installation; pyproject.toml names them.

setuptools loads this file by its path, without relgraph, whose imports a fresh environment may lack.

An installation from a checkout or an sdist compiles the kernels for this processor if there is a C++ compiler; without
one it says nothing, and relgraph computes by plain torch. An editable installation keeps the library in the user's
cache, where every checkout of the same sources finds it; others keep it in the package.

``RELGRAPH_LIBRARIES``, a folder, replaces that: its files go into the wheel, as in ``.ci/wheels``; an empty name leaves
the kernels out, and the wheel serves every machine.
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("relgraph", "impl", "native")


class Build(build_py):
    """Copies the package, and adds the kernels."""

    def run(self) -> None:
        """Run the command."""
        super().run()
        given = os.environ.get("RELGRAPH_LIBRARIES")
        folder = Path(self.build_lib) / NATIVE / "libraries"
        if not self.editable_mode:
            shutil.rmtree(folder, ignore_errors=True)  # an earlier build may have left others
        if given:
            shutil.copytree(given, folder)
        elif given is None:
            compiler = runpy.run_path(str(NATIVE / "compiler.py"))
            try:
                compiler["compile_native"](None if self.editable_mode else folder.absolute())
            except compiler["UnavailableError"] as error:
                self.announce(f"the kernels are not compiled: {'; '.join(error.args)}", 1)


class Wheel(bdist_wheel):
    """One wheel serves every version of Python; with libraries it is for one kind of machine."""

    def run(self) -> None:
        """Run the command."""
        self.run_command("build")
        made = Path(self.get_finalized_command("build").build_lib) / NATIVE / "libraries"
        if any(made.glob("*.so")):
            self.root_is_pure, self.distribution.has_ext_modules = False, lambda: True  # the place of compiled files
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]
