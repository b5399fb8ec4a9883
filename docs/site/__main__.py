"""``python -m docs.site``: build the site, running every example and code block; any warning or broken link fails."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from docs.site.links import broken

DOCS = Path(__file__).resolve().parents[1]
HTML = DOCS / "_build" / "html"

MOST_PROCESSES = 4
"""Each holds torch and all pages; what they share out takes less time than what one of them does for all."""

BLOCKS = ("README.md", "docs", "relgraph")


def main() -> int:
    """Run the steps in order; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Build the site in docs/_build/html.")
    parser.add_argument("--no-gallery", action="store_true", help="a quick look: run no examples, show no sources")
    parser.add_argument(
        "--no-blocks", action="store_true", help="do not run code blocks and doctests (pytest does too)"
    )
    options = parser.parse_args()
    for made in ("_build/html", "_build/doctrees", "api/generated", "gallery"):
        shutil.rmtree(DOCS / made, ignore_errors=True)
    if not make_pages(gallery=not options.no_gallery):
        print("failed: pages", file=sys.stderr)
        return 1
    if not options.no_blocks:
        start = time.perf_counter()
        print("code blocks: pytest runs them", flush=True)
        if subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *BLOCKS], cwd=DOCS.parent, env=environment()
        ).returncode:
            print("failed: code blocks", file=sys.stderr)
            return 1
        print(f"code blocks: {time.perf_counter() - start:.0f} s")
    wrong = broken(HTML)
    print("\n".join(wrong) if wrong else f"links: all are right, in {len(list(HTML.rglob('*.html')))} pages")
    if not wrong:
        print(f"the site: {HTML / 'index.html'}")
    return 1 if wrong else 0


def environment() -> dict[str, str]:
    """The environment of both steps: pictures need no screen, and output appears at once.

    Where Python keeps no bytecode, a build keeps it for the next: compiling torch, PyG and transformers takes 9 s.
    """
    made = os.environ | {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
    if sys.dont_write_bytecode:
        made |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(DOCS / "_build" / "bytecode")}
    return made


def make_pages(*, gallery: bool) -> bool:
    """Run Sphinx; return whether it succeeded."""
    start = time.perf_counter()
    command = [*sphinx(gallery=gallery), str(DOCS), str(HTML)]
    if subprocess.run(command, cwd=DOCS.parent, env=environment()).returncode:
        return False
    print(f"pages: {time.perf_counter() - start:.0f} s")
    return True


def sphinx(*, gallery: bool) -> list[str]:
    """Sphinx's command, strict; ``--keep-going`` names every warning before it fails.

    Without the gallery there are no pages of sources either: those take a fifth of the time.
    """
    run = ["-D", "plot_gallery=1"] if gallery else ["-D", "plot_gallery=0", "-t", "quick"]
    doctrees = str(DOCS / "_build" / "doctrees")
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    return [
        *(sys.executable, "-m", "sphinx", "-b", "html", "-W", "-n", "--keep-going", "--no-color"),
        *("-j", str(processes), "-d", doctrees, *run),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
