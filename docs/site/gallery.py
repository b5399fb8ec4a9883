"""The gallery: examples run, pages show what they draw and what long runs gave, and cards lead there."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

from docs.site import cards
from examples.kept_results import Kept

EXAMPLES = cards.EXAMPLES


def helpers() -> str:
    """A pattern for the files beside the examples that are no pages: their docstring has no title."""
    names = [path.stem for path in EXAMPLES.glob("*.py") if "\n====" not in path.read_text(encoding="utf-8")[:1000]]
    return rf"^({'|'.join(names)})\.py$"


def setup(app: Any) -> dict[str, Any]:
    """Show the results of an example before its code, and cards on the gallery's index."""
    app.connect("config-inited", _shrink, priority=1)  # before sphinx-gallery reads its settings
    app.connect("builder-inited", _draw, priority=900)  # after sphinx-gallery has made the folder
    app.connect("source-read", _change)
    return {"parallel_read_safe": True}


def _shrink(app: Any, config: Any) -> None:
    """Make small placeholders for a quick look, which shows no results: large ones take a third of a second."""
    if app.tags.has("quick"):
        config.sphinx_gallery_conf["thumbnail_size"] = (80, 56)


def _draw(app: Any) -> None:
    """Draw results and cards; for a quick look, take the pictures of sphinx-gallery, because drawing takes seconds."""
    folder = Path(app.srcdir) / "gallery" / "images"
    thumbnails = folder / "thumb"
    if not app.tags.has("quick"):
        cards.draw_thumbnails(thumbnails)
        for stem in cards.with_results():
            Kept.read(stem).draw(folder, stem)
        return
    for stem in chain(*cards.GROUPS.values()):
        made = thumbnails / f"sphx_glr_{stem}_thumb.png"
        if stem not in cards.FROM_THE_PAGE:
            shutil.copy(made, thumbnails / cards.thumbnail(stem))
        if stem in cards.with_results():
            shutil.copy(made, folder / f"{stem}.png")


def _change(_: Any, page: str, source: list[str]) -> None:
    """The index has cards; a picture of results gets a box, which scrolls on a phone, where it would be too small."""
    if page == "gallery/index":
        source[0] = cards.index()
        return
    results = f":: /gallery/images/{page.removeprefix('gallery/')}.png\n"
    source[0] = source[0].replace(f".. image{results}", f".. figure{results}   :figclass: results\n")
