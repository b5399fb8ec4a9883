"""Checks that every link within the built site leads to an existing file and anchor."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the anchors of a page, and its links and loaded files."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchors and links of a tag."""
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        self.links += [value for name in ("href", "src") if (value := values.get(name))]


def broken(root: Path) -> list[str]:
    """``page: link`` for each broken link; skips templates of a theme, in ``_static``, which are not pages."""
    found = (path for path in sorted(root.rglob("*.html")) if "_static" not in path.relative_to(root).parts)
    pages = {path.resolve(): Page(path) for path in found}
    resolve = cache(lambda path: path.resolve())
    wrong = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = resolve(path.parent / unquote(parts.path)) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{path.relative_to(root.resolve())}: {link}")
    return wrong
