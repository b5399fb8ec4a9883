"""CPM-Ant against the code of transformers."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402


def tiny(kind="ForCausalLM"):
    """Four prompts before the tokens, in a segment of their own, as padding is."""
    config = transformers.CpmAntConfig(
        vocab_size=50, hidden_size=24, num_attention_heads=3, dim_head=8, dim_ff=32, num_hidden_layers=2,
        prompt_length=4, segment_types=5, position_bias_num_buckets=16, position_bias_max_distance=20,
    )  # fmt: skip
    return judge.randomized(getattr(transformers, f"CpmAnt{kind}")(config)).double()


def inputs_of(length, left=0):
    """One row padded on the left, which the model sees by the ids."""
    ids = torch.randint(3, 50, (2, length))
    ids[1, :left] = 0
    return {"input_ids": ids, "labels": ids, "use_cache": False}


@pytest.mark.parametrize(("length", "left"), [(1, 0), (2, 1), (7, 3), (40, 0)])
def test_outputs_and_all_gradients(length, left):
    report = judge.assert_parity(tiny(), inputs_of(length, left) | {"output_hidden_states": True})
    assert len(report.patched) == 3
    assert not report.unpatched


def test_what_it_refuses():
    model = tiny()
    module = model.cpmant.encoder.layers[0].self_att.self_attention
    with pytest.raises(ValueError, match=r"must have the whole stack of .*CpmAntAttention"):
        ours.patch(model.cpmant.encoder)
    ours.patch(model)
    x, pairs = torch.zeros(1, 4, 24, dtype=torch.float64), torch.zeros(1, 3, 4, 4)
    with pytest.raises(TypeError, match="position_bias must come from a patched encoder in a patched Cpm.*got Tensor"):
        module(x, x, torch.ones(1, 4, 4).bool(), pairs)
