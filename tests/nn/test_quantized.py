"""Layers whose linear parts were replaced, as torch's dynamic quantization does it: parts are called, never read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relgraph as rg
from tests.layers import decoder_layer, encoder_layer, transformer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's quantization is deprecated, and still used
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]

LABELER = rg.ClippedDistance(2)
MODELS = {
    "attention": lambda: rg.RelationAttention(32, 4, num_labels=5),
    "attention of other widths": lambda: rg.RelationAttention(32, 4, num_labels=5, kdim=24, vdim=20),
    "encoder": lambda: rg.RelationEncoder(encoder_layer(32, 4, 64, labeler=LABELER), 2),
    "decoder": lambda: rg.RelationDecoder(decoder_layer(32, 4, 64, labeler=LABELER), 2),
    "transformer": lambda: transformer(32, 4, 1, 1, 64),
}
X, MEMORY = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(0)).split([7, 5], 1)
ARGUMENTS = {
    "attention": ((X,), {"labels": LABELER(7)}),
    "attention of other widths": ((X, X[..., :24], X[..., :20]), {"labels": LABELER(7)}),
    "encoder": ((X,), {}),
    "decoder": ((X, MEMORY), {}),
    "transformer": ((MEMORY, X), {}),
}


@pytest.mark.skipif(torch.backends.quantized.engine == "none", reason="torch was built without quantization")
@pytest.mark.parametrize("name", MODELS)
def test_dynamic_quantization_changes_little(name):
    model, (inputs, options) = MODELS[name]().eval(), ARGUMENTS[name]
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert any("quantized" in type(module).__module__ for module in quantized.modules())
    with torch.no_grad():
        wanted, got = model(*inputs, **options), quantized(*inputs, **options)
    error = (got - wanted).abs().max() / wanted.std()
    assert 0 < error < 0.1  # eight bits a number, in one to six linear maps
