"""Swin and its kin against the code of transformers."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

KINDS = {
    "Swin": ("swin", "SwinModel"), "DonutSwin": ("donut_swin", "DonutSwinModel"),
    "MaskFormerSwin": ("maskformer_swin", "MaskFormerSwinModel"), "Swinv2": ("swinv2", "Swinv2Model"),
    "Swin2SR": ("swin2sr", "Swin2SRModel"),
}  # fmt: skip
ALL = [(name, "eager") for name in KINDS] + [("Swin", "sdpa")]


def allowed_for(name, attention="eager"):
    """From 5.0 on, the softmax of Swin's own code is in float32, of SDPA and of the others in that of the model."""
    return judge.SINGLE if name == "Swin" and attention == "eager" else judge.EXACT


def tiny(name="Swin", attention="eager", **options):
    """Windows of 3 × 3 cells, every second layer shifted; 12 × 12 cells, then 6 × 6."""
    file, kind = KINDS[name]
    folder = {"donut_swin": "donut", "maskformer_swin": "maskformer"}.get(file, file)
    modeling = import_module(f"transformers.models.{folder}.modeling_{file}")
    config = getattr(import_module(f"transformers.models.{folder}.configuration_{file}"), f"{name}Config")
    sizes = {
        "image_size": 24, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3], "window_size": 3,
    }  # fmt: skip
    sizes |= {"drop_path_rate": 0.0, "attn_implementation": attention}
    if name == "Swin2SR":  # which has no stages of fewer cells
        sizes |= {"patch_size": 1}
    return judge.randomized(getattr(modeling, kind)(config(**sizes | options)), std=0.2).double()


def image(batch=2, height=24, width=24):
    return {"pixel_values": torch.randn(batch, 3, height, width, dtype=torch.float64)}


@pytest.mark.parametrize(("name", "attention"), ALL)
def test_outputs_and_all_gradients(name, attention):
    options = {"output_hidden_states": True}
    report = judge.assert_parity(tiny(name, attention), image() | options, allowed=allowed_for(name, attention))
    assert len(report.patched) == 4
    assert not report.unpatched


@pytest.mark.parametrize("name", [name for name in KINDS if name != "Swin2SR"])  # which cannot take them
@pytest.mark.parametrize(("height", "width"), [(20, 28), (26, 26)])
def test_images_that_windows_do_not_divide(name, height, width):
    judge.assert_parity(tiny(name), image(1, height, width), allowed=allowed_for(name))


@pytest.mark.parametrize("name", KINDS)
def test_weights_on_request(name):
    inputs = image() | {"output_attentions": True}
    if name == "MaskFormerSwin":  # gives weights with hidden states only
        inputs["output_hidden_states"] = True
    judge.assert_parity(tiny(name), inputs, allowed=allowed_for(name))


def test_audio_of_clap():
    sizes = {"spec_size": 32, "num_mel_bins": 8, "patch_size": 2, "patch_stride": [2, 2], "window_size": 4}
    sizes |= {"patch_embeds_hidden_size": 12, "depths": [2, 2], "num_attention_heads": [2, 3], "hidden_size": 24}
    sizes |= {"num_hidden_layers": 2, "drop_path_rate": 0.0, "enable_fusion": False}
    model = judge.randomized(transformers.ClapAudioModel(transformers.ClapAudioConfig(**sizes)), std=0.2).double()
    inputs = {"input_features": torch.randn(2, 1, 100, 8, dtype=torch.float64)}
    report = judge.assert_parity(model, inputs | {"output_hidden_states": True})
    assert len(report.patched) == 4
    judge.assert_parity(model, inputs | {"output_attentions": True})


def attention_of(model):
    block = model.encoder.layers[0].blocks[0] if hasattr(model, "encoder") else model.layers[0].blocks[0]
    return block.attention if hasattr(block.attention, "o_proj") else block.attention.self


@pytest.mark.parametrize("name", ["Swin", "Swinv2"])
@pytest.mark.slow
def test_compiled(name):
    model = tiny(name)
    ours.patch(model)
    module, states = attention_of(model), torch.randn(8, 9, 12, dtype=torch.float64)
    mask = torch.zeros(4, 9, 9, dtype=torch.float64)
    mask[:, :3, 3:] = -100.0
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(states, mask)[0], module(states, mask)[0])
    torch.compiler.reset()
