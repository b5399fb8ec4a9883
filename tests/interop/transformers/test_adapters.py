"""LoRA adapters of peft train in a patched model as they do in the model."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft", reason="adapters come from peft: the extra relgraph[test]")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge, test_bert, test_conformer, test_deberta, test_mpnet, test_t5  # noqa: E402

# peft asks for it by its old name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def t5(name="T5"):
    return test_t5.tiny(f"{name}ForConditionalGeneration"), test_t5.inputs_of(20, 17), ["q", "v"]


def umt5():
    return t5("UMT5")


def deberta():
    return test_deberta.tiny(), test_deberta.inputs_of(20), ["query_proj", "key_proj", "value_proj"]


def deberta_v1():
    return test_deberta.tiny(test_deberta.V1), test_deberta.inputs_of(20), ["in_proj", "pos_proj"]


def mpnet():
    return test_mpnet.tiny(), test_mpnet.inputs_of(20), ["q", "k", "v"]


def bert():
    return test_bert.tiny("Bert", test_bert.KEY_QUERY), test_bert.inputs_of(20), ["query", "value"]


LANGUAGE = [t5, umt5, deberta, deberta_v1, mpnet, pytest.param(bert, marks=test_bert.needs_four)]


def speech():
    model = test_conformer.bert("Wav2Vec2BertForCTC", vocab_size=30)
    inputs = test_conformer.features(20) | {"labels": torch.randint(1, 30, (2, 3))}
    return model, inputs, ["linear_q", "linear_v"]


def config_of(targets, **options):
    """Adapters whose second matrix is not zero, as it is by default: both have gradients from the first step on."""
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False, **options)


def adapted(model, config):
    """The model with adapters, equal ones at each call."""
    torch.manual_seed(1)
    return peft.get_peft_model(copy.deepcopy(model), config).double().eval()


def both_ways(model, config):
    """Patched before it gets adapters, and after."""
    before = copy.deepcopy(model)
    ours.patch(before)
    after = adapted(model, config)
    ours.patch(after)
    return {"before": adapted(before, config), "after": after}


def gradients_and_losses(model, inputs):
    """All gradients of one step, and the losses of ten."""
    model.zero_grad()
    model(**inputs).loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return gradients, judge.losses(model, inputs)


@pytest.mark.parametrize("make", [*LANGUAGE, speech])
def test_training_gives_the_same_gradients_and_losses(make):
    model, inputs, targets = make()
    theirs = adapted(model, config_of(targets))
    wanted, losses = gradients_and_losses(theirs, inputs)
    assert wanted and all("lora_" in name for name in wanted)
    assert losses[0] != losses[-1]
    for when, mine in both_ways(model, config_of(targets)).items():
        assert list(mine.state_dict()) == list(adapted(model, config_of(targets)).state_dict()), when
        gradients, found = gradients_and_losses(mine, inputs)
        judge.assert_same(gradients, wanted, 1e-6)
        assert (found - losses).abs().max() <= 1e-6, when


@pytest.mark.parametrize("make", LANGUAGE)
def test_merged_adapters_answer_as_unmerged_ones(make):
    model, inputs, targets = make()
    counts = inputs["attention_mask"].bool()

    def logits(model):
        """Where they mean something: those of a decoder all do."""
        found = model(**inputs).logits
        return found[counts] if found.shape[:2] == counts.shape else found

    wanted, plain = logits(adapted(model, config_of(targets))), logits(model)
    assert (wanted - plain).abs().max() > 1e-2
    for when, mine in both_ways(model, config_of(targets)).items():
        torch.testing.assert_close(logits(mine), wanted, atol=1e-5, rtol=1e-5)
        with mine.disable_adapter():
            torch.testing.assert_close(logits(mine), plain, atol=1e-5, rtol=1e-5)
        merged = mine.merge_and_unload()
        torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
        assert list(merged.state_dict()) == list(model.state_dict()), when
        assert ours.unpatch(merged) > 0
        torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)


def test_adapters_are_saved_and_loaded(tmp_path):
    model, inputs, targets = t5()
    mine = both_ways(model, config_of(targets))["before"]
    wanted = mine(**inputs).logits
    mine.save_pretrained(tmp_path)
    back = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double().eval()
    torch.testing.assert_close(back(**inputs).logits, wanted, atol=1e-5, rtol=1e-5)
    ours.patch(back)
    torch.testing.assert_close(back(**inputs).logits, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "table"),
    [
        (t5, "relative_attention_bias"),
        (umt5, "relative_attention_bias"),
        (mpnet, "relative_attention_bias"),
        (speech, "distance_embedding"),
        pytest.param(bert, "distance_embedding", marks=test_bert.needs_four),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_tables_have_adapters_too(make, table, whole):
    """Of their own rank, or as a copy that is trained whole."""
    model, inputs, targets = make()
    config = config_of(targets, modules_to_save=[table]) if whole else config_of([table])
    wanted, losses = gradients_and_losses(adapted(model, config), inputs)
    assert any(table in name for name in wanted)
    for mine in both_ways(model, config).values():
        gradients, found = gradients_and_losses(mine, inputs)
        judge.assert_same(gradients, wanted, 1e-6)
        assert (found - losses).abs().max() <= 1e-6


def test_convert_refuses_adapters_that_are_not_merged():
    model, _, targets = t5()
    mine = both_ways(model, config_of(targets))["after"]
    attention = mine.get_base_model().encoder.block[0].layer[0].SelfAttention
    with pytest.raises(ValueError, match=r"module must have no adapters, got some in q, v; merge_and_unload\(\) first"):
        ours.convert(attention)
    merged = mine.merge_and_unload().encoder.block[0].layer[0].SelfAttention
    layer, labeler = ours.convert(merged)
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    torch.testing.assert_close(layer(x, labels=labeler(9)), merged(x)[0])
