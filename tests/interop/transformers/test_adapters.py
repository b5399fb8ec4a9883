"""LoRA adapters of peft train in a patched model as they do in the model."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft", reason="adapters come from peft: the extra relgraph[test]")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402
from tests.interop.transformers.test_every_family import CASES  # noqa: E402

# peft asks for it by its old name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


TARGETS = {
    "t5": ["q", "v"], "umt5": ["q", "v"], "deberta v2": ["query_proj", "key_proj", "value_proj"],
    "deberta v1": ["in_proj", "pos_proj"], "mpnet": ["q", "k", "v"],
    "conformer": ["linear_q", "linear_v"],
}  # fmt: skip
TABLES = dict.fromkeys(("t5", "umt5", "mpnet"), "relative_attention_bias")
TABLES["conformer"] = "distance_embedding"


def made(name):
    case = CASES[name]
    return case.model(), case.inputs(), TARGETS[name]


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
    """All gradients of one step, and the losses of four."""
    model.zero_grad()
    model(**inputs).loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return gradients, judge.losses(model, inputs)


@pytest.mark.parametrize("name", TARGETS)
def test_training_gives_the_same_gradients_and_losses(name):
    """Tables have adapters of their own rank, or for every second family copies that are trained whole."""
    model, inputs, targets = made(name)
    tables, whole = [TABLES[name]] if name in TABLES else [], name in ("umt5", "conformer")
    config = config_of(targets, modules_to_save=tables) if whole else config_of(targets + tables)
    theirs = adapted(model, config)
    names = list(theirs.state_dict())
    wanted, losses = gradients_and_losses(theirs, inputs)
    assert any("lora_" in one for one in wanted)
    assert not tables or any(tables[0] in one for one in wanted)
    assert losses[0] != losses[-1]
    for when, mine in both_ways(model, config).items():
        assert list(mine.state_dict()) == names, when
        gradients, found = gradients_and_losses(mine, inputs)
        judge.assert_same(gradients, wanted, 1e-6)
        assert (found - losses).abs().max() <= 1e-6, when


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "conformer"])
def test_merged_adapters_answer_as_unmerged_ones(name):
    model, inputs, targets = made(name)
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
    model, inputs, targets = made("t5")
    mine = both_ways(model, config_of(targets))["before"]
    wanted = mine(**inputs).logits
    mine.save_pretrained(tmp_path)
    back = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double().eval()
    torch.testing.assert_close(back(**inputs).logits, wanted, atol=1e-5, rtol=1e-5)
    ours.patch(back)
    torch.testing.assert_close(back(**inputs).logits, wanted, atol=1e-6, rtol=1e-6)
