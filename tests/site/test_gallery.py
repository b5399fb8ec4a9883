"""The gallery's pages: results have a box, and the index has cards."""

import re

import pytest

pytest.importorskip("sphinx_gallery")

from docs.site import cards, gallery


def changed(page, text):
    source = [text]
    gallery._change(None, page, source)
    return source[0]


def test_a_picture_of_results_is_in_a_box():
    text = "A title\n=======\n\n.. image:: /gallery/images/karate_club.png\n   :alt: Results\n"
    boxed = ".. figure:: /gallery/images/karate_club.png\n   :figclass: results\n   :alt: Results\n"
    assert changed("gallery/karate_club", text) == text.replace(text[text.index("..") :], boxed)
    assert changed("gallery/quickstart", text) == text


def test_the_index_is_ours():
    assert changed("gallery/index", "what sphinx-gallery wrote") == cards.index()


def test_examples_are_pages_and_helpers_are_not():
    helpers = re.compile(gallery.helpers())
    stems = {path.stem for path in cards.EXAMPLES.glob("*.py")}
    pages = {stem for group in cards.GROUPS.values() for stem in group}
    assert {stem for stem in stems if not helpers.match(f"{stem}.py")} == pages
    assert "kept_results" in stems - pages
