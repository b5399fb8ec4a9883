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
BLOCKS = ("README.md", "docs", "relgraph")


def main() -> int:
    """The steps in order; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Build the site in docs/_build/html.")
    parser.add_argument("--no-gallery", action="store_true", help="leave the examples unrun: a quick look at the pages")
    parser.add_argument(
        "--no-blocks", action="store_true", help="do not run code blocks and doctests (pytest does too)"
    )
    options = parser.parse_args()
    for made in ("_build/html", "_build/doctrees", "api/generated", "gallery"):
        shutil.rmtree(DOCS / made, ignore_errors=True)
    steps = [("pages", [*sphinx(gallery=not options.no_gallery), str(DOCS), str(HTML)])]
    if not options.no_blocks:
        steps.append(("code blocks", [sys.executable, "-m", "pytest", "-q", *BLOCKS]))
    for name, command in steps:
        start = time.perf_counter()
        if subprocess.run(command, cwd=DOCS.parent, env=os.environ | {"MPLBACKEND": "Agg"}).returncode:
            print(f"failed: {name}", file=sys.stderr)
            return 1
        print(f"{name}: {time.perf_counter() - start:.0f} s")
    wrong = broken(HTML)
    print(
        "\n".join(wrong) if wrong else f"links: every one leads somewhere, in {len(list(HTML.rglob('*.html')))} pages"
    )
    if not wrong:
        print(f"the site: {HTML / 'index.html'}")
    return 1 if wrong else 0


def sphinx(*, gallery: bool) -> list[str]:
    """Sphinx's command, strict; ``--keep-going`` names every warning before it fails."""
    run = "1" if gallery else "0"
    doctrees = str(DOCS / "_build" / "doctrees")
    return [
        *(sys.executable, "-m", "sphinx", "-b", "html", "-W", "-n", "--keep-going", "-q"),
        *("-d", doctrees, "-D", f"plot_gallery={run}"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
