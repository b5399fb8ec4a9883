"""What patched modules and ``patch`` say about what they cannot do."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import (  # noqa: E402
    test_beit,
    test_conformer,
    test_deberta,
    test_layoutlm,
    test_mpnet,
    test_sam,
    test_speech,
    test_t5,
)

X = torch.randn(1, 4, 24, dtype=torch.float64)
PAIRS = torch.zeros(1, 3, 4, 4)


def vits_without_window():
    model = test_speech.vits()
    for layer in model.encoder.layers:
        layer.attention.window_size = None
    return model


def sam_with_forwards():
    model = test_sam.tiny()
    for layer in model.layers:
        layer.attn.forward = lambda hidden_states: (hidden_states, None)
    return model


NO_TEXT, NO_PAGE = {"has_relative_attention_bias": False}, {"has_spatial_attention_bias": False}
NOT_PATCHED = {
    "layoutlm": (lambda: test_layoutlm.tiny(**NO_TEXT | NO_PAGE), "no tables: has_relative_attention_bias and has_spat"),
    "layoutlm v3": (lambda: test_layoutlm.tiny(**NO_TEXT), "transformers ignores the tables of LayoutLMv3 unless has_r"),
    "conformer": (lambda: test_conformer.wave_model("rotary"), "no table: position_embeddings_type is 'rotary'"),
    "sam": (lambda: test_sam.tiny(use_rel_pos=False), "it has no tables of relative positions"),
    "a forward": (sam_with_forwards, "its forward was replaced"),
    "beit": (lambda: test_beit.tiny(use_relative_position_bias=False), "it has no table of relative positions"),
    "deberta": (lambda: test_deberta.tiny(relative_attention=False), "it has no tables: relative_attention is False"),
    "neither": (lambda: test_deberta.tiny(pos_att_type=[]), r"it has no tables: pos_att_type is \[\]"),
    "buckets": (lambda: test_deberta.tiny(position_buckets=7), "buckets that relgraph does not have: num_buckets must"),
    "mixed heads": (lambda: test_deberta.tiny(test_deberta.V1, talking_head=True), "talking_head mixes the scores of its"),
    "a block": (lambda: test_t5.tiny("T5EncoderModel").encoder.block[0], "the whole stack of .* got T5Block: patch the"),
    "an attention": (lambda: second_t5()[1], r"the whole stack of itself \(T5Attention\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_PATCHED)
def test_what_is_not_patched(name):
    make, message = NOT_PATCHED[name]
    model = make()
    with pytest.raises(ValueError, match=message):
        ours.patch(model)
    assert ours.unpatch(model) == 0


def test_other_words_about_patching():
    with pytest.raises(ValueError, match="families must have at least one name, got none; .*all_families"):
        ours.patch(test_t5.tiny(), families=())
    nearest = (
        r"^unknown families 'wav2vec2'; the nearest are 'wav2vec2_bert', '\w+', '\w+'; \S+all_families\(\) has all"
    )
    with pytest.raises(ValueError, match=nearest):
        ours.patch(test_t5.tiny(), families=("t5", "wav2vec2"))
    with pytest.raises(TypeError, match="families must be strings, got int"):
        ours.patch(test_t5.tiny(), families=(5,))
    with pytest.raises(ValueError, match="family wav2vec2_bert is not among families"):
        ours.patch(test_conformer.bert(), families=("conformer",))
    adapter = test_conformer.bert(add_adapter=True, use_intermediate_ffn_before_adapter=False, num_adapter_layers=1)
    assert {one.why for one in ours.patch(adapter).unpatched} == {"it has no table: position_embeddings_type is None"}
    assert ours.patch(test_t5.tiny("UMT5EncoderModel").encoder.block[0]).patched


def within(model, path):
    """A model and an attention module within it."""
    return model, model.get_submodule(path)


def t5(name="SelfAttention"):
    return within(test_t5.tiny(), f"encoder.block.0.layer.0.{name}")


def second_t5():
    return within(test_t5.tiny(), "encoder.block.1.layer.0.SelfAttention")


def deberta(name=test_deberta.V2, **options):
    return within(test_deberta.tiny(name, **options), "deberta.encoder.layer.0.attention.self")


def conformer(kind="relative"):
    return within(test_conformer.bert(position_embeddings_type=kind), "encoder.layers.0.self_attn")


def parakeet():
    return within(test_conformer.parakeet(), "layers.0.self_attn")


def speecht5():
    return within(test_speech.speecht5().speecht5.encoder.wrapped_encoder, "layers.0.attention")


def vits():
    return within(test_speech.vits(), "encoder.layers.0.attention")


def layoutlm():
    return within(test_layoutlm.tiny().layoutlmv3, "encoder.layer.0.attention.self")


def mpnet():
    return within(test_mpnet.tiny(), "mpnet.encoder.layer.0.attention.attn")


def sam(**options):
    return within(test_sam.tiny(attention="sdpa", **options), "layers.0.attn")


LAYOUT, TABLE = "position_bias", torch.zeros(16, 24, dtype=torch.float64)
DEBERTA = {"rel_embeddings": TABLE, "attention_mask": torch.ones(1, 1, 1, 4)}
REFUSED = {
    "t5 bias": (t5, {"position_bias": PAIRS}, r"position_bias must be the table \[H, R\].*got shape \[1, 3, 4, 4\]"),
    "mpnet": (mpnet, {"position_bias": PAIRS}, r"position_bias must be the table \[H, R\].*got shape \[1, 3, 4, 4\]"),
    "speecht5": (speecht5, {"position_bias": PAIRS}, r"position_bias must be the table \[R, D\].*got shape \[1, 3, 4, "),
    "speecht5 keys": (speecht5, {"key_value_states": X}, "key_value_states must be None.*got Tensor"),
    "conformer": (conformer, {}, "relative_position_embeddings must be given to Wav2Vec2BertSelfAttention"),
    "parakeet": (parakeet, {}, "position_embeddings must be given to ParakeetEncoderAttention, got None"),
    "deberta": (deberta, DEBERTA | {"relative_pos": PAIRS}, "relative_pos must be None in a patched Dise.*got Tensor"),
    "v1": (lambda: deberta("Deberta"), DEBERTA | {"query_states": X}, "query_states must be None .* of DeBERTa v1, got"),
    "layoutlm": (layoutlm, {LAYOUT: PAIRS}, f"{LAYOUT} must come from a patched encoder in a patched Layout.*Tensor"),
}  # fmt: skip
ERRORS = (NotImplementedError, TypeError, ValueError)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_patched_module_refuses(name):
    make, given, message = REFUSED[name]
    model, module = make()
    ours.patch(model)
    with pytest.raises(ERRORS, match=message):
        module(**{"hidden_states": X} | given)


def test_what_other_patched_modules_refuse():
    model = mpnet()[0]
    ours.patch(model)
    with pytest.raises(NotImplementedError, match="position_ids must be None and num_buckets 32.*got Tensor and 32"):
        model.mpnet.encoder.compute_position_bias(X, torch.arange(4)[None])
    model = test_beit.tiny("Data2VecVision", use_shared_relative_position_bias=True)
    ours.patch(model)
    with pytest.raises(ValueError, match="dim_size must be 17"):
        model.encoder.relative_position_bias((4, 4), True, dim_size=20)
