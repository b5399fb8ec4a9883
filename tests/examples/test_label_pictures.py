"""The page of label pictures: each picture shows what the text says of it."""

import runpy

import pytest
import torch
from matplotlib import pyplot

from docs.site import cards

NO_LABEL, NOT_ATTENDING = -1, -2


@pytest.fixture(scope="module")
def page():
    """The names of the page, and the ids in its pictures by the name of their labeler."""
    names = runpy.run_path(str(cards.EXAMPLES / "label_pictures.py"))
    drawn = [pyplot.figure(number).axes[0].images[0].get_array() for number in pyplot.get_fignums()]
    pyplot.close("all")
    labelers = ("distance", "near", "syntax", "both", "kinship", "hops", "linking", "grid")
    return names, dict(zip(labelers, map(torch.from_numpy, (image.data for image in drawn)), strict=True))


@pytest.mark.parametrize(
    ("labeler", "query", "key", "name"),
    [
        ("distance", 0, 6, "2"),
        ("distance", 6, 0, "-2"),
        ("syntax", 4, 1, "iobj"),  # the dog looks at its head, "gave"
        ("syntax", 1, 4, "iobj⁻¹"),
        ("both", 1, 4, "iobj⁻¹"),
        ("both", 0, 6, "2"),
        ("hops", 5, 3, "2"),  # over an atom of the ring to the nitrogen
        ("hops", 4, 7, "3"),  # through the ring
        ("linking", 5, 2, "qc_CEM"),  # "age" is the name of the third column
        ("linking", 1, 5, "qt_TEM"),
        ("grid", 4, 3, "row -1×column 1"),  # from the second row, left, to the first row, right
    ],
)
def test_a_pair_has_its_label(page, labeler, query, key, name):
    names, pictures = page
    assert names[labeler].names[pictures[labeler][query, key]] == name


def test_pairs_without_label_and_pairs_that_do_not_attend(page):
    names, pictures = page
    assert (pictures["syntax"] == NO_LABEL).double().mean() > 0.5
    assert (pictures["both"] >= 0).all()
    before = torch.arange(24)[:, None] - torch.arange(24)
    assert ((pictures["near"] == NOT_ATTENDING) == ((before < 0) | (before > 8))).all()
    sentence = torch.arange(9) < len(names["WORDS"])
    assert ((pictures["kinship"] == NOT_ATTENDING) == (sentence[:, None] != sentence)).all()
    assert NO_LABEL not in pictures["kinship"]
    assert len(names["linking"].names) == 51 and len(names["grid"].names) == 9
