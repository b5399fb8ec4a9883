"""The pictures of the tutorial and the how-to pages: their own code is run, and every figure that it leaves is saved.

python docs/images/howto/draw.py              # tutorial-1.png, looking-1.png and so on, beside this file
python docs/images/howto/draw.py tutorial     # those of one page
"""

from __future__ import annotations

import argparse
import re
import tempfile
from contextlib import chdir
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1]
PAGES = {"tutorial": DOCS / "tutorial.md", "looking": DOCS / "howto" / "looking.md"}


def blocks(page: Path) -> list[str]:
    """The page's blocks of plain statements; those that show a prompt draw nothing."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith(">>>")]


def draw(name: str) -> None:
    """Runs a page from top to bottom and saves its figures in the order in which they were made."""
    plt.close("all")
    names: dict[str, object] = {"__name__": name}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # where a page may write
        for block in blocks(PAGES[name]):
            exec(compile(block, str(PAGES[name]), "exec", dont_inherit=True), names)
    for number in plt.get_fignums():
        file = HERE / f"{name}-{number}.png"
        plt.figure(number).savefig(file, dpi=120, bbox_inches="tight")
        print(f"wrote {file.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="all of them when left out")
    for page in parser.parse_args().pages or PAGES:
        draw(page)
