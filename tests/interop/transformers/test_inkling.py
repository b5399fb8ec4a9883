"""Inkling and Inkling 2 against the code of transformers, which computes the softmax and convolutions in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import inkling  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

NAMES = ("Inkling", "Inkling2", "Inkling2Loop")


def tiny(name="Inkling", **options):
    """Windows of 5 keys, scores for 9 distances, and positions from 6 on that grow; Inkling 2 runs in float32 only."""
    given = {
        "vocab_size": 50, "unpadded_vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "head_dim": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "swa_num_attention_heads": 4, "swa_head_dim": 8,
        "swa_num_key_value_heads": 1, "sliding_window_size": 5, "d_rel": 3, "rel_extent": 9, "log_scaling_n_floor": 6,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "moe_intermediate_size": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "conv_kernel_size": 3, "pad_token_id": 0, "eos_token_id": None,
    }  # fmt: skip
    if name == "Inkling2Loop":
        given |= {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 2}
        given |= {"loop_num_passes": 2, "loop_gate_rank": 4}
    if name == "Inkling":
        given |= {"mlp_layer_types": ["dense"] * 3, "intermediate_size": 32, "logits_mup_width_multiplier": 1.0}
    config = getattr(transformers, f"{name}TextConfig")(**given | options)
    model = judge.randomized(getattr(transformers, f"{name}ForCausalLM")(config))
    return model.double() if name == "Inkling" else model


def inputs_of(length, left=3):
    """Ids, padded on the left; the first token counts no loss, as a padded position would predict it."""
    mask = judge.padded(2, length, left=left)
    ids = torch.randint(3, 50, (2, length))
    return {
        "input_ids": ids, "attention_mask": mask, "use_cache": False,
        "labels": ids.masked_fill(functional.pad(mask, (1, 0))[:, :length] * mask == 0, -100),
    }  # fmt: skip


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("length", [4, 5, 6, 9, 10, 23])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_all_gradients_on_both_sides_of_every_border(name, length, left):
    inputs = inputs_of(length, left) | {"output_hidden_states": True}
    report = judge.assert_parity(tiny(name), inputs, keep=inputs["attention_mask"], allowed=judge.SINGLE)
    assert len(report.patched) == 3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_documents_in_one_row(attention):
    """A mask that the labels do not say stays a mask of pairs."""
    model, inputs = tiny(attn_implementation=attention), inputs_of(12, left=0)
    del inputs["attention_mask"]
    two = inputs | {"position_ids": torch.arange(12).remainder(7).expand(2, -1)}
    assert (model(**two).logits - model(**inputs).logits).abs().max() > 1e-3
    judge.assert_parity(model, two, allowed=judge.SINGLE)


def test_which_masks_become_masks_of_keys():
    distance = torch.arange(6)[:, None] + 2 - torch.arange(8)
    near, keys = (distance >= 0) & (distance < 4), torch.ones(2, 1, 1, 8, dtype=torch.bool)
    keys[1, ..., :3] = False
    lowest = torch.finfo(torch.float32).min
    pairs = near & keys
    for mask in (pairs, torch.zeros(pairs.shape).masked_fill(~pairs, lowest)):
        assert torch.equal(inkling._of_keys(mask, 2, 4), keys)
        assert inkling._of_keys(mask[:1], 2, 4) is None
        assert inkling._of_keys(mask, 2, 5) is mask
        assert inkling._of_keys(mask, 1, 4) is mask
        assert inkling._of_keys(mask[:, :, :1], 2, 4).shape == (2, 1, 1, 8)
    softer = torch.zeros(pairs.shape).masked_fill(~pairs, -1.0)
    assert inkling._of_keys(softer, 2, 4) is softer


@pytest.mark.parametrize("name", NAMES)
def test_a_text_in_pieces(name):
    """Several queries at once after the keys of a cache, of which sliding layers keep four."""
    model, ids = tiny(name), torch.randint(3, 50, (2, 20))
    ours.patch(model)
    cache, logits = None, []
    for piece in ids.split([3, 7, 1, 9], 1):
        answer = model(input_ids=piece, cache=cache, use_cache=True)
        cache = answer["cache"]
        logits.append(answer.logits)
    torch.testing.assert_close(torch.cat(logits, 1), model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
