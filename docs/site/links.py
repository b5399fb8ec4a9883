"""Checks that every link within the built site leads to an existing file and anchor."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

ATTRIBUTE = re.compile(r"""\s(id|name|href|src)=(?:"([^"]+)"|'([^']+)')""")
"""Pages escape quotation marks in text, so this finds the same as a parser, in a fifth of the time."""


class Page:
    """The anchors of a page, and its links and loaded files."""

    def __init__(self, path: Path) -> None:
        found = dict.fromkeys(ATTRIBUTE.findall(path.read_text(encoding="utf-8")))
        self.anchors = {unescape(one or other) for name, one, other in found if name in ("id", "name")}
        self.links = [unescape(one or other) for name, one, other in found if name in ("href", "src")]


def broken(root: Path) -> list[str]:
    """``page: link`` for each broken link; skips templates of a theme, in ``_static``, which are not pages."""
    found = (path for path in sorted(root.rglob("*.html")) if "_static" not in path.relative_to(root).parts)
    pages = {path.resolve(): Page(path) for path in found}
    resolve = cache(lambda path: path.resolve())
    is_file = cache(lambda path: path.is_file())
    wrong = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = resolve(path.parent / unquote(parts.path)) if parts.path else path
            target = target if is_file(target) else target / "index.html"
            anchor = unquote(parts.fragment)
            if not is_file(target) or (anchor and target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{path.relative_to(root.resolve())}: {link}")
    return wrong
