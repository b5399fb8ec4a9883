"""BERT and its kin with relative positions against the code of transformers 4; transformers 5 has none."""

from __future__ import annotations

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.bert import KEY, KEY_QUERY  # noqa: E402
from relgraph.interop.transformers import common  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

FIVE = common.version() >= (5, 0)
needs_four = pytest.mark.skipif(FIVE, reason="transformers 5 has no relative_key")
NAMES = (
    "Bert", "Roberta", "Electra", "Albert", "Camembert", "XLMRoberta", "XLMRobertaXL", "Data2VecText", "Ernie",
    "MegatronBert", "RobertaPreLayerNorm", "RoCBert", "Xmod",
)  # fmt: skip


def tiny(name="Bert", kind=KEY, head="ForMaskedLM", **options):
    given = {
        "vocab_size": 50, "hidden_size": 24, "embedding_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 32, "max_position_embeddings": 48, "position_embedding_type": kind,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "languages": ["en_XX"],
        "default_language": "en_XX", "enable_pronunciation": False, "enable_shape": False,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**given | options)
    return judge.randomized(getattr(transformers, f"{name}{head}")(config)).double()


def decoder(kind=KEY, **options):
    return tiny("Bert", kind, "LMHeadModel", is_decoder=True, **options)


def inputs_of(length, batch=2):
    mask = judge.padded(batch, length, left=min(3, length - 1), right=min(5, length - 1))
    ids = torch.randint(3, 50, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def compare(model, inputs):
    return judge.assert_parity(model, inputs, keep=inputs["attention_mask"])


@needs_four
@pytest.mark.parametrize("kind", [KEY, KEY_QUERY])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_all_gradients(name, kind):
    inputs = inputs_of(40) | {"output_hidden_states": True}
    report = compare(tiny(name, kind), inputs)
    assert not report.unpatched
    assert len(report.patched) == 1 if name == "Albert" else 2


def sizes_of(kind):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 48}
    return sizes | {"vocab_size": 50, "position_embedding_type": kind}


def esm(kind):
    config = transformers.EsmConfig(**sizes_of(kind), pad_token_id=1, mask_token_id=2, attn_implementation="eager")
    return judge.randomized(transformers.EsmForMaskedLM(config)).double()


@needs_four
@pytest.mark.parametrize("kind", [KEY, KEY_QUERY])
def test_altclip(kind):
    from transformers.models.altclip.modeling_altclip import AltRobertaModel

    model = judge.randomized(AltRobertaModel(transformers.AltCLIPTextConfig(**sizes_of(kind)))).double()
    inputs = inputs_of(20)
    del inputs["labels"]
    assert not compare(model, inputs | {"output_attentions": True}).unpatched


@needs_four
@pytest.mark.parametrize("kind", [KEY, KEY_QUERY])
@pytest.mark.parametrize("length", [5, 48])
def test_esm(kind, length):
    """Its softmax is in float32."""
    model = esm(kind)
    inputs = inputs_of(length)
    for option in ("output_hidden_states", "output_attentions"):
        report = judge.assert_parity(
            model, inputs | {option: True}, keep=inputs["attention_mask"], allowed=judge.SINGLE
        )
        assert [one.kind for one in report.patched] == ["EsmSelfAttention"] * 2


@needs_four
@pytest.mark.parametrize(("length", "attention"), [(1, "eager"), (24, "sdpa"), (47, "eager"), (48, "sdpa")])
def test_lengths_up_to_the_longest(length, attention):
    for name in ("Bert", "Albert"):
        compare(tiny(name, KEY_QUERY, attn_implementation=attention), inputs_of(length))


@needs_four
@pytest.mark.parametrize("kind", [KEY, KEY_QUERY])
def test_a_decoder_over_other_states(kind):
    model = decoder(kind, add_cross_attention=True, use_cache=False)
    inputs = inputs_of(17)
    states, mask = torch.randn(2, 30, 24, dtype=torch.float64), judge.padded(2, 30, 2, 4)
    report = compare(model, inputs | {"encoder_hidden_states": states, "encoder_attention_mask": mask})
    assert [one.name for one in report.patched] == [f"bert.encoder.layer.{i}.attention.self" for i in (0, 1)]
    assert {one.why for one in report.unpatched} == {"it has no tables: position_embedding_type is 'absolute'"}


@needs_four
@pytest.mark.parametrize("kind", [KEY, KEY_QUERY])
@pytest.mark.parametrize("cross", [False, True])
def test_pieces_with_a_cache(kind, cross):
    """The distances of transformers, which count from the last key when there is a cache."""
    model = decoder(kind, add_cross_attention=cross)
    mine = copy.deepcopy(model)
    ours.patch(mine)
    ids = torch.randint(3, 50, (2, 20))
    others = {"encoder_hidden_states": torch.randn(2, 30, 24, dtype=torch.float64)} if cross else {}
    caches = [None, None]
    for begin, end in ((0, 5), (5, 6), (6, 7), (7, 12), (12, 13)):
        steps = []
        for number, one in enumerate((model, mine)):
            step = one(ids[:, begin:end], past_key_values=caches[number], use_cache=True, **others)
            caches[number] = step.past_key_values
            steps.append(step.logits)
        torch.testing.assert_close(steps[1], steps[0], atol=1e-10, rtol=1e-10)


@needs_four
def test_pruned_heads():
    """Heads share the table, so that those that are left read the same rows."""
    model = tiny()
    model.bert.encoder.layer[0].attention.prune_heads([1])
    model = model.double()
    compare(model, inputs_of(20))


@needs_four
def test_nothing_of_size_n_squared_is_made():
    """The embedding of all pairs has N² · D numbers; here only the table's rows are read."""
    model = tiny(max_position_embeddings=300)
    seen = []
    hook = lambda module, args, output: seen.append(output.numel())  # noqa: E731
    for layer in model.bert.encoder.layer:
        layer.attention.self.distance_embedding.register_forward_hook(hook)
    ids = torch.randint(3, 50, (1, 300))
    with torch.no_grad():
        model(ids)
        assert seen == [300 * 300 * 8] * 2
        ours.patch(model)
        model(ids)
    assert len(seen) == 2
