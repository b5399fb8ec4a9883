"""The audio encoders of Gemma 3n and 4 against the code of transformers, whose parts in float32 are in float64 here."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

KINDS = {"gemma3n": "Gemma3nAudioEncoder", "gemma4": "Gemma4AudioModel"}
NAMES = [name for name, kind in KINDS.items() if hasattr(transformers, kind)]
WINDOWS = [(4, 5, 0), (12, 13, 0), (5, 4, 3), (3, 9, 1), (2, 1, 0), (1, 3, 2)]
"""Queries in a block and the options of the window, left and right."""


class Double:
    """The module torch in which float32 means float64, for their code only."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def in_double(monkeypatch):
    for name in NAMES:
        monkeypatch.setattr(import_module(f"transformers.models.{name}.modeling_{name}"), "torch", Double())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


class WithStates(nn.Module):
    """An encoder that gives its last states and those after each layer, as only one of them can."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs):
        states, layers = [], getattr(self.encoder, "conformer", None) or self.encoder.layers
        hooks = [layer.register_forward_hook(lambda *given: states.append(given[-1])) for layer in layers]
        last = self.encoder(**inputs)[0]
        for hook in hooks:
            hook.remove()
        return {"last": last, "states": tuple(states)}


class Alone(nn.Module):
    """An attention module, with states that have a gradient."""

    def __init__(self, attention, length):
        super().__init__()
        self.attention = attention
        self.states = nn.Parameter(torch.randn(2, length, 24, dtype=torch.float64))

    def forward(self, **inputs):
        found = self.attention(self.states, **inputs)
        return {"found": found if isinstance(found, tuple) else (found,)}


def tiny(name, window=(4, 5, 0)):
    names = ("chunk_size", "context_left", "context_right")
    own = {f"attention_{option}": value for option, value in zip(names, window, strict=True)}
    own |= {"attention_logit_cap": 1.5, "num_attention_heads": 3, "num_hidden_layers": 2}
    if name == "gemma3n":
        own = {f"conf_{option}": value for option, value in own.items()} | {"conf_reduction_factor": 2}
        own |= {"input_feat_size": 8, "sscp_conv_channel_size": (4, 4)}
    else:
        own |= {"subsampling_conv_channels": [8, 4], "output_proj_dims": 16, "attn_implementation": "eager"}
    own["rms_norm_eps"] = 0.1  # states in padding are zero, and gradients would grow with every norm
    config = getattr(transformers, KINDS[name].replace("Encoder", "Config").replace("Model", "Config"))
    return judge.randomized(getattr(transformers, KINDS[name])(config(hidden_size=24, **own))).double()


def inputs_of(name, frames, dtype=torch.float64):
    """Inputs of that many frames after subsampling, the first row padded on the right and the second on the left."""
    mask = judge.padded(2, frames, left=min(7, frames - 1), right=min(9, frames - 1))
    mask, mel = mask.repeat_interleave(4, 1).bool(), torch.randn(2, 4 * frames, 8, dtype=dtype)
    return {"audio_mel": mel, "audio_mel_mask": ~mask} if name == "gemma3n" else {
        "input_features": mel, "attention_mask": mask
    }  # fmt: skip


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("frames", [1, 12, 40])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_all_gradients(name, frames, window):
    """All frames, also those in padding, whose states a convolution brings to others."""
    report = judge.assert_parity(WithStates(tiny(name, window)), inputs_of(name, frames))
    assert [one.family for one in report.patched] == [f"{name}_audio"] * 2
    assert not report.unpatched


@pytest.mark.parametrize("name", NAMES)
def test_as_theirs_is_in_single_precision(name):
    model = WithStates(tiny(name).float())
    judge.assert_parity(model, inputs_of(name, 30, torch.float32), allowed=judge.SINGLE)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [1, 31])
def test_the_attention_of_gemma3n(length, window):
    module = Alone(tiny("gemma3n", window).conformer[0].attention.attn, length)
    judge.assert_parity(module, {"mask": torch.rand(2, length) < 0.6})


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [1, 31])
def test_the_attention_of_gemma4(length, window):
    """Any mask, for one sequence or for all of them, and the weights."""
    encoder = tiny("gemma4", window)
    encoder.config.output_attentions = True
    module = Alone(encoder.layers[0].self_attn, length)
    positions, blocks = encoder.rel_pos_enc(module.states), -(-length // window[0])
    pairs = (1, blocks, window[0], sum(window) - 1)
    for mask in (None, torch.rand(2, *pairs) < 0.8, -1e9 * (torch.rand(1, *pairs) < 0.8)):
        judge.assert_parity(module, {"position_embeddings": positions, "attention_mask": mask})


def test_recorded_weights():
    model, inputs = tiny("gemma4").float(), inputs_of("gemma4", 30, torch.float32) | {"output_attentions": True}
    judge.assert_parity(model, inputs | {"output_hidden_states": True}, allowed=judge.SINGLE)


def test_what_it_refuses():
    for name in NAMES:
        model = tiny(name)
        if name == "gemma4":
            with pytest.raises(ValueError, match="in blocks of 8 queries and 12 keys its rows of distances move into"):
                ours.patch(tiny(name, (8, 5, 0)))
            model.config.attention_invalid_logits_value = -1.0
            with pytest.raises(ValueError, match="attention_invalid_logits_value is -1.0, so it attends to pairs"):
                ours.patch(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers where a graph breaks between modules
@pytest.mark.parametrize("name", NAMES)
def test_compiled(name):
    model = tiny(name).float()
    ours.patch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for frames in (30, 41):
        inputs = inputs_of(name, frames, torch.float32)
        torch.testing.assert_close(compiled(**inputs)[0], model(**inputs)[0], atol=1e-5, rtol=1e-5)
    torch.compiler.reset()
