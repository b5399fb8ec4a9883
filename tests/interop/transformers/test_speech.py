"""VITS, SpeechT5, WavLM and Granite Speech against the code of transformers."""

from __future__ import annotations

import copy
from importlib import import_module
from unittest import mock

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

# of transformers, which gives torch a bool mask and a floating bias
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")


@pytest.fixture(autouse=True)
def _double():
    """Inputs are made in the type of the models."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


VITS = {
    "vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "window_size": 4,
    "ffn_dim": 32, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip


def vits():
    model = import_module("transformers.models.vits.modeling_vits").VitsTextEncoder(transformers.VitsConfig(**VITS))
    return judge.randomized(model).double()


def whole_vits():
    """A model from text to sound, without noise."""
    config = transformers.VitsConfig(
        **VITS, flow_size=16, spectrogram_bins=9, use_stochastic_duration_prediction=False, noise_scale=0.0,
        upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]], prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1, duration_predictor_filter_channels=16, duration_predictor_dropout=0.0,
        wavenet_dropout=0.0, noise_scale_duration=0.0,
    )  # fmt: skip
    return judge.randomized(transformers.VitsModel(config), std=0.1).double()


def whole_vits_inputs():
    mask = judge.padded(2, 20, right=5)
    return {"input_ids": torch.randint(1, 20, (2, 20)), "attention_mask": mask, "output_hidden_states": True}


def vits_inputs(length, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    ids = torch.randint(1, 20, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "padding_mask": mask[..., None].double()}


def speecht5(name="SpeechT5ForSpeechToText", **options):
    sizes = {
        "vocab_size": 20, "hidden_size": 24, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 32,
        "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 32, "encoder_max_relative_position": 5,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "positional_dropout": 0.0, "feat_proj_dropout": 0.0, "apply_spec_augment": False,
        "conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (4, 3), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_mel_bins": 8,
        "speech_decoder_prenet_units": 16, "speech_decoder_prenet_dropout": 0.0, "speaker_embedding_dim": 8,
        "speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2, "speech_decoder_postnet_dropout": 0.0,
    }  # fmt: skip
    config = transformers.SpeechT5Config(**sizes | options)
    return judge.randomized(getattr(transformers, name)(config)).double()


def wave_inputs(length, batch=2, right=20):
    mask = judge.padded(batch, length, right=right)
    return {"input_values": torch.randn(batch, length, dtype=torch.float64), "attention_mask": mask}


def wavlm(name="WavLMModel", **options):
    sizes = {
        "vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32,
        "num_buckets": 16, "max_bucket_distance": 20, "layerdrop": 0.0, "hidden_dropout": 0.0, "final_dropout": 0.0,
        "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "apply_spec_augment": False,
        "conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (4, 3), "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "ctc_zero_infinity": True,
    }  # fmt: skip
    return judge.randomized(getattr(transformers, name)(transformers.WavLMConfig(**sizes | options))).double()


def waves(frames):
    """Samples that make so many frames in these small feature extractors."""
    return ((frames - 1) * 2 + 3 - 1) * 3 + 4


GRANITE = {
    "input_dim": 8, "num_layers": 2, "hidden_dim": 24, "feedforward_mult": 2, "num_heads": 3, "dim_head": 8,
    "output_dim": 10, "context_size": 6, "max_pos_emb": 9, "dropout": 0.0, "conv_kernel_size": 3,
    "conv_expansion_factor": 2,
}  # fmt: skip
AUDIO = 19
"""The token whose places are for sound."""


class Granite(torch.nn.Module):
    """The encoder with a named output, whatever the version gives."""

    def __init__(self, plus=False):
        super().__init__()
        name = "granite_speech_plus" if plus else "granite_speech"
        prefix = "GraniteSpeechPlus" if plus else "GraniteSpeech"
        config = getattr(transformers, f"{prefix}EncoderConfig")(**GRANITE)
        found = import_module(f"transformers.models.{name}.modeling_{name}")
        self.encoder = getattr(found, f"{prefix}CTCEncoder")(config)

    def forward(self, hidden_states):
        output = self.encoder(hidden_states)
        return {"hidden": output if isinstance(output, torch.Tensor) else output.last_hidden_state}


def whole_granite():
    """A model from sound and text to text."""
    text = {
        "model_type": "granite", "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    between = {
        "model_type": "blip_2_qformer", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 24, "encoder_hidden_size": 24, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "vocab_size": 20,
    }  # fmt: skip
    config = transformers.GraniteSpeechConfig(
        text_config=text, encoder_config=GRANITE, projector_config=between, audio_token_index=AUDIO,
        has_lora_adapter=False, downsample_rate=3, window_size=6,
    )  # fmt: skip
    return judge.randomized(transformers.GraniteSpeechForConditionalGeneration(config)).double()


def whole_granite_inputs():
    """20 frames of sound, which are 8 tokens: two for each window of 6, the last of them padded."""
    ids = torch.randint(3, AUDIO, (2, 13))
    ids[:, 2:10] = AUDIO
    sound = torch.randn(2, 20, 8)
    return {"input_features": sound, "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@pytest.mark.parametrize("length", [1, 4, 5, 6, 40])
def test_vits(length):
    inputs = vits_inputs(length) | {"output_hidden_states": True, "output_attentions": length == 6}
    report = judge.assert_parity(vits(), inputs, keep=inputs["attention_mask"])
    assert len(report.patched) == 2
    assert not report.unpatched


@pytest.mark.parametrize("frames", [1, 2, 5, 6, 7, 40])
def test_speecht5(frames):
    inputs = wave_inputs(waves(frames), right=0 if frames < 12 else 20) | {"labels": torch.randint(2, 20, (2, 7))}
    report = judge.assert_parity(speecht5(), inputs | {"output_hidden_states": True})
    assert [one.kind for one in report.patched] == ["SpeechT5Attention"] * 2 + ["SpeechT5RelativePositionalEncoding"]
    assert {one.why for one in report.unpatched} == {"the decoder has no tables"}


@pytest.mark.parametrize(("frames", "stable"), [(1, True), (4, False), (5, True), (19, False), (20, True), (40, False)])
def test_wavlm(frames, stable):
    inputs = wave_inputs(waves(frames), right=0 if frames < 12 else 20) | {"output_hidden_states": True}
    report = judge.assert_parity(wavlm(do_stable_layer_norm=stable), inputs)
    assert len(report.patched) == 3
    assert not report.unpatched


@pytest.mark.parametrize("length", [1, 5, 6, 7, 12, 13, 40])
def test_granite_speech(length):
    model = judge.randomized(Granite(plus=length > 6)).double()
    inputs = {"hidden_states": torch.randn(2, length, 8, dtype=torch.float64)}
    report = judge.assert_parity(model, inputs)
    assert len(report.patched) == 2


@pytest.mark.parametrize("name", ["vits", "granite"])
def test_whole_models(name, tmp_path):
    model, inputs = (whole_vits(), whole_vits_inputs()) if name == "vits" else (whole_granite(), whole_granite_inputs())
    mine = copy.deepcopy(model)
    assert len(ours.patch(mine).patched) == 2
    wanted = judge.everything(model, inputs)
    judge.assert_same(judge.everything(mine, inputs), wanted, judge.EXACT)
    if name == "vits":
        judge.checkpoint(mine)
        judge.assert_same(judge.everything(mine, inputs, training=True), wanted, judge.EXACT)
    judge.assert_saved_and_loaded(model, inputs, tmp_path, judge.EXACT)


def test_speecht5_reads_text_too():
    model = speecht5("SpeechT5ForTextToSpeech", reduction_factor=1)
    inputs = {"input_ids": torch.randint(3, 20, (2, 15)), "attention_mask": judge.padded(2, 15, right=4)}
    inputs |= {"labels": torch.randn(2, 12, 8), "speaker_embeddings": torch.randn(2, 8)}
    judge.assert_parity(model, inputs)


def test_no_bias_of_all_pairs_is_made():
    """Models call the part that would make it until they are patched."""
    for model, given, part in (
        (vits(), vits_inputs(20), "_get_relative_embeddings"),
        (wavlm(), wave_inputs(waves(20)), "compute_bias"),
    ):
        attention = type(model.encoder.layers[0].attention)
        with mock.patch.object(attention, part, autospec=True, side_effect=getattr(attention, part)) as makes:
            model(**given)
            before = makes.call_count
            ours.patch(model)
            model(**given)
        assert makes.call_count == before > 0


def vits_without_window():
    model = vits()
    for layer in model.encoder.layers:
        layer.attention.window_size = None
    return model
