"""A small corpus, prepared once, and a run of a tiny model on it."""

import pytest
import torch

from tests.examples.translation.cases import FINISHED, train, write_corpus


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Use one thread, so that sums have one order and weights compare bitwise."""
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
    """A run of 30 steps that saves a model every 5 steps and keeps three."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert train(data, run, **FINISHED) == 0
    return run
