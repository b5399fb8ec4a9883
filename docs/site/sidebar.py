"""The sidebar of the API pages: one heading per topic and per section, and the names below, without their module.

The theme's own sidebar has one flat list per topic: it leaves sections out.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sphinx import addnodes

INDEX = "api/index"


class Group(NamedTuple):
    """The names of one section; ``heading`` is empty for those before the first section."""

    heading: str
    names: list[tuple[str, str]]


class Topic(NamedTuple):
    """A page that lists names: ``pages`` are theirs, ``groups`` their titles and pages by section."""

    title: str
    page: str
    pages: frozenset[str]
    groups: list[Group]


def setup(app: Any) -> dict[str, Any]:
    """Give the template ``sidebar-api.html`` its topics."""
    app.connect("html-page-context", _add_topics)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_topics(app: Any, page: str, _: str, context: dict[str, Any], __: Any) -> None:
    if page.startswith("api/"):
        context["api_topics"] = topics(app.env)


@cache
def topics(env: Any) -> list[Topic]:
    """The topics of the API in order; the same for all pages of a build."""
    return [_topic(env, page) for page in env.toctree_includes[INDEX]]


def _topic(env: Any, page: str) -> Topic:
    groups: list[Group] = []
    top = env.tocs[page][0]
    for toctree in env.tocs[page].findall(addnodes.toctree):
        section = toctree.parent.parent
        heading = "" if section is top else section[0].astext()
        names = [(env.titles[name].astext(), name) for _, name in toctree["entries"]]
        if groups and groups[-1].heading == heading:
            groups[-1].names.extend(names)
        else:
            groups.append(Group(heading, names))
    pages = frozenset(name for group in groups for _, name in group.names)
    return Topic(env.titles[page].astext(), page, pages, groups)
