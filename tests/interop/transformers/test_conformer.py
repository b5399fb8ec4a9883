"""Conformers of speech against the code of transformers."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import common  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

IMPLEMENTATIONS = ("eager", "sdpa")
SIZES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32,
    "conv_depthwise_kernel_size": 5, "layerdrop": 0.0, "apply_spec_augment": False, "vocab_size": 20,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
    "final_dropout": 0.0, "conformer_conv_dropout": 0.0,
}  # fmt: skip


def bert(name="Wav2Vec2BertModel", attention="eager", **options):
    clips = {"left_max_position_embeddings": 6, "right_max_position_embeddings": 2}
    options = SIZES | clips | {"feature_projection_input_dim": 8, "attn_implementation": attention} | options
    return judge.randomized(getattr(transformers, name)(transformers.Wav2Vec2BertConfig(**options))).double()


def features(length, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    return {"input_features": torch.randn(batch, length, 8, dtype=torch.float64), "attention_mask": mask}


def seamless(name="SeamlessM4Tv2", attention="eager", **options):
    sizes = {
        "vocab_size": 30, "t2u_vocab_size": 30, "hidden_size": 24, "speech_encoder_layers": 2,
        "speech_encoder_attention_heads": 3, "speech_encoder_intermediate_size": 32, "conv_depthwise_kernel_size": 5,
        "feature_projection_input_dim": 8, "left_max_position_embeddings": 6, "right_max_position_embeddings": 2,
        "speech_encoder_dropout": 0.0, "speech_encoder_layerdrop": 0.0, "max_source_positions": 64,
        "adaptor_kernel_size": 2, "adaptor_stride": 2, "num_adapter_layers": 1, "adaptor_dropout": 0.0,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes | {"attn_implementation": attention} | options)
    file = {"SeamlessM4Tv2": "seamless_m4t_v2", "SeamlessM4T": "seamless_m4t"}[name]
    found = import_module(f"transformers.models.{file}.modeling_{file}")
    return judge.randomized(getattr(found, f"{name}SpeechEncoder")(config)).double()


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["relative_key", "relative"])
@pytest.mark.parametrize("length", [1, 3, 4, 7, 40])
def test_outputs_and_all_gradients(length, kind, attention):
    model = bert(attention=attention, position_embeddings_type=kind)
    inputs = features(length) | {"output_hidden_states": True}
    report = judge.assert_parity(model, inputs, keep=inputs["attention_mask"])
    assert len(report.patched) == 2
    assert not report.unpatched


@pytest.mark.parametrize(("length", "chunk"), [(3, 100), (24, 5)])
def test_both_versions_of_seamless(length, chunk):
    judge.assert_parity(seamless("SeamlessM4T"), features(length))
    # the eager attention of 5.0 and later adds its bool mask of chunks to the scores as 0 and 1
    model = seamless(attention=IMPLEMENTATIONS[-1], speech_encoder_chunk_size=chunk, speech_encoder_left_chunk_num=1)
    report = judge.assert_parity(model, features(length))
    assert len(report.patched) == 2
    assert {one.why for one in report.unpatched} == {"it has no table: position_embeddings_type is None"}


def wave_model(kind="relative", name="Wav2Vec2ConformerModel", **options):
    more = {
        "conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (4, 3), "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "position_embeddings_type": kind,
        "ctc_zero_infinity": True,
    }  # fmt: skip
    config = transformers.Wav2Vec2ConformerConfig(**SIZES | more | options)
    return judge.randomized(getattr(transformers, name)(config)).double()


@pytest.mark.parametrize("samples", [10, 90])
def test_wav2vec2_conformer(samples):
    inputs = {"input_values": torch.randn(2, samples, dtype=torch.float64), "output_hidden_states": True}
    inputs["attention_mask"] = judge.padded(2, samples, right=samples // 3)
    judge.assert_parity(wave_model(), inputs)


def ctc_inputs(length=24):
    return features(length) | {"labels": torch.randint(1, 20, (2, 5))}


def ctc(**options):
    return bert("Wav2Vec2BertForCTC", ctc_zero_infinity=True, **options)


def test_no_row_for_each_pair_is_made():
    """The model looks up a row for each pair; patched, the table is used whole."""
    model = bert()
    ours.patch(model)
    looked_up = []
    for layer in model.encoder.layers:
        layer.self_attn.distance_embedding.register_forward_hook(lambda _, args, __: looked_up.append(args[0].shape))
    model(**features(30))
    assert not looked_up


def test_masks_that_are_the_same_for_all_queries_are_cut():
    row = torch.randn(2, 1, 1, 5)
    written = row.expand(2, 1, 4, 5).contiguous()
    assert torch.equal(common.one_row(written), row)
    assert common.one_row(written).shape == (2, 1, 1, 5)
    written[1, 0, 2, 3] += 1.0  # in place: looked at again
    assert common.one_row(written) is written
    with torch.inference_mode():
        assert common.one_row(row.expand(2, 1, 4, 5).contiguous()).shape == (2, 1, 1, 5)
    assert common.one_row(row.expand(2, 1, 4, 5)).shape == (2, 1, 1, 5)
    asked = written.clone().requires_grad_()
    assert common.one_row(asked) is asked
    assert common.one_row(None) is None


PARAKEET = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32, "conv_kernel_size": 5,
    "subsampling_factor": 4, "subsampling_conv_channels": 4, "num_mel_bins": 8, "dropout": 0.0, "layerdrop": 0.0,
    "activation_dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 64,
}  # fmt: skip
STREAMING = {"sliding_window": 7, "default_num_lookahead_tokens": 1}


def parakeet(name="Parakeet", attention="sdpa", **options):
    """An encoder; their eager attention computes the softmax in float32."""
    options = PARAKEET | {"attn_implementation": attention} | options
    config = getattr(transformers, f"{name}EncoderConfig")(**options)
    return judge.randomized(getattr(transformers, f"{name}Encoder")(config)).double()


def parakeet_ctc():
    encoder = transformers.ParakeetEncoderConfig(**PARAKEET).to_dict()
    config = transformers.ParakeetCTCConfig(encoder_config=encoder, vocab_size=20, pad_token_id=19)
    return judge.randomized(transformers.ParakeetForCTC._from_config(config, attn_implementation="eager")).double()


def mel(length=40, right=12):
    inputs = {"input_features": torch.randn(2, length, 8, dtype=torch.float64)}
    return inputs | {"attention_mask": judge.padded(2, length, right=min(right, length - 4))}


def parakeet_inputs():
    """Without padding, where their eager attention divides by zero in float64."""
    return mel(right=0) | {"labels": torch.randint(1, 19, (2, 5))}


@pytest.mark.parametrize(("name", "options"), [("Parakeet", {}), ("NemotronAsrStreaming", STREAMING)])
@pytest.mark.parametrize("length", [4, 9, 60])
def test_parakeet(length, name, options):
    model, inputs = parakeet(name, **options), mel(length)
    keep = model(**inputs).attention_mask
    report = judge.assert_parity(model, inputs | {"output_hidden_states": True}, keep=keep)
    assert len(report.patched) == 2


def test_dropped_positions_of_parakeet():
    model = parakeet(dropout_positions=0.3)
    found = []
    for patch in (False, True):
        if patch:
            ours.patch(model)
        torch.manual_seed(3)
        found.append(judge.everything(model, {"input_features": mel()["input_features"]}, training=True))
        torch.manual_seed(0)
    judge.assert_same(*found, judge.EXACT)
