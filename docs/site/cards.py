"""The gallery's index: groups of cards, one for each example: a picture, the title and the first sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from examples.kept_results import Kept

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEADER = "GALLERY_HEADER.rst"

GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": ("karate_club", "quickstart"),
    "Pictures of labels": ("label_pictures",),
    "Code and language": ("syntax_trees", "variable_misuse", "naming_functions", "dependency_trees", "schema_linking"),
    "Graphs": ("graph_classification", "kinship", "additive_scores"),
    "Tables": ("relational_tables",),
    "Hugging Face": ("pretrained_relations", "patched_tables"),
    "Bigger than one device": ("with_accelerate", "with_lightning"),
}
"""Every example that is a page, in exactly one group."""

FROM_THE_PAGE = ("label_pictures", "patched_tables", "syntax_trees")
"""Examples that draw what a long run draws: their card has a picture of the page."""


def with_results() -> list[str]:
    """The pages that show a picture of kept figures, ``/gallery/images/NAME.png``, which the site draws."""
    return [stem for stem in chain(*GROUPS.values()) if f"/images/{stem}.png" in _source(stem)]


def _source(stem: str) -> str:
    return (EXAMPLES / f"{stem}.py").read_text(encoding="utf-8")


def introduction(stem: str) -> tuple[str, str]:
    """The title of an example, and the first paragraph of its docstring in one line."""
    text = ast.get_docstring(ast.parse(_source(stem))) or ""
    head, first, *_ = text.split("\n\n")
    return head.split("\n")[0], " ".join(first.split())


def index() -> str:
    """The page in reStructuredText, in place of the one that sphinx-gallery writes."""
    return "\n".join([(EXAMPLES / HEADER).read_text(encoding="utf-8"), *_groups()])


def _groups() -> Iterator[str]:
    for group, stems in GROUPS.items():
        yield from (group, "-" * len(group), "", ".. grid:: 1 1 2 2", "   :gutter: 3", "")
        for stem in stems:
            title, text = introduction(stem)
            yield from (
                f"   .. grid-item-card:: {title}",
                f"      :link: {stem}",
                "      :link-type: doc",
                f"      :img-top: /gallery/images/thumb/{thumbnail(stem)}",
                f"      :img-alt: {title}",
                "",
                f"      {text}",
                "",
            )
        yield from (".. toctree::", "   :hidden:", f"   :caption: {group}", "", *(f"   {stem}" for stem in stems), "")


def thumbnail(stem: str) -> str:
    """The file with the picture of a card; sphinx-gallery makes those of :data:`FROM_THE_PAGE`."""
    return f"sphx_glr_{stem}_thumb.png" if stem in FROM_THE_PAGE else f"{stem}.png"


def draw_thumbnails(folder: Path) -> None:
    """Draw the pictures of all other cards."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem in (stem for stem in chain(*GROUPS.values()) if stem not in FROM_THE_PAGE):
        path = folder / thumbnail(stem)
        if stem.startswith("with_"):
            draw_processes(path)
        else:
            Kept.read(stem).draw_thumbnail(path)


def draw_processes(path: Path) -> None:
    """A batch that two processes share, whose gradients are averaged."""
    figure = Figure(figsize=(4, 2.8), dpi=200)
    ax = figure.add_axes((0, 0, 1, 1))
    boxes = {"one batch": (1.45, 2.0), "process 0\nhalf of it": (0.35, 1.05), "process 1\nhalf of it": (2.55, 1.05)}
    for text, (x, y) in boxes.items():
        box = FancyBboxPatch((x, y), 1.1, 0.5, boxstyle="round,pad=0.08", facecolor="#e3eef6", edgecolor="#0072b2")
        ax.add_patch(box)
        ax.text(x + 0.55, y + 0.25, text, ha="center", va="center", fontsize=11)
    arrow = {"arrowstyle": "->", "color": "#4a525b", "linewidth": 1.5}
    for end in (1.0, 3.0):
        ax.annotate("", (end, 1.65), (2.0, 1.9), arrowprops=arrow)
        ax.annotate("", (2.0, 0.62), (end, 0.95), arrowprops=arrow)
    ax.text(2.0, 0.42, "one gradient: the mean", ha="center", va="center", fontsize=11, weight="bold")
    ax.set(xlim=(0, 4), ylim=(0.1, 2.9))
    ax.axis("off")
    figure.savefig(path)
