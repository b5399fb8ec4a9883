"""DeBERTa against the code of transformers."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

V2, V1 = "DebertaV2", "Deberta"
ALLOWED = {V2: judge.EXACT, V1: judge.SINGLE}  # DeBERTa v1's layer norm computes in float32


def tiny(name=V2, kind="ForMaskedLM", **options):
    config = getattr(transformers, f"{name}Config")
    given = {
        "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 32, "max_position_embeddings": 64, "max_relative_positions": 24,
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
        "type_vocab_size": 0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    if name == V2:
        given |= {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    return judge.randomized(getattr(transformers, f"{name}{kind}")(config(**given | options))).double()


def inputs_of(length, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    ids = torch.randint(1, 50, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def compare(model, name, inputs):
    return judge.assert_parity(model, inputs, keep=inputs["attention_mask"], allowed=ALLOWED[name])


OPTIONS = [
    (V2, {}),
    (V2, {"pos_att_type": ["c2p"]}),
    (V2, {"pos_att_type": ["p2c"]}),
    (V2, {"share_att_key": False}),
    (V2, {"share_att_key": False, "pos_att_type": ["p2c"]}),
    (V2, {"share_att_key": False, "pos_att_type": ["c2p"]}),
    (V2, {"position_biased_input": True, "type_vocab_size": 2}),
    (V2, {"conv_kernel_size": 3, "conv_act": "gelu"}),
    (V2, {"position_buckets": -1, "norm_rel_ebd": "none"}),
    (V2, {"max_relative_positions": -1}),
    (V1, {}),
    (V1, {"pos_att_type": ["c2p"]}),
    (V1, {"pos_att_type": ["p2c"]}),
    (V1, {"position_biased_input": True, "max_relative_positions": -1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda x: x if isinstance(x, str) else ",".join(x) or "-")
def test_outputs_and_all_gradients(name, options):
    inputs = inputs_of(40) | {"output_hidden_states": True}
    report = compare(tiny(name, **options), name, inputs)
    assert not report.unpatched
    assert len(report.patched) == 3  # two layers and the encoder


@pytest.mark.parametrize("length", [1, 5, 6, 24, 25, 49])
@pytest.mark.parametrize("name", [V2, V1])
def test_lengths_on_both_sides_of_every_border(name, length):
    compare(tiny(name), name, inputs_of(length))


@pytest.mark.parametrize("name", [V2, V1])
def test_one_layer_of_attention_to_the_last_digit(name):
    """DeBERTa v1 too: its attention has no layer norm."""
    model = tiny(name)
    encoder, theirs = model.deberta.encoder, model.deberta.encoder.layer[0].attention.self
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    table = torch.randn(encoder.rel_embeddings.weight.shape, dtype=torch.float64)
    mask = torch.ones(2, 1, 40, 40).tril()

    def run(relative_pos):
        inputs = [x.clone().requires_grad_(), table.clone().requires_grad_()]
        theirs.zero_grad()
        output, weights = theirs(inputs[0], mask, True, relative_pos=relative_pos, rel_embeddings=inputs[1])
        (output * torch.arange(24)).sum().backward()
        gradients = {n: p.grad for n, p in theirs.named_parameters()}
        return {"output": output, "weights": weights, "x": inputs[0].grad, "table": inputs[1].grad} | gradients

    wanted = run(encoder.get_rel_pos(x))
    ours.patch(model)
    judge.assert_same(run(None), wanted, judge.EXACT)


@pytest.mark.parametrize(("name", "more"), [(V2, {"position_buckets": 256}), (V1, {})])
def test_published_sizes(name, more):
    """256 buckets up to 512 positions, and 512 positions one by one."""
    sizes = {"max_position_embeddings": 512, "max_relative_positions": -1, "num_hidden_layers": 1}
    compare(tiny(name, **sizes, **more), name, inputs_of(520, batch=1))


def test_a_mask_of_pairs():
    """The encoder takes masks ``[B, N, N]`` too, here one that is not the same for all queries."""
    model = tiny(V2, "Model")
    x = torch.randn(2, 20, 24, dtype=torch.float64)
    inputs = {"hidden_states": x, "attention_mask": torch.ones(2, 20, 20, dtype=torch.long).tril()}
    judge.assert_parity(model.encoder, inputs)


def test_queries_of_their_own():
    """The encoder takes ``query_states``, which attend to ``hidden_states``."""
    model = tiny(V2, "Model")
    x, y = torch.randn(2, 2, 20, 24, dtype=torch.float64)
    mask = judge.padded(2, 20, 3, 5)
    inputs = {"hidden_states": x, "attention_mask": mask, "query_states": y}
    judge.assert_parity(model.encoder, inputs, keep=mask)


def sew_d(kind="ForCTC", **options):
    given = {
        "vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32,
        "max_position_embeddings": 64, "position_buckets": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "apply_spec_augment": False,
        "conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (4, 3), "squeeze_factor": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0, "hidden_act": "gelu",
        "feature_layer_norm_eps": 1e-5,
    }  # fmt: skip
    return judge.randomized(getattr(transformers, f"SEWD{kind}")(transformers.SEWDConfig(**given | options))).double()


def sew_d_inputs():
    mask = judge.padded(2, 300, right=90)
    return {"input_values": torch.randn(2, 300, dtype=torch.float64), "attention_mask": mask}


@pytest.mark.parametrize(
    "options", [{}, {"pos_att_type": ["c2p"]}, {"share_att_key": False}, {"position_buckets": -1}], ids=str
)
def test_sew_d(options):
    inputs = sew_d_inputs() | {"labels": torch.randint(2, 20, (2, 7)), "output_hidden_states": True}
    report = judge.assert_parity(sew_d(**options), inputs)
    assert len(report.patched) == 3  # two layers and the encoder
    assert not report.unpatched
