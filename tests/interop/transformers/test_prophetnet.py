"""ProphetNet against the code of transformers, which computes the softmax in float32."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import common  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

needs_older = pytest.mark.skipif(common.version() >= (5, 24), reason="its words for a cache are not known")
pytestmark = needs_older


def tiny(kind="ForConditionalGeneration", **options):
    sizes = {}
    for half in ("encoder", "decoder"):
        sizes |= {f"num_{half}_layers": 2, f"num_{half}_attention_heads": 3, f"{half}_ffn_dim": 32}
    dropout = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    config = transformers.ProphetNetConfig(**{
        "vocab_size": 50, "hidden_size": 24, "max_position_embeddings": 64, "num_buckets": 8,
        "relative_max_distance": 12, "disable_ngram_loss": False, **sizes, **dropout, **options,
    })  # fmt: skip
    return judge.randomized(getattr(transformers, f"ProphetNet{kind}")(config)).double()


def inputs_of(source, target, right=0):
    """Masks are floats: theirs are NaN in float64 for integers."""
    return {
        "input_ids": torch.randint(3, 50, (2, source)), "decoder_input_ids": torch.randint(3, 50, (2, target)),
        "attention_mask": judge.padded(2, source, right=2).double(), "use_cache": False,
        "decoder_attention_mask": judge.padded(2, target, right=right).double(),
        "labels": torch.randint(3, 50, (2, target)),
    }  # fmt: skip


@pytest.mark.parametrize("target", [1, 2, 3, 9, 30])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_outputs_and_all_gradients(streams, target):
    given = inputs_of(6, target) | {"output_hidden_states": True, "output_attentions": True}
    report = judge.assert_parity(tiny(ngram=streams), given, allowed=judge.SINGLE)
    names = ["prophetnet.decoder", *(f"prophetnet.decoder.layers.{n}.self_attn" for n in range(2))]
    assert [one.name for one in report.patched] == names
    del given["decoder_attention_mask"], given["output_attentions"]
    judge.assert_parity(tiny(ngram=streams), given, allowed=judge.SINGLE)


def test_padded_targets():
    model, given = tiny(), inputs_of(6, 9, right=3)
    judge.assert_parity(model, given, keep=given["decoder_attention_mask"], allowed=judge.SINGLE)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation(beams):
    model, inputs = tiny(), inputs_of(6, 1)
    mine = copy.deepcopy(model)
    ours.patch(mine)
    given = {key: inputs[key] for key in ("input_ids", "attention_mask")} | {"max_new_tokens": 12, "num_beams": beams}
    given |= {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "min_new_tokens": 12}
    found, wanted = mine.generate(**given), model.generate(**given)
    assert torch.equal(found.sequences, wanted.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits), atol=1e-5, rtol=1e-5)


def test_what_it_refuses():
    model = tiny()
    module = model.prophetnet.decoder.layers[0].self_attn
    with pytest.raises(ValueError, match="each query computes its own biases of the buckets"):
        ours.convert(module)
    ours.patch(model)
    with pytest.raises(TypeError, match="attention_mask must come from a patched decoder in a patched Pro.*got Tensor"):
        module(torch.zeros(1, 9, 24, dtype=torch.float64), attention_mask=torch.zeros(1, 3, 3, 3))
