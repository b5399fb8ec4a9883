"""A small corpus, prepared once, and a run of a tiny model on it."""

import pytest
import torch

from tests.examples.translation.cases import FINISHED, train, write_corpus


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Sums in one order, so that weights compare to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    from examples.translation import cli

    folder = tmp_path_factory.mktemp("translation")
    corpus = write_corpus(folder / "corpus.txt")
    sizes = ["--held-out", "40", "--vocabulary-size", "300"]
    assert cli.main(["prepare", str(folder / "data"), "--train", str(corpus), *sizes]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of 30 steps with a model saved every 5 and three of them kept."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert train(data, run, **FINISHED) == 0
    return run
