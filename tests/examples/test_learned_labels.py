"""The page of learned labels: both tasks are learned, and tables and attention are what its text says."""

import runpy

import pytest
import torch
from matplotlib import pyplot

from docs.site import cards

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page():
    names = runpy.run_path(str(cards.EXAMPLES / "learned_labels.py"))
    pyplot.close("all")
    return names


@pytest.mark.parametrize(("model", "make_batch"), [("fetcher", "sequences"), ("climber", "trees")])
def test_a_task_is_learned(page, model, make_batch):
    torch.manual_seed(1)
    given, wanted = page[make_batch]()
    right = page[model](*given).argmax(-1) == wanted
    assert right[wanted != page["NO_QUESTION"]].double().mean() > 0.95


def test_the_useful_distances_have_the_longest_rows_which_point_away_from_others(page):
    key, names = page["fetcher"].attention.tables.key().detach(), page["DISTANCE"].names
    useful = torch.tensor([name in ("-3", "2") for name in names])
    assert key[useful].norm(dim=-1).min() > key[~useful].norm(dim=-1).max()
    cosines = torch.nn.functional.cosine_similarity(key[:, None], key[None], dim=-1)
    assert cosines[~useful][:, ~useful].min() > 0 > cosines[useful][:, ~useful].max()
    assert cosines[useful][:, useful].min() < 0


def test_a_node_looks_at_its_grandparent(page):
    assert (page["call"].weights[:, 7, 4] > 0.5).all(), "c looks at the product"
