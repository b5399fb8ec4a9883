"""XLNet against the code of transformers."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

SIZES = {"vocab_size": 50, "d_model": 24, "n_head": 3, "d_inner": 32}


def tiny(kind="Model", **options):
    config = transformers.XLNetConfig(**SIZES | {"n_layer": 2, "dropout": 0.0} | options)
    return judge.randomized(getattr(transformers, f"XLNet{kind}")(config)).double()


def in_double(model):
    """Sines in float64, without which their second stream fails in float64."""
    for one in model.modules():
        if hasattr(one, "relative_positional_encoding"):
            made = one.relative_positional_encoding
            one.relative_positional_encoding = lambda *args, made=made, **given: made(*args, **given).double()
    return model


def inputs_of(length, left=0, right=0):
    """Three segments, one row padded on the left and one on the right."""
    ids = torch.randint(3, 50, (2, length))
    mask, kinds = judge.padded(2, length, left, right), torch.randint(0, 3, (2, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


@pytest.mark.parametrize("length", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("options", [{}, {"clamp_len": 3}, {"bi_data": True}], ids=str)
def test_xlnet_outputs_and_all_gradients(options, length):
    """Padded positions too: later segments see their states."""
    given = inputs_of(length, length // 3, length // 4) | {"output_hidden_states": True, "output_attentions": True}
    report = judge.assert_parity(tiny(**options), given)
    assert [one.name for one in report.patched] == ["layer.0.rel_attn", "layer.1.rel_attn"]
    assert not report.unpatched


@pytest.mark.parametrize("same", [False, True])
def test_xlnet_that_is_causal(same):
    """Its sines end at the query itself. A batch of masks fails in their code."""
    given = inputs_of(11)
    del given["attention_mask"]
    judge.assert_parity(tiny(attn_type="uni", same_length=same), given | {"output_hidden_states": True})


def test_xlnet_in_any_order_with_both_streams():
    """The first token of the order sees nothing in the second stream: their weights are then equal for all keys."""
    model, given = in_double(tiny("LMHeadModel")), inputs_of(7)
    order = torch.stack([torch.randperm(7) for _ in range(2)])
    given["perm_mask"] = (order[:, :, None] <= order[:, None]).double()
    given["target_mapping"] = torch.nn.functional.one_hot(order.argsort(1)[:, [0, 3, 6]], 7).double()
    judge.assert_parity(model, given | {"labels": torch.randint(0, 50, (2, 3)), "output_hidden_states": True})
    mine = copy.deepcopy(model)
    ours.patch(mine)
    for two, wanted in zip(*(one(**given, output_attentions=True).attentions for one in (mine, model)), strict=True):
        torch.testing.assert_close(two, wanted, atol=1e-12, rtol=0)
        assert torch.allclose(two[1][0, :, order[0].argmin()], torch.tensor(1 / 7, dtype=torch.float64))


def test_xlnet_remembers_states():
    model = tiny(mem_len=6)
    mine = copy.deepcopy(model)
    ours.patch(mine)
    pieces = [inputs_of(5, left=1, right=2) for _ in range(4)]

    def last(model):
        memory = None
        for given in pieces:
            answer = model(**given, mems=memory, use_mems=True)
            memory = answer.mems
        return answer.last_hidden_state

    torch.testing.assert_close(last(mine), last(model), atol=1e-12, rtol=0)


def test_xlnet_generates():
    model = tiny("LMHeadModel").float()
    mine = copy.deepcopy(model)
    ours.patch(mine)
    given = {"input_ids": torch.randint(3, 50, (2, 5)), "max_new_tokens": 6, "do_sample": False, "use_mems": True}
    given |= {"output_logits": True, "return_dict_in_generate": True}
    found, wanted = mine.generate(**given), model.generate(**given)
    assert torch.equal(found.sequences, wanted.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits), atol=1e-5, rtol=1e-5)
