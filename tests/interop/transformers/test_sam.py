"""SAM and its kin against the code of transformers."""

from __future__ import annotations

import copy
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import sam  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

ATTENTION = ("eager", "sdpa")


def allowed_for(attention):
    """Its own softmax is in float32."""
    return judge.EXACT if attention == "sdpa" else judge.SINGLE


def tiny(name="Sam", attention="eager", **options):
    """Vision encoders: a grid of 8 × 8 cells in windows of 3 × 3, which pad it to 9 × 9, and one layer without them."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 32, "patch_size": 4}
    sizes |= {"window_size": 3, "attn_implementation": attention}
    if name == "VitDet":
        sizes |= {"window_block_indices": [0, 2], "use_relative_position_embeddings": True, "mlp_ratio": 2}
        kind = transformers.VitDetModel
    else:
        sizes |= {"global_attn_indexes": [1], "output_channels": 8, "mlp_dim": 32}
        file = {"Sam": "sam", "SamHQ": "sam_hq", "GotOcr2": "got_ocr2"}[name]
        modeling = import_module(f"transformers.models.{file}.modeling_{file}")
        kind = getattr(modeling, f"{name}VisionEncoder")
    config = getattr(transformers, f"{name}Config" if name == "VitDet" else f"{name}VisionConfig", None)
    if config is None:
        config = modeling.GotOcr2VisionConfig
    return judge.randomized(kind(config(**sizes | options))).double()


def image(batch=2, height=32, width=32):
    return {"pixel_values": torch.randn(batch, 3, height, width, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("Sam", "eager"),
        ("Sam", "sdpa"),
        ("SamHQ", "eager"),
        ("SamHQ", "sdpa"),
        ("GotOcr2", "eager"),
        ("VitDet", "eager"),
    ],
)
def test_outputs_and_all_gradients(name, attention):
    model = tiny(name, attention)
    allowed = judge.EXACT if name == "VitDet" else allowed_for(attention)
    report = judge.assert_parity(model, image() | {"output_hidden_states": True}, allowed=allowed)
    assert len(report.patched) == 3
    assert not report.unpatched


@pytest.mark.parametrize("name", ["Sam", "VitDet"])
def test_weights_on_request(name):
    judge.assert_parity(tiny(name), image() | {"output_attentions": True}, allowed=allowed_for("eager"))


def modules_of_all_kinds(height=8, width=8, dropout=0.0, bias=True):
    """One attention module of each class that this version of transformers has; most for a square."""
    config = SimpleNamespace(
        image_size=None, patch_size=4, hidden_size=24, num_attention_heads=3,
        attention_dropout=dropout, qkv_bias=bias, use_rel_pos=True, use_relative_position_embeddings=True,
    )  # fmt: skip
    for kind in sam.FAMILY.kinds:
        file, name = kind.split(".")
        found = getattr(import_module(f"transformers.models.{file}.modeling_{file}"), name)
        more = {"VitDetAttention": ((height, width),), "SegGptAttention": ()}.get(name, (0,))
        config.image_size = (4 * height, 4 * width) if name == "SegGptAttention" else 4 * height
        yield judge.randomized(found(config, *more)).double()


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 8), (8, 13), (1, 1), (3, 11)])
def test_every_class_at_sizes_of_its_tables_and_others(height, width):
    kinds = 0
    for module in modules_of_all_kinds():
        mine = copy.deepcopy(module)
        ours.patch(mine)
        states = torch.randn(2, height, width, 24, dtype=torch.float64)
        found, wanted = (x(states)[0] for x in (mine, module))
        kind = type(module).__name__
        allowed = judge.EXACT if "Sdpa" in kind or kind == "VitDetAttention" else judge.SINGLE
        judge.assert_same({kind: found}, {kind: wanted}, allowed)
        grad = torch.randn_like(wanted)
        for output in (found, wanted):
            output.backward(grad)
        gradients = [{n: p.grad for n, p in x.named_parameters()} for x in (mine, module)]
        judge.assert_same(*gradients, allowed)
        kinds += 1
    assert kinds == len(sam.FAMILY.kinds)


@pytest.mark.parametrize("attention", ATTENTION)
def test_drops_weights_where_theirs_does(attention):
    model = tiny(attention=attention, attention_dropout=0.5)
    ours.patch(model)
    module = model.train().layers[0].attn
    states = torch.randn(2, 3, 3, 24, dtype=torch.float64)
    first, second = (module(states)[0] for _ in range(2))
    assert torch.equal(first, second) == (attention == "sdpa")


def test_files(tmp_path):
    model = transformers.SamVisionModel(transformers.SamVisionConfig(**tiny().config.to_dict()))
    judge.assert_saved_and_loaded(judge.randomized(model).double(), image(), tmp_path)


def test_whole_model_leaves_the_mask_decoder():
    vision = {k: v for k, v in tiny().config.to_dict().items() if k != "model_type"}
    config = transformers.SamConfig(vision_config=vision)
    config.vision_config.output_channels = config.prompt_encoder_config.hidden_size
    config.prompt_encoder_config.image_size, config.prompt_encoder_config.image_embedding_size = 32, 8
    model = judge.randomized(transformers.SamModel(config), std=0.1)
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.rand(1, 1, 2, 2) * 32}
    report = judge.assert_parity(model, inputs, allowed=1e-4)
    assert {one.kind for one in report.unpatched} == {"SamAttention"}


def test_recording_outputs_before_and_after():
    """transformers before 5.0 leaves the forward of modules whose outputs it recorded behind."""
    model = tiny()
    inputs = image(1) | {"output_attentions": True}
    wanted = model(**inputs)
    ours.patch(model)
    model.layers[0].attn.get_decomposed_rel_pos = None  # theirs cannot run
    found = model(**inputs)
    torch.testing.assert_close(found.attentions[0], wanted.attentions[0], atol=1e-5, rtol=0)
    assert model.layers[0].attn(torch.randn(1, 3, 3, 24, dtype=torch.float64))[1] is None
    ours.unpatch(model)
    with pytest.raises(TypeError, match="NoneType"):
        model(**inputs)
