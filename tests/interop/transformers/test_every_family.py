"""What holds for every family: weights on request, training, files, checkpointing, compilation, no tensors of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import (  # noqa: E402
    judge,
    test_beit,
    test_conformer,
    test_deberta,
    test_inkling,
    test_layoutlm,
    test_mpnet,
    test_sam,
    test_speech,
    test_t5,
    test_xlnet,
)

# those of transformers about its own calls
pytestmark = [
    pytest.mark.filterwarnings("ignore:The `device` argument is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),
]


class Case(NamedTuple):
    """A model with a loss, its inputs, and allowed differences: of values, of losses in training, after loading."""

    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict]
    allowed: float = judge.EXACT
    training: float = 1e-6
    loaded: float = judge.EXACT


def image_case(model, size, allowed):
    labels = torch.tensor([0, 1])
    return Case(model, lambda: test_beit.image(height=size, width=size) | {"labels": labels}, allowed, 1e-5)


def beit(name):
    options = {"kind": "ForImageClassification", "use_shared_relative_position_bias": True}
    return image_case(lambda: test_beit.tiny(name, **options), 16, test_beit.allowed_for(name))


CASES = {
    "t5": Case(test_t5.tiny, lambda: test_t5.inputs_of(20, 17), judge.EXACT),
    "umt5": Case(lambda: test_t5.tiny("UMT5ForConditionalGeneration"), lambda: test_t5.inputs_of(20, 17), judge.EXACT),
    "udop": Case(test_t5.udop, lambda: test_t5.udop_inputs(20, 9), judge.EXACT),
    "deberta v2": Case(test_deberta.tiny, lambda: test_deberta.inputs_of(20), training=1e-9),
    "deberta v1": Case(
        lambda: test_deberta.tiny(test_deberta.V1), lambda: test_deberta.inputs_of(20), judge.SINGLE, 1e-5
    ),
    "sew-d": Case(
        test_deberta.sew_d,
        lambda: test_deberta.sew_d_inputs() | {"labels": torch.randint(2, 20, (2, 7))},
    ),
    "mpnet": Case(test_mpnet.tiny, lambda: test_mpnet.inputs_of(20), training=1e-9),
    "layoutlm": Case(test_layoutlm.tiny, lambda: test_layoutlm.labeled(20), training=1e-9),
    "conformer": Case(test_conformer.ctc, test_conformer.ctc_inputs),
    "conformer with sines": Case(
        lambda: test_conformer.ctc(position_embeddings_type="relative"), test_conformer.ctc_inputs
    ),
    "beit": beit("Beit"),
    "data2vec": beit("Data2VecVision"),
    "speecht5": Case(
        test_speech.speecht5,
        lambda: test_speech.wave_inputs(test_speech.waves(20)) | {"labels": torch.randint(2, 20, (2, 7))},
    ),
    "wavlm": Case(
        lambda: test_speech.wavlm("WavLMForCTC"),
        lambda: test_speech.wave_inputs(test_speech.waves(30)) | {"labels": torch.randint(2, 20, (2, 7))},
    ),
    "xlnet": Case(
        lambda: test_xlnet.tiny("ForSequenceClassification"),
        lambda: test_xlnet.inputs_of(20) | {"labels": torch.tensor([0, 1])},
    ),
}
CASES |= {
    name: Case(
        lambda name=name: test_inkling.tiny(name, attn_implementation="eager"),
        lambda: test_inkling.inputs_of(20, left=0),  # a row that sees nothing is NaN in their eager float64
        judge.SINGLE,
        1e-5,
        judge.SINGLE,  # loaded with sdpa, whose masks are others
    )
    for name in test_inkling.NAMES
}
PARAKEET = Case(test_conformer.parakeet_ctc, test_conformer.parakeet_inputs, judge.SINGLE, 1e-5)
FAMILIES = [
    *(pytest.param(case, id=name) for name, case in CASES.items()),
    pytest.param(PARAKEET, id="parakeet"),
]


@pytest.mark.parametrize("case", FAMILIES)
def test_weights_on_request(case):
    inputs = case.inputs() | {"output_attentions": True}
    if "attention_mask" in inputs and "input_values" not in inputs:
        inputs["attention_mask"][:] = 1  # weights of padded queries differ
    judge.assert_parity(case.model(), inputs, allowed=case.allowed)


@pytest.mark.parametrize("case", FAMILIES)
def test_training_and_files(case, tmp_path):
    judge.assert_same_training(case.model(), case.inputs(), case.training)
    judge.assert_saved_and_loaded(case.model(), case.inputs(), tmp_path, case.loaded)


@pytest.mark.parametrize("case", [*FAMILIES, pytest.param(Case(test_sam.tiny, test_sam.image), id="sam")])
def test_gradient_checkpointing(case):
    model, inputs = case.model(), case.inputs()
    if not model.supports_gradient_checkpointing:
        pytest.skip("transformers does not support it for these models")
    ours.patch(model)
    wanted = judge.everything(model, inputs, training=True)
    judge.checkpoint(model)
    judge.assert_same(judge.everything(model, inputs, training=True), wanted, judge.EXACT)


def ids(length):
    return {"input_ids": torch.randint(3, 50, (2, length))}


def frames(length):
    return {"hidden_states": torch.randn(2, length, 24, dtype=torch.float64)}


COMPILED = {
    "t5": lambda: (test_t5.tiny("T5EncoderModel"), [ids(9), ids(14)]),
    "deberta": lambda: (test_deberta.tiny(kind="Model", num_hidden_layers=1), [ids(14)]),
    "mpnet": lambda: (test_mpnet.tiny("Model", num_hidden_layers=1), [ids(14)]),
    "conformer": lambda: (test_conformer.bert().encoder, [frames(9), frames(14)]),
    "conformer with sines": lambda: (test_conformer.bert(position_embeddings_type="relative").encoder, [frames(9)]),
    "beit": lambda: (test_beit.tiny(use_shared_relative_position_bias=True), [test_beit.image(1)]),
    "data2vec": lambda: (test_beit.tiny("Data2VecVision"), [test_beit.image(1)]),
    "sam": lambda: (test_sam.tiny(attention="sdpa"), [test_sam.image(1)]),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers where a graph breaks between modules
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name):
    model, several = COMPILED[name]()
    ours.patch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for inputs in several:
        torch.testing.assert_close(compiled(**inputs)[0], model(**inputs)[0], atol=1e-5, rtol=1e-5)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("model", "inputs", "layer"),
    [
        (lambda: test_t5.tiny("T5EncoderModel"), lambda: ids(300), "block.1.layer.0.SelfAttention"),
        (lambda: test_deberta.tiny(kind="Model"), lambda: ids(300), "layer.1.attention.self"),
        (lambda: test_deberta.tiny(test_deberta.V1, "Model"), lambda: ids(300), "layer.1.attention.self"),
        (lambda: test_mpnet.tiny("Model", max_position_embeddings=310), lambda: ids(300), "layer.1.attention.attn"),
        (test_speech.wavlm, lambda: test_speech.wave_inputs(test_speech.waves(200)), "layers.1.attention"),
    ],
    ids=["t5", "deberta v2", "deberta v1", "mpnet", "wavlm"],
)
def test_a_layer_gets_no_tensor_of_all_pairs(model, inputs, layer):
    model = model()
    ours.patch(model)
    seen = []
    module = next(one for name, one in model.named_modules() if name.endswith(layer))
    module.register_forward_pre_hook(lambda _, args, given: seen.extend([*args, *given.values()]), with_kwargs=True)
    model(**inputs())
    tensors = [one for one in seen if isinstance(one, torch.Tensor)]
    assert len(tensors) >= 2
    assert max(one.numel() for one in tensors) == tensors[0].numel()  # the states
