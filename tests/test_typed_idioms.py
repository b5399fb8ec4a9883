"""Lines that the pages use: they run, and pyright, which checks this file too, accepts them."""

from dataclasses import dataclass

import pytest
import torch

import relgraph as rg
from tests.layers import encoder_layer


@dataclass(frozen=True)
class SameSpeaker(rg.Labeler):
    num_labels = 2
    names = ("other speaker", "same speaker")

    def __call__(self, speakers):
        return rg.DenseLabels((speakers[:, :, None] == speakers[:, None]).long(), self.num_labels)


def test_a_labeler_may_have_class_attributes():
    labeler = SameSpeaker() + rg.ClippedDistance(2)
    speakers = torch.tensor([[0, 1, 0]])
    layer = rg.RelationAttention(16, 4, labeler=labeler)
    with rg.record_attention(layer) as record:
        layer(torch.randn(1, 3, 16), labels=speakers)
    by_speaker, by_distance = record[""][0].label_mass
    assert by_speaker.shape[-1] == 2
    assert by_distance.shape[-1] == 5


def test_tables_of_a_layer_need_no_assertion():
    layer = rg.RelationAttention(16, 4, labeler=rg.labelers.GridRows(2) + rg.labelers.GridColumns(2))
    assert layer.tables.key[1]().shape == (5, 4)
    layer = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(2))
    lengths = dict(zip(layer.tables.key.names, layer.tables.key.rows.norm(dim=-1).tolist(), strict=True))
    assert lengths.keys() == {"-2", "-1", "0", "1", "2"}
    with torch.no_grad():
        layer.tables.key.rows.zero_()
    assert not layer.tables.key().any()


def test_layers_of_a_stack_need_no_cast():
    model = rg.RelationEncoder(encoder_layer(16, 4, 32, labeler=rg.ClippedDistance(2)), 2)
    assert model.layers[0].self_attn.tables.value.rows.shape == (5, 4)


def test_tables_of_a_conv_need_no_assertion():
    pytest.importorskip("torch_geometric")
    conv = rg.pyg.RelationConv(16, 8, heads=4, num_relations=3)
    assert conv.tables.key.rows.shape == (4, 3, 8)
