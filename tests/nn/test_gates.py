"""Gates of a layer: values and gradients, where they begin, and options that they exclude."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from tests.layers import attention_layer
from tests.nn.helpers import F64, by_hand, close, fill_tables

LABELER = rg.ClippedDistance(2)
BOTH = {"key_gate": True, "value_gate": True}


def make(**options):
    torch.manual_seed(0)
    return fill_tables(attention_layer(12, 4, **{"num_labels": 5, "dtype": F64, **options}))


@pytest.mark.parametrize("options", [BOTH, {"key_gate": True, "num_kv_heads": 2}, {"value_gate": True}], ids=str)
def test_values_and_gradients(options):
    layer, x = make(**options), torch.randn(2, 7, 12, dtype=F64, requires_grad=True)
    close(layer(x, labels=LABELER(7)), by_hand(layer, x, labels=LABELER(7)))  # they begin at one
    for gate in layer.gates.parameters():
        torch.nn.init.normal_(gate)
    got, wanted = layer(x, labels=LABELER(7)), by_hand(layer, x, labels=LABELER(7), **layer.gates())
    close(got, wanted)
    assert not torch.allclose(got, by_hand(layer, x, labels=LABELER(7)))
    direction, leaves = torch.randn_like(got), [x, *layer.parameters()]
    close(*(torch.autograd.grad(z, leaves, direction) for z in (got, wanted)))
    layer.reset_parameters()
    assert all(bool((gate == 1).all()) for gate in layer.gates.parameters())


def test_stacks_begin_with_gates_of_one():
    attention = rg.RelationAttention(8, 2, labeler=LABELER, **BOTH)
    torch.nn.init.normal_(attention.gates.key)
    encoder = rg.RelationEncoder(rg.RelationEncoderLayer(8, 2, 16, attention=attention), 2)
    model = rg.RelationTransformer(8, 2, custom_encoder=encoder)
    gates = [gate for name, gate in model.named_parameters() if ".gates." in name]
    assert len(gates) == 4
    assert "(gates): LabelGates(key=[2, 5, 4], value=[2, 5, 4])" in repr(model)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"value_gate": True, "num_labels": None, "tables": ()}, ValueError, "value_gate must be False .* num_labels=None"),
        ({"key_gate": True, "num_labels": (5, 2)}, NotImplementedError, "key_gate needs one label per pair"),
        ({"value_gate": True, "value_map": True}, ValueError, "value_gate must be False with a value_map"),
        ({"key_gate": True, "head_dim": 4, "rotary": rg.RotaryPositions(4)}, ValueError, "key_gate must be False with rotary"),
        (
            {"key_gate": True, "score": rg.score.Additive.learned(4, 3)}, ValueError,
            "key_gate must be False with score=Additive",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(options, error, match):
    with pytest.raises(error, match=match):
        rg.RelationAttention(12, 4, **{"num_labels": 5, **options})
