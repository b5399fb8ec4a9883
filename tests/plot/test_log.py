"""What is written to a log is the mean mass of each layer, head and label, under its tag and step."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from matplotlib import pyplot as plt

import relgraph as rg
from relgraph.functional import AttentionAux

MASS = torch.rand(2, 2, 3, 4, 2, dtype=torch.float64)  # layers, batch, heads, queries, labels
RECORD = {f"layers.{n}": [AttentionAux(label_mass=mass)] for n, mass in enumerate(MASS)}
NAMES = ["near", "far"]


def scalars(writer):
    assert {one.args[2] for one in writer.add_scalar.call_args_list} == {7}
    return {one.args[0]: one.args[1] for one in writer.add_scalar.call_args_list}


def test_a_scalar_for_each_layer_head_and_label():
    writer, padding = Mock(spec_set=["add_scalar"]), torch.tensor([[False] * 4, [False, True, False, True]])
    rg.plot.log_label_mass(writer, RECORD, 7, NAMES, padding=padding)
    means = torch.cat([MASS[:, 0], MASS[:, 1, :, ::2]], 2).mean(2)
    assert scalars(writer) == {
        f"label_mass/layers.{layer}/head {head}/{name}": pytest.approx(means[layer, head, label].item())
        for layer in range(2) for head in range(3) for label, name in enumerate(NAMES)
    }  # fmt: skip


def test_chosen_labels_another_tag_and_a_layer_without_a_name():
    writer = Mock(spec_set=["add_scalar"])
    mass = MASS[0]
    rg.plot.log_label_mass(
        writer, {"": [AttentionAux(label_mass=(mass, mass.sum(-1, keepdim=True)))]}, 7, (NAMES, ["any"]),
        tag="valid/mass", part=0, labels=["far"],
    )  # fmt: skip
    means = mass.mean((0, 2))
    assert scalars(writer) == {f"valid/mass/head {head}/far": pytest.approx(means[head, 1].item()) for head in range(3)}


def test_the_figure_is_the_overview_and_is_closed():
    writer, drawn = Mock(), []
    writer.add_figure = lambda tag, figure, step: drawn.append((tag, figure.axes[0], step))
    rg.plot.log_label_mass(writer, RECORD, 7, NAMES, labels=[], figure=True)
    ((tag, ax, step),) = drawn
    wanted = rg.plot.label_mass_overview(RECORD, NAMES)
    assert (tag, step) == ("label_mass", 7) and writer.mock_calls == []
    assert [text.get_text() for text in ax.texts] == [text.get_text() for text in wanted.texts]
    assert plt.get_fignums() == [wanted.figure.number]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (
            {"writer": object()},
            TypeError,
            "writer must be an object with add_scalar, such as a SummaryWriter, got object",
        ),
        ({"figure": True}, TypeError, "writer must be an object with add_figure"),
        ({"record": MASS[0]}, TypeError, "record must be the dict of record_attention, got Tensor"),
        ({"step": -1}, ValueError, "step must be at least 0, got -1"),
        ({"names": ["a", "a"]}, ValueError, "names must differ, as tags do"),
        ({"labels": ["near", "nowhere"]}, ValueError, "labels must be among the names of labels, got 'nowhere'$"),
        ({"labels": ["near"], "names": None}, ValueError, "names of labels, got 'near': pass labeler.names"),
    ],
)
def test_what_cannot_be_logged(given, error, match):
    writer = Mock(spec_set=["add_scalar"])
    with pytest.raises(error, match=match):
        rg.plot.log_label_mass(**{"writer": writer, "record": RECORD, "step": 7, "names": NAMES, **given})
    assert writer.mock_calls == []
