"""Generation with a cache: patched models and models with relations give the tokens and logits that they must.

Each class of a family whose forward takes a cache has a case here. A word that transformers renames and a forward of
ours does not read would make each step see only its own token.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

transformers = pytest.importorskip("transformers")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import by_name, words  # noqa: E402
from relgraph.interop.transformers.families import all_families  # noqa: E402
from tests.interop.transformers import (  # noqa: E402
    judge,
    test_conformer,
    test_inkling,
    test_relations,
    test_speech,
    test_t5,
)

STEPS = 10


class Case(NamedTuple):
    """A model, its inputs, and how often and with which caches it generates; ``run`` is for those that do not."""

    model: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]
    caches: tuple[str | None, ...] = (None,)
    beams: tuple[int, ...] = (1, 2)
    run: Callable[..., dict[str, torch.Tensor]] | None = None


def generated(model, inputs, beams=1, cache=None, **options):
    """The tokens of each step and their logits; an end would come at once in one and not in the other."""
    options = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "num_beams": beams, "do_sample": False} | options
    options |= {"output_logits": True, "return_dict_in_generate": True, "cache_implementation": cache}
    options = {"use_cache": True} | options
    found = model.generate(**inputs, **options)
    assert not options["use_cache"] or found["cache"].get_seq_length() >= STEPS - 1
    return {"tokens": found.sequences.double(), "logits": torch.stack(found.logits)}


def in_chunks(model, inputs, *_):
    """What a streaming encoder gives, eight frames at a time."""
    frames, caches = [], {}
    for chunk in inputs["input_features"].split(8, 1):
        output = model(input_features=chunk, use_cache=True, **caches)
        caches = {name: output[name] for name in ("cache", "padding_cache")}
        frames.append(output.last_hidden_state)
    return {"frames": torch.cat(frames, 1)}


def encoded(inputs, *names):
    return {name: inputs[name] for name in ("input_ids", "attention_mask", *names)}


def t5(name, **options):
    return lambda: test_t5.tiny(f"{name}ForConditionalGeneration", **options)


def text():
    return encoded(test_t5.inputs_of(20, 1))


def left_padded():
    return encoded(test_inkling.inputs_of(6))


def pop2piano():
    model = test_t5.tiny("Pop2PianoForConditionalGeneration", composer_vocab_size=1)
    model.generation_config.composer_to_feature_token = {"composer1": 7}
    return model


def pop2piano_inputs():
    return {"input_features": torch.randn(2, 12, 24, dtype=torch.float64), "pad_token_id": 0}


def pix2struct():
    text = {"vocab_size": 50, "hidden_size": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 3}
    vision = {"hidden_size": 24, "d_kv": 8, "d_ff": 32, "num_hidden_layers": 2, "num_attention_heads": 3}
    vision |= {"patch_embed_hidden_size": 12, "seq_len": 32}
    text |= {"dropout_rate": 0.0, "use_cache": True, "decoder_start_token_id": 0, "initializer_range": 0.02}
    config = transformers.Pix2StructConfig(text_config=text, vision_config=vision | {"dropout_rate": 0.0})
    return judge.randomized(transformers.Pix2StructForConditionalGeneration(config)).double()


def pix2struct_inputs():
    places = torch.cartesian_prod(torch.arange(1, 4), torch.arange(1, 5)).double().expand(2, -1, -1)
    patches = torch.cat([places, torch.randn(2, 12, 12, dtype=torch.float64)], -1)
    return {"flattened_patches": patches, "attention_mask": judge.padded(2, 12, right=3)}


def speecht5_inputs():
    return test_speech.wave_inputs(test_speech.waves(20))


def inkling(name):
    return Case(lambda: test_inkling.tiny(name), left_padded)  # a static cache fails in transformers itself


ANY = (None, "static")
CASES = {
    "t5.T5Attention": Case(t5("T5"), text, ANY),
    "mt5.MT5Attention": Case(t5("MT5"), text),
    "umt5.UMT5Attention": Case(t5("UMT5"), text, ANY),
    "switch_transformers.SwitchTransformersAttention": Case(t5("SwitchTransformers"), text),
    "pop2piano.Pop2PianoAttention": Case(pop2piano, pop2piano_inputs),
    "longt5.LongT5Attention": Case(t5("LongT5"), text),
    "pix2struct.Pix2StructTextAttention": Case(pix2struct, pix2struct_inputs),
    "udop.UdopAttention": Case(test_t5.udop, lambda: encoded(test_t5.udop_inputs(20, 1), "bbox", "pixel_values")),
    "speecht5.SpeechT5Attention": Case(test_speech.speecht5, speecht5_inputs),
    "nemotron_asr_streaming.NemotronAsrStreamingEncoderAttention": Case(
        lambda: test_conformer.parakeet("NemotronAsrStreaming", **test_conformer.STREAMING),
        lambda: {"input_features": torch.randn(2, 96, 8, dtype=torch.float64)},
        beams=(1,), run=in_chunks,
    ),
    "inkling.InklingAttention": inkling("Inkling"),
    **dict.fromkeys(("inkling2.Inkling2SlidingAttention", "inkling2.Inkling2FullAttention"), inkling("Inkling2")),
    **dict.fromkeys(
        ("inkling2_loop.Inkling2LoopSlidingAttention", "inkling2_loop.Inkling2LoopFullAttention"), inkling("Inkling2Loop"),
    ),
}  # fmt: skip
"""By the class of attention, named as in the families."""


def decoding():
    """The classes of families whose forward takes a cache."""
    found, root = {}, Path(transformers.__file__).parent / "models"
    for family in all_families().values():
        for kind, mixin in family.kinds.items():
            folder, name = kind.split(".")
            for file in sorted(root.glob(f"{folder}/modeling_{folder}*.py")):
                own = getattr(import_module(f"transformers.models.{folder}.{file.stem}"), name, None)
                takes = own is not None and "cache" in words.words_of(own.forward)
                if takes and "Attention" in name and words.unknown_to(mixin, own) is None:
                    found[kind] = own
    return found


DECODING = decoding()


def runs(chosen):
    """A case by its class, with each of its numbers of beams and its caches."""
    found = []
    for kind in chosen:
        case = CASES[kind]
        ways = [(beams, None) for beams in case.beams] + [(1, cache) for cache in case.caches if cache]
        found += [pytest.param(kind, *way, id=f"{kind}-{way[0]}-{way[1]}") for way in ways]
    return pytest.mark.parametrize(("kind", "beams", "cache"), found)


def test_every_class_that_decodes_has_a_case():
    assert DECODING.keys() == CASES.keys()


@runs(CASES)
def test_a_patched_model_generates_as_before(kind, beams, cache):
    case = CASES[kind]
    model, inputs, run = case.model(), case.inputs(), case.run or generated
    mine = copy.deepcopy(model)
    report = ours.patch(mine)
    assert DECODING[kind].__name__ in {one.kind for one in report.patched}
    judge.assert_same(run(mine, inputs, beams, cache), run(model, inputs, beams, cache), judge.SINGLE)


@runs(kind for kind in CASES if by_name.through_interface(DECODING[kind]))
def test_a_model_with_the_name_generates_as_before(kind, beams, cache):
    case = CASES[kind]
    model, inputs, run = case.model(), case.inputs(), case.run or generated
    mine = copy.deepcopy(model)
    ours.register()
    mine.set_attn_implementation("relgraph")
    assert ours.report(mine).patched
    judge.assert_same(run(mine, inputs, beams, cache), run(model, inputs, beams, cache), judge.SINGLE)


EAGER = {"experts_implementation": "eager"}  # others cannot compute in float64
SIZES = test_relations.GQA | {"pad_token_id": 0, "bos_token_id": None}
WINDOW = SIZES | {"sliding_window": 6, "head_dim": 4}
BART = {**test_relations.BART, "eos_token_id": None, "forced_eos_token_id": None}
RELATED = {
    "LlamaForCausalLM": SIZES,
    "Qwen3ForCausalLM": SIZES | {"head_dim": 8},
    "GPT2LMHeadModel": test_relations.FAMILIES["GPT2LMHeadModel"],
    "GPTNeoXForCausalLM": SIZES,
    "MistralForCausalLM": WINDOW,
    "Gemma2ForCausalLM": WINDOW | {"query_pre_attn_scalar": 4},
    "GptOssForCausalLM": WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 1} | EAGER,
    "BertLMHeadModel": test_relations.NO_DROPOUT | {"is_decoder": True, "eos_token_id": None},
    "BartForCausalLM": BART,
    "BartForConditionalGeneration": BART,
    "T5ForConditionalGeneration": test_relations.FAMILIES["T5ForConditionalGeneration"],
}
WAYS = ((1, None, False), (2, None, False), (1, "static", False), (1, None, True), (1, "static", True))


@pytest.mark.parametrize(("beams", "cache", "by_length"), WAYS)
@pytest.mark.parametrize("name", RELATED)
def test_a_model_with_relations_generates_with_a_cache_as_without(name, beams, cache, by_length):
    base = re.sub("For.*|LMHeadModel", "", name)
    config = getattr(transformers, f"{base}Config")(**RELATED[name])
    model = judge.randomized(getattr(transformers, name)(config)).double()
    ours.add_relations(model, rg.ClippedDistance(2) if by_length else test_relations.LABELER)
    test_relations.randomize(model)
    inputs = encoded(test_relations.inputs_of(name, left=3, right=0))
    options = {}
    if not by_length:
        length = test_relations.N + (0 if config.is_encoder_decoder else STEPS)
        ids = torch.randint(-1, 2, (2, length, length), generator=torch.Generator().manual_seed(1))
        options["relation_labels"] = rg.DenseLabels(ids, 2)
    wanted = generated(model, inputs, beams, use_cache=False, **options)
    found = generated(model, inputs, beams, cache, **options)
    judge.assert_same(found, wanted, judge.SINGLE)
    if not by_length:  # both rows have labels of their own
        options["relation_labels"] = rg.DenseLabels(ids.roll(1, 0), 2)
        other = generated(model, inputs, beams, cache, **options)
        assert (other["logits"] - found["logits"])[1].abs().max() > 1e-3
