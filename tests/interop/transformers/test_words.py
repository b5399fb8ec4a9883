"""A word that transformers renames: modules that take it are left alone and named, and no answer changes in silence."""

from __future__ import annotations

import copy
import functools
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import by_name, words  # noqa: E402
from relgraph.interop.transformers.families import all_families  # noqa: E402
from tests.interop.transformers import (  # noqa: E402
    judge,
    test_deberta,
    test_layoutlm,
    test_relations,
    test_t5,
)

NEW = "key_value_store"


def rename(monkeypatch, kind, method="forward", old=words.CACHE):
    """Let a method of a class call one of its arguments by a new word, as a later transformers may."""
    own = getattr(kind, method)
    signature = inspect.signature(own)
    word = next(name for name in signature.parameters if name in old)

    @functools.wraps(own)
    def renamed(self, *args, **given):
        if NEW in given:
            given[word] = given.pop(NEW)
        return own(self, *args, **given)

    parameters = [one.replace(name=NEW) if one.name == word else one for one in signature.parameters.values()]
    renamed.__signature__ = signature.replace(parameters=parameters)
    monkeypatch.setattr(kind, method, renamed)


def kinds_of(model):
    """The classes of the modules of a model, by name."""
    return {type(module).__name__: type(module) for module in model.modules()}


@pytest.mark.parametrize(("make", "kind", "method", "old"), [
    (test_t5.tiny, "T5Attention", "forward", words.CACHE),
    (test_t5.udop, "UdopAttention", "forward", words.CACHE),  # its biases stay too
    (test_layoutlm.tiny, "LayoutLMv3SelfAttention", "forward", ("position_bias", "rel_pos")),  # its encoder stays too
    (test_deberta.tiny, "DisentangledSelfAttention", "forward", ("rel_embeddings",)),
    (test_deberta.tiny, "DebertaV2Encoder", "get_rel_pos", ("relative_pos",)),
])  # fmt: skip
def test_a_class_with_a_new_word_is_left_alone(monkeypatch, make, kind, method, old):
    model = make()
    rename(monkeypatch, kinds_of(model)[kind], method, old)
    states, classes = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=rf"{kind}\.{method} takes {NEW}, which relgraph does not know"):
        ours.patch(model)
    assert [type(module) for module in model.modules()] == classes
    judge.assert_same(model.state_dict(), states, 0.0)


def test_the_other_classes_of_a_model_are_patched(monkeypatch):
    model = test_t5.longt5()
    inputs = {name: test_t5.inputs_of(20, 1)[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 6, "min_new_tokens": 6}
    wanted = model.generate(**inputs, **options)
    rename(monkeypatch, kinds_of(model)["LongT5Attention"])
    report = ours.patch(model)
    assert {one.kind for one in report.patched} == {"LongT5LocalAttention"}
    assert {(one.kind, one.why) for one in report.unpatched} == {
        ("LongT5Attention", f"LongT5Attention.forward takes {NEW}, which relgraph does not know")
    }
    assert torch.equal(model.generate(**inputs, **options), wanted)


def test_a_class_of_the_user_is_judged_by_that_of_transformers(monkeypatch):
    model = test_t5.tiny("T5EncoderModel")
    for module in model.modules():
        if type(module).__name__ == "T5Attention":
            module.__class__ = test_t5.Plain
    assert not ours.patch(model).unpatched
    ours.unpatch(model)
    rename(monkeypatch, kinds_of(test_t5.tiny("T5EncoderModel"))["T5Attention"])
    with pytest.raises(ValueError, match=rf"\(Plain\): T5Attention\.forward takes {NEW}, which relgraph does not know"):
        ours.patch(model)


@pytest.mark.parametrize(("name", "kind"), [
    ("LlamaForCausalLM", "LlamaAttention"), ("GPT2LMHeadModel", "GPT2Attention"),
    ("BertForMaskedLM", "BertSelfAttention"),
])  # fmt: skip
def test_an_attention_with_a_new_word_gets_no_relation(monkeypatch, name, kind):
    model = test_relations.made(name)
    rename(monkeypatch, kinds_of(model)[kind])
    _refuses_relations(model, rf"{kind}\.forward takes {NEW}, which relgraph does not know")


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "LlamaModel"])
def test_a_model_with_a_cache_by_a_new_word_gets_no_relations(monkeypatch, kind):
    model = test_relations.made("LlamaForCausalLM")
    rename(monkeypatch, kinds_of(model)[kind])
    _refuses_relations(
        model,
        rf"must take its cache as cache, got {kind} with input_ids, .*{NEW}.*within",
    )


class OwnForward(transformers.LlamaForCausalLM):
    def forward(self, input_ids, store=None, **given):
        return super().forward(input_ids=input_ids, cache=store, **given)


def test_a_model_of_the_user_is_judged_by_that_of_transformers(monkeypatch):
    config = test_relations.made("LlamaForCausalLM").config
    assert ours.add_relations(OwnForward(copy.deepcopy(config)), test_relations.LABELER).patched
    rename(monkeypatch, transformers.LlamaForCausalLM)
    message = f"cache as cache, got OwnForward with input_ids, .*{NEW}"
    _refuses_relations(OwnForward(copy.deepcopy(config)), message)


def handing(self, hidden_states, attention_mask=None, **kwargs):
    attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    return attention(self, hidden_states, hidden_states, hidden_states, attention_mask, pair_bias=self.bias, **kwargs)


def test_a_class_that_hands_on_a_new_word(monkeypatch):
    model = test_relations.made("LlamaForCausalLM")
    monkeypatch.setattr(kinds_of(model)["LlamaAttention"], "forward", handing)
    message = r"LlamaAttention\.forward hands on pair_bias, which relgraph does not know"
    _refuses_relations(model, message)
    ours.register()
    with pytest.raises(NotImplementedError, match=f"must not be 'relgraph' for LlamaForCausalLM: {message}"):
        model.set_attn_implementation("relgraph")


def _refuses_relations(model, message):
    before = [type(module) for module in model.modules()]
    with pytest.raises(NotImplementedError, match=message):
        ours.add_relations(model, test_relations.LABELER)
    assert [type(module) for module in model.modules()] == before
    assert model.config._attn_implementation != "relgraph"


def modules_of_transformers():
    root = Path(transformers.__file__).parent / "models"
    for file in sorted(root.glob("*/modeling_*.py")):
        try:
            yield file.parent.name, import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        except ImportError:  # some need another package
            continue


@pytest.mark.slow
def test_all_words_of_transformers_are_known():
    """Of classes that look up their attention, all but those over another sequence, and a few that nobody labels."""
    mixins = {kind: mixin for family in all_families().values() for kind, mixin in family.kinds.items()}
    new = set()
    for folder, file in modules_of_transformers():
        for name, kind in vars(file).items():
            if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__ == file.__name__:
                mixin = mixins.get(f"{folder}.{name}")
                reasons = [None if mixin is None else words.unknown_to(mixin, kind)]
                if by_name.through_interface(kind):
                    reasons += [words.unserved(kind), None if "Cross" in name else words.unlabeled(kind)]
                new |= {name for why in reasons if why is not None}
    assert new == {
        "ProphetNetNgramSelfAttention", "VJEPA2RopeAttention", "Inkling2BlockAttentionResidual",
        "Inkling2LoopBlockAttentionResidual", "Inkling2LoopMessageAttentionResidual",
    }  # fmt: skip
