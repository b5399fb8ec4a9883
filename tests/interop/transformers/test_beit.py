"""BEiT and Data2Vec for images against the code of transformers."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

NAMES, ATTENTION = ("Beit", "Data2VecVision"), ("eager", "sdpa")


def allowed_for(name, attention="eager"):
    """The softmax of BEiT's own code is in float32."""
    return judge.SINGLE if name == "Beit" and attention == "eager" else judge.EXACT


def tiny(name="Beit", attention="eager", kind="Model", **options):
    """Tables for 4 × 4 patches."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    sizes |= {"image_size": 16, "patch_size": 4, "drop_path_rate": 0.0, "use_relative_position_bias": True}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": attention}
    config = getattr(transformers, f"{name}Config")(**sizes | options)
    return judge.randomized(getattr(transformers, f"{name}{kind}")(config)).double()


def image(batch=2, height=16, width=16):
    return {"pixel_values": torch.randn(batch, 3, height, width, dtype=torch.float64)}


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("own", "shared"), [(True, False), (False, True), (True, True)])
def test_outputs_and_all_gradients(name, attention, own, shared):
    model = tiny(name, attention, use_relative_position_bias=own, use_shared_relative_position_bias=shared)
    inputs = image() | {"output_hidden_states": True}
    report = judge.assert_parity(model, inputs, allowed=allowed_for(name, attention))
    assert len(report.patched) == 2 + 2 * own + shared
    assert not report.unpatched


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("height", "width", "shared"), [(8, 8, False), (24, 24, True), (12, 28, True), (16, 8, False)])
def test_images_of_another_size(name, shared, height, width):
    model = tiny(name, use_shared_relative_position_bias=shared)
    inputs = image(1, height, width) | {"interpolate_pos_encoding": True}
    judge.assert_parity(model, inputs, allowed=allowed_for(name))


@pytest.mark.parametrize("name", NAMES)
def test_tables_that_are_not_square(name):
    model = tiny(name)
    kind = next(type(x) for x in model.modules() if type(x).__name__.endswith("PositionBias"))
    config = model.config
    config.image_size = (12, 20)
    bias = kind(config) if name == "Beit" else kind(config, window_size=(3, 5))
    judge.randomized(bias).double()
    for size in ((3, 5), (4, 4)):
        wanted = bias(size)
        ours.patch(bias)
        found = bias(size)
        ids = found.labels.to_dense()[0]
        ours.unpatch(bias)
        torch.testing.assert_close(found.table[:, ids[0]][None], wanted)


@pytest.mark.parametrize("name", NAMES)
def test_one_layer_alone_takes_a_bias_of_all_pairs(name):
    model, inputs = tiny(name, use_shared_relative_position_bias=True), image()
    wanted = judge.everything(model, inputs)
    ours.patch(model.layers[0] if name == "Beit" else model.encoder.layer[0])
    judge.assert_same(judge.everything(model, inputs), wanted, allowed_for(name))


@pytest.mark.parametrize("own", [False, True])
def test_padding(own):
    model = tiny(use_relative_position_bias=own, use_shared_relative_position_bias=True)
    mask = judge.padded(2, 17, right=4)
    judge.assert_parity(model, image() | {"attention_mask": mask}, keep=mask, allowed=judge.SINGLE)


def test_makes_no_bias_of_all_pairs():
    model = tiny(use_shared_relative_position_bias=True)
    ours.patch(model)
    seen = []
    for module in model.modules():
        if type(module).__name__.endswith("RelativePositionBias"):
            module.register_forward_hook(lambda *args: seen.append(args[-1]))
    model(**image())
    assert [bias.table.shape for bias in seen] == [(3, 7 * 7 + 3)] * len(seen)
    assert len({id(bias.labels) for bias in seen}) == 1
    assert len(seen) >= 3
