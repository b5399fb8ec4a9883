"""The gallery's index: each example has one card, in one group, with a sentence and a picture of the long run."""

import re

import pytest

pytest.importorskip("matplotlib")

from matplotlib.pyplot import imread

from docs.site import cards

PAGES = {
    path.stem for path in cards.EXAMPLES.glob("*.py") if "\n====" in path.read_text(encoding="utf-8")[:1000]
}  # as sphinx-gallery takes them
STEMS = [stem for stems in cards.GROUPS.values() for stem in stems]


def test_every_page_is_in_exactly_one_group():
    assert len(STEMS) == len(set(STEMS))
    assert set(STEMS) == PAGES


@pytest.mark.parametrize("stem", STEMS)
def test_a_card_has_a_title_and_one_short_sentence(stem):
    title, text = cards.introduction(stem)
    assert len(title) <= 70
    assert len(text) <= 110
    assert re.fullmatch(r"[A-Z][^.!?]*\.([0-9][^.!?]*\.)?", text), text
    assert not re.search(r"[`*|<>]", text), "markup"


def test_the_index_has_a_card_for_each_example():
    text = cards.index()
    assert text.startswith("Gallery\n=======\n")
    assert re.findall(r":link: (\w+)", text) == STEMS
    assert re.findall(r"^(\S.*)\n-+$", text, re.MULTILINE) == list(cards.GROUPS)
    for stem in STEMS:
        title, sentence = cards.introduction(stem)
        card = f".. grid-item-card:: {title}\n      :link: {stem}\n"
        assert text.count(card) == 1
        assert f"/gallery/images/thumb/{cards.thumbnail(stem)}\n" in text
        assert f"\n      {sentence}\n" in text
        assert f"\n   {stem}\n" in text, "in a toctree"


def test_pictures_of_cards_have_their_size_and_are_not_blank(tmp_path):
    cards.draw_thumbnails(tmp_path)
    wanted = {cards.thumbnail(stem) for stem in STEMS if stem not in cards.FROM_THE_PAGE}
    assert {path.name for path in tmp_path.iterdir()} == wanted
    for path in tmp_path.iterdir():
        picture = imread(path)
        assert picture.shape[:2] == (560, 800)
        assert picture[..., :3].std() > 0.05, path.name
