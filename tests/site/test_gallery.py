"""The gallery's pages: the long run's results come first, and the index has cards."""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx_gallery")

from docs.site import cards, gallery

PAGE = "note\n\n.. _label:\n\nA title\n=======\n\nThe first\nparagraph.\n\nThe second.\n\n.. code-block:: Python\n\n    x = 1\n"


def changed(folder, page, text=PAGE):
    source = [text]
    gallery._change(SimpleNamespace(srcdir=folder), page, source)
    return source[0]


@pytest.fixture
def built(tmp_path):
    """A folder of pages in which two examples have drawn pictures."""
    images = tmp_path / "gallery" / "images"
    images.mkdir(parents=True)
    for stem in ("patched_memory", "karate_club", "label_pictures"):
        (images / f"sphx_glr_{stem}_001.png").touch()
    return tmp_path


def test_the_first_picture_comes_below_the_first_paragraph(built):
    image = ".. image:: /gallery/images/sphx_glr_patched_memory_001.png\n"
    head, rest = changed(built, "gallery/patched_memory").split(image)
    assert head == PAGE[: PAGE.index("The second.")]
    options, text = rest.split("\n\n", 1)
    assert options.split("\n") == ["   :class: sphx-glr-single-img", f"   :alt: {gallery.ALT}"]
    assert text == PAGE[PAGE.index("The second.") :]


@pytest.mark.parametrize("page", ["gallery/label_pictures", "gallery/with_lightning", "quickstart", "learn/labels"])
def test_other_pages_stay_as_they_are(built, page):
    assert changed(built, page) == PAGE


def test_a_picture_of_results_is_in_a_box(built):
    text = PAGE.replace("The second.", ".. image:: /gallery/images/karate_club.png\n   :alt: Results\n")
    boxed = ".. figure:: /gallery/images/karate_club.png\n   :figclass: results\n   :alt: Results\n"
    assert boxed in changed(built, "gallery/karate_club", text)
    assert changed(built, "gallery/quickstart", text).count("figure::") == 0


def test_the_index_is_ours(built):
    assert changed(built, "gallery/index", "what sphinx-gallery wrote") == cards.index()


def test_examples_are_pages_and_helpers_are_not():
    helpers = re.compile(gallery.helpers())
    stems = {path.stem for path in cards.EXAMPLES.glob("*.py")}
    pages = {stem for group in cards.GROUPS.values() for stem in group}
    assert {stem for stem in stems if not helpers.match(f"{stem}.py")} == pages
    assert "kept_results" in stems - pages
