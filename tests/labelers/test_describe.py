"""Labelers told in words: their ids and names, and the pairs of an input."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

import pytest
import torch

import relgraph as rg
from tests.layers import encoder_layer


def test_without_an_input_ids_and_names_are_told():
    told = rg.Segments(2).describe()
    assert told.names == ("0→0", "0→1", "1→0", "1→1")
    assert (told.num_labels, told.counts, told.unlabeled, told.not_attending, told.pairs) == (4, None, None, None, None)
    assert str(told) == "id  name\n 0  0→0\n 1  0→1\n 2  1→0\n 3  1→1\n4 labels"
    assert str(rg.Window(3).describe()) == "0 labels"


def test_long_lists_leave_out_their_middle():
    lines = str(rg.ClippedDistance(100).describe()).splitlines()
    assert len(lines) == 43
    assert lines[:2] == [" id  name", "  0  -100"]
    assert lines[20:23] == [" 19  -81", "  …", "181  81"]
    assert lines[41:] == ["200  100", "201 labels"]
    assert "…" not in str(rg.BucketedDistance(40, 64).describe())


def test_with_an_input_the_labeler_is_called():
    labeler = rg.ClippedDistance(1)
    assert labeler.describe(4) == labeler(4).describe(labeler.names)
    assert labeler.describe(2, 4, q_offset=2).counts == {"-1": 5, "0": 2, "1": 1}
    assert labeler.describe(q_len=4).pairs == 16


@dataclass(frozen=True)
class Bare(rg.Labeler):
    """A labeler that returns ids where it should return labels."""

    num_labels = 2
    names = ("other", "same")

    def __call__(self, length):
        return torch.eye(length).long()


@pytest.mark.parametrize(
    "made",
    [
        lambda: Bare().describe(3),
        lambda: (Bare() + rg.ClippedDistance(1))(3),
        lambda: (rg.Window(1) | Bare())(3),
        lambda: Bare().dense()(3),
        lambda: encoder_layer(8, 2, 8, labeler=Bare())(torch.zeros(3, 8)),
    ],
)
def test_a_labeler_that_gives_a_bare_tensor(made):
    with pytest.raises(
        TypeError,
        match=r"the labels of Bare must be Labels, got Tensor: make labels of it with rg.DenseLabels\(ids, num_labels\)",
    ):
        made()


def test_a_sum_is_told_part_by_part():
    labeler = rg.ClippedDistance(1) + rg.ClippedDistance(0)
    assert labeler.describe(2).counts == ({"-1": 1, "0": 2, "1": 1}, {"0": 4})
    assert labeler.describe().counts == (None, None)
    assert str(labeler.describe()) == dedent("""\
        part 0
        id  name
         0  -1
         1  0
         2  1
        3 labels
        part 1
        id  name
         0  0
        1 label""")


@pytest.mark.parametrize("labeler", [rg.labelers.ShortestPathTypes(2, 2), rg.labelers.TreePaths(2, 2)])
def test_paths_are_named_by_their_steps(labeler):
    tree = rg.Graph(torch.tensor([[0, 0], [1, 2]]), 3, edge_type=torch.tensor([0, 1]))
    told = labeler.describe(tree)
    labels, paths = labeler(tree)
    assert told == labels.describe(told.names)
    assert told.names[0] == "empty"
    assert told.names[1:] == tuple(" ".join(str(t) for t in path if t >= 0) for path in paths[1:].tolist())
    assert told.counts["empty"] == 3
    assert told.counts["0 3"] == 1
    assert labels.describe().counts == dict(enumerate(told.counts.values()))
    assert labeler(tree).describe() == told
