"""Relations in pretrained models: nothing changes at first, labels reach every layer, and files bring them back."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

transformers = pytest.importorskip("transformers")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import saved  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 30}
NO_DROPOUT = SIZES | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GQA = SIZES | {"num_key_value_heads": 2, "eos_token_id": None}
T5 = {"vocab_size": 30, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
NO_TOKENS = {"bos_token_id": 0, "eos_token_id": None}
GPT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BART = {f"{side}_{name}": size for side in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 16))}  # fmt: skip
BART |= {"vocab_size": 30, "d_model": 16, "dropout": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0}
FAMILIES = {
    "BertForMaskedLM": NO_DROPOUT,
    "RobertaForMaskedLM": NO_DROPOUT | {"pad_token_id": 0},
    "EsmForMaskedLM": NO_DROPOUT | {"position_embedding_type": "rotary", "pad_token_id": 0, "mask_token_id": 2},
    "ModernBertForMaskedLM": SIZES | {"pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
    "LlamaForCausalLM": GQA,
    "Qwen3ForCausalLM": GQA | {"head_dim": 8},
    "T5ForConditionalGeneration": T5 | {"decoder_start_token_id": 0},
    "BartForConditionalGeneration": BART,
    "GPT2LMHeadModel": {"n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 30} | NO_TOKENS | GPT_DROPOUT,
}
ROTARY = {"EsmForMaskedLM", "ModernBertForMaskedLM", "LlamaForCausalLM", "Qwen3ForCausalLM"}
N = 11
LABELER = rg.EdgeType(["child", "next"], attend="all")


def every(names):
    return pytest.mark.parametrize("name", sorted(names))


def made(name, **options):
    base = re.sub("For.*|LMHeadModel", "", name)
    config = getattr(transformers, f"{base}Config")(**FAMILIES[name] | options)
    return judge.randomized(getattr(transformers, name)(config)).double()


def inputs_of(name, left=2, right=3):
    ids = torch.randint(3, 30, (2, N), generator=torch.Generator().manual_seed(3))
    inputs = {"input_ids": ids, "attention_mask": judge.padded(2, N, left=left, right=right)}
    return inputs | {"labels": ids} if name.startswith("T5") else inputs


def dense(labels_of=lambda i, j: torch.where((i - j).abs() < 4, (i * 3 + j * 5) % 3, -1)):
    """Ids of two rows that differ: 0, 1, or -1 for none."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    ids = torch.stack([labels_of(i, j), labels_of(j, i)])
    return rg.DenseLabels(torch.where(ids == 2, -1, ids), 2)


def relations_of(model):
    return [module for module in model.modules() if isinstance(module, ours.Relation)]


def randomize(model):
    torch.manual_seed(5)
    for relation in relations_of(model):
        for rows in relation.parameters():
            torch.nn.init.normal_(rows)


@every(FAMILIES)
def test_zero_rows_change_nothing_and_labels_reach_every_layer(name):
    model = made(name)
    inputs = inputs_of(name)
    keep = inputs["attention_mask"].bool()
    theirs = model(**inputs).logits
    tables = ("key", "value", "bias") if name in ROTARY else ("key", "value", "query", "bias")
    report = ours.add_relations(model, LABELER, tables=tables, per_head=True)
    assert len(report.patched) == len(relations_of(model)) == 2
    mine = model(**inputs, relation_labels=dense()).logits
    torch.testing.assert_close(mine[keep], theirs[keep], atol=1e-5, rtol=1e-5)
    randomize(model)
    other = model(**inputs, relation_labels=dense()).logits
    assert (other - mine)[keep].abs().max() > 1e-3
    (other * torch.linspace(-1, 1, other.numel()).view(other.shape)).sum().backward()
    for relation in relations_of(model):
        assert all(rows.grad.abs().max() > 0 for rows in relation.parameters())


@every(FAMILIES)
def test_labels_mean_the_same_as_those_that_a_relation_of_distances_makes(name):
    """That relation is checked against the formula in test_interface; both batch rows have labels of their own here."""
    model, labeler = made(name), rg.ClippedDistance(2)
    ours.add_relations(model, labeler)
    randomize(model)
    inputs = inputs_of(name)
    wanted = model(**inputs).logits
    ids = labeler(N).dense().ids.expand(2, -1, -1)
    torch.testing.assert_close(model(**inputs, relation_labels=rg.DenseLabels(ids, 5)).logits, wanted)


KINDS = {
    "edges": (LABELER, rg.Graph(torch.tensor([[0, 3], [4, 4]]), N, edge_type=torch.tensor([0, 1]))),
    "packed": (LABELER, rg.Graph(torch.tensor([[0, 8], [4, 9]]), 2 * N - 3, edge_type=torch.tensor([0, 1]), ptr=torch.tensor([0, N - 3, 2 * N - 3]))),
    "function": (rg.FromFunction(lambda i, j: (i + j) % 2, 2), None),
    "sum": (rg.Segments(2) + rg.ClippedDistance(1), torch.tensor([0] * 5 + [1] * (N - 5))),
    "product": (LABELER * rg.EdgeType(1, attend="all"), rg.Graph(torch.tensor([[0], [4]]), N, edge_type=torch.tensor([0]))),
}  # fmt: skip


@every(["BertForMaskedLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_labels(name, kind):
    """What a labeler reads, the labels that it makes of that, and their dense form give the same."""
    labeler, given = KINDS[kind]
    model = made(name)
    ours.add_relations(model, labeler)
    randomize(model)
    inputs = inputs_of(name, left=0)
    keep = inputs["attention_mask"].bool()
    labels = labeler(N) if given is None else labeler(given)
    plain = rg.labels.padded(labels, N) if labels.packed else labels
    plain = rg.SumLabels(*(x.dense() for x in plain.parts)) if kind == "sum" else plain.dense()
    several = [model(**inputs, relation_labels=x).logits for x in (given, labels, plain)]
    for one in several[1:]:
        torch.testing.assert_close(one[keep], several[0][keep])


@every(FAMILIES)
def test_gradient_checkpointing(name):
    model = made(name)
    ours.add_relations(model, LABELER)
    randomize(model)
    inputs = inputs_of(name) | {"relation_labels": dense(), "labels": torch.randint(3, 30, (2, N))}
    wanted = judge.everything(model, inputs, training=True)
    judge.checkpoint(model)
    judge.assert_same(judge.everything(model, inputs, training=True), wanted, judge.SINGLE)


@every(FAMILIES)
def test_files_bring_relations_back(name, tmp_path):
    model = made(name).float()
    ours.add_relations(model, LABELER, layers=[1])
    randomize(model)
    model.save_pretrained(tmp_path)
    inputs = inputs_of(name) | {"relation_labels": dense()}
    wanted = model(**inputs).logits
    for back in (type(model).from_pretrained(tmp_path), ours.from_pretrained(tmp_path)):
        assert type(back).__name__ == name
        assert isinstance(back, getattr(transformers, name))
        assert [relation.labeler for relation in relations_of(back)] == [LABELER]
        torch.testing.assert_close(back(**inputs).logits, wanted)
        assert not back.training
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(**inputs).logits, wanted)


def test_a_part_of_a_saved_model(tmp_path):
    """The model without its head has the relations too, and rows that a file does not have are zero."""
    model = made("LlamaForCausalLM").float()
    ours.add_relations(model, LABELER)
    randomize(model)
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path)
    for one, two in zip(relations_of(base), relations_of(model), strict=True):
        assert torch.equal(one.tables.key.rows, two.tables.key.rows)
    inputs = inputs_of("Llama") | {"relation_labels": dense()}
    torch.testing.assert_close(base(**inputs).last_hidden_state, model.model(**inputs).last_hidden_state)
    plain = made("LlamaForCausalLM").float()
    plain.save_pretrained(tmp_path / "plain")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", config=model.config)
    assert [rows.abs().max().item() for relation in relations_of(base) for rows in relation.parameters()] == [0.0] * 4


def test_importing_is_enough_to_load(tmp_path):
    """In a new process, where nothing was registered; another implementation gives way."""
    model = made("LlamaForCausalLM").float()
    ours.add_relations(model, LABELER)
    model.save_pretrained(tmp_path)
    code = f"""
import relgraph as rg
import torch
import relgraph.interop.transformers as ours
from transformers import LlamaForCausalLM

model = LlamaForCausalLM.from_pretrained({str(tmp_path)!r}, attn_implementation="eager")
print(sum(isinstance(module, ours.Relation) for module in model.modules()), model.config._attn_implementation)
model(torch.tensor([[3, 4]]), relation_labels=rg.DenseLabels(torch.tensor([[0, 1], [1, 0]]), 2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "relgraph"], done.stderr


class Own(transformers.LlamaForCausalLM):
    """A class of a user."""


def test_a_class_of_the_user(tmp_path):
    model = Own(transformers.LlamaConfig(**GQA))
    ours.add_relations(model, LABELER)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"if Own is a class of yours, call Own\.from_pretrained\(path\)"):
        ours.from_pretrained(tmp_path)
    assert len(relations_of(Own.from_pretrained(tmp_path))) == 2


@dataclass(frozen=True)
class Mine(rg.Labeler):
    """A labeler of a user."""

    num_labels = 2
    names = ("a", "b")

    def __call__(self, given):
        return rg.DenseLabels(given, 2)


def test_a_labeler_of_the_user(tmp_path):
    model = made("LlamaForCausalLM").float()
    ours.add_relations(model, Mine())
    randomize(model)
    with pytest.warns(UserWarning, match="their labeler, Mine, is not one of relgraph: load it by rg.interop.trans"):
        model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="the model is made without its relations.*from_pretrained"):
        assert not relations_of(transformers.LlamaForCausalLM.from_pretrained(tmp_path))
    with pytest.raises(ValueError, match="labeler must be given: the relations of .* were made by Mine, not a labeler"):
        ours.from_pretrained(tmp_path)
    back = ours.from_pretrained(tmp_path, labeler=Mine())
    inputs = inputs_of("Llama") | {"relation_labels": dense().ids}
    torch.testing.assert_close(back(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize(
    "labeler",
    [rg.ClippedDistance(4), rg.EdgeType(["a", "b"], attend="all"), rg.Segments(2) + rg.ClippedDistance((1, 2)),
     rg.ClippedDistance(2) * rg.Segments(3), rg.TreeRelation(), LABELER | rg.ClippedDistance(1),
     (rg.ClippedDistance(2) & rg.Window(3)).dense()],
)  # fmt: skip
def test_labelers_are_read_again(labeler):
    assert saved.read(repr(labeler)) == labeler


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "open('x')", "Labeler", "ClippedDistance(", "3", "(3).dense()",
     "ClippedDistance(2).__class__()", "ClippedDistance(2) + 3", "label_pairs(3)", "ClippedDistance(-1, 2, 3)"],
)  # fmt: skip
def test_no_other_expression_is_read(text):
    with pytest.raises(ValueError, match="labeler must"):
        saved.read(text)


def test_bad_input():
    model = made("LlamaForCausalLM")
    inputs = inputs_of("Llama")
    for given, error, message in (
        ({"layers": [2]}, ValueError, r"layers must be among those with self-attention, \[0, 1\], got \[2\]"),
        ({"layers": []}, ValueError, r"layers must name at least one layer, got \[\]"),
        ({"tables": ("keys",)}, ValueError, "tables"),
        ({"labeler": 3}, TypeError, "labeler must be callable and have num_labels and names, got int"),
        ({"per_head": 1}, TypeError, "per_head"),
    ):
        with pytest.raises(error, match=message):
            ours.add_relations(model, **{"labeler": LABELER} | given)
    assert model.config._attn_implementation != "relgraph"
    with pytest.raises(TypeError, match="model must be a transformers.PreTrainedModel, got Linear"):
        ours.add_relations(torch.nn.Linear(2, 2), LABELER)
    other = transformers.DebertaV2Model(transformers.DebertaV2Config(**SIZES))
    with pytest.raises(NotImplementedError, match="as that of BERT and .* got DebertaV2Model with: DebertaV2Attention"):
        ours.add_relations(other, LABELER)
    t5 = made("T5ForConditionalGeneration")
    ours.patch(t5)
    with pytest.raises(NotImplementedError, match="it is patched: call unpatch"):
        ours.add_relations(t5, LABELER)
    ours.add_relations(model, LABELER)
    with pytest.raises(
        ValueError, match="no relations yet, got a LlamaForCausalLM with some: if you added none, it was"
    ):
        ours.add_relations(model, LABELER)
    with pytest.raises(ValueError, match="relation_labels must be given, as EdgeType.* does not label lengths"):
        model(**inputs)
    with pytest.raises(
        ValueError,
        match=r"relation_labels must label all 11 tokens, 11 of the call, got labels of 5: if these are words",
    ):
        model(**inputs, relation_labels=rg.DenseLabels(torch.zeros(5, 5, dtype=torch.long), 2))
    with pytest.raises(
        ValueError, match="all 12 tokens, 11 of the cache and 1 .* of 11: .* labels of all tokens up to"
    ):
        model.generate(**inputs, max_new_tokens=3, relation_labels=dense())
    with pytest.raises(ValueError, match="relation_labels must be those of 2 texts or of one for all, got Dense"):
        model(**inputs, relation_labels=rg.DenseLabels(torch.zeros(3, N, N, dtype=torch.long), 2))
    with pytest.raises(ValueError, match="relation_labels must have num_labels 2, as the tables, got 5"):
        model(**inputs, relation_labels=rg.ClippedDistance(2)(N))
    with pytest.raises(ValueError, match="relation_labels must be those of a labeler with the names of the tables"):
        model(**inputs, relation_labels=Mine()(torch.zeros(N, N, dtype=torch.long)))
    with pytest.raises(ValueError, match="attn_implementation must stay 'relgraph'"):
        model.set_attn_implementation("sdpa")


def test_an_encoder_and_a_decoder_with_configurations_of_their_own():
    encoder, decoder = transformers.BertConfig(**NO_DROPOUT), transformers.BertConfig(**NO_DROPOUT)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = judge.randomized(transformers.EncoderDecoderModel(config))
    with pytest.raises(NotImplementedError, match=r"got EncoderDecoderModel with two: add relations to model\.encoder"):
        ours.add_relations(model, LABELER)
    ours.add_relations(model.encoder, LABELER)
    inputs = inputs_of("Bert") | {"decoder_input_ids": torch.tensor([[3], [4]]), "relation_labels": dense()}
    before = model(**inputs).logits
    randomize(model)
    assert (model(**inputs).logits - before).abs().max() > 1e-3


def test_graphs_of_words_are_refused():
    """They would be padded to the tokens, so word i would be token i."""
    model = made("BertForMaskedLM")
    ours.add_relations(model, LABELER)
    one = rg.Graph(torch.tensor([[0], [1]]), N, edge_type=torch.tensor([0]))
    several = [rg.Graph(one.edge_index, size, edge_type=one.edge_type) for size in (N - 3, 4)]
    right, left = inputs_of("Bert", left=0), inputs_of("Bert", left=N - 4, right=0)
    words = r"relation_labels must have a node for each of {} tokens of text {}, got {}: if nodes are words, pass rg"
    for given, inputs, message in (
        (several, right, words.format(11, 1, 4)),
        (several[::-1], right, words.format(8, 0, 4)),
        ([one, several[1]], left, "of 4 tokens of text 1, got 4: they are padded on the right, but the text is not: label all 11"),
        ([one, several[1]], left | {"attention_mask": None}, r"align\(encoding, graphs\); if the texts are padded, pass atten"),
        ([several[1]], right, words.format(8, 0, 4)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            model(**inputs, relation_labels=rg.Graph.batch(given))
    for given, name in ((several, "graphs"), ([LABELER(one)] * 2, "labels")):
        with pytest.raises(
            TypeError, match=rf"a list of {name}: pass rg.interop.transformers.align\(encoding, {name}\)"
        ):
            model(**right, relation_labels=given)
    ours.add_relations(other := made("BertForMaskedLM"), rg.TreeRelation())
    with pytest.raises(
        ValueError, match=r"parents 0 and 2: tokens of one word share its edges, so label the words and"
    ):
        other(**right, relation_labels=rg.Graph(torch.tensor([[0, 2], [1, 1]]), N))


@pytest.mark.parametrize("whole", [lambda one: one, lambda one: rg.ClippedDistance(1) + one.dense()])
def test_warns_if_only_pairs_with_an_edge_attend(whole):
    with pytest.warns(UserWarning, match="outputs change before any training, as .*EdgeType.* lets only pairs with"):
        ours.add_relations(made("BertForMaskedLM"), whole(rg.EdgeType(2)))
    ours.add_relations(made("BertForMaskedLM"), whole(LABELER))


def test_reports_and_unpatching_leave_relations():
    model = made("BertForMaskedLM")
    added = ours.add_relations(model, LABELER)
    assert ours.report(model) == added
    assert len(relations_of(model)) == 2
    ours.unpatch(model)
    assert ours.report(model) == added


@every(["T5ForConditionalGeneration", "LlamaForCausalLM"])
@pytest.mark.parametrize("layers", [None, [1]])
def test_patching_leaves_relations(name, layers):
    """The decoder of T5 is patched; of Llama nothing remains, so ``patch`` raises and the callback does nothing."""
    model = made(name)
    ours.add_relations(model, LABELER, layers=layers)
    randomize(model)
    inputs = inputs_of(name) | {"relation_labels": dense()}
    wanted = judge.everything(model, inputs)
    patched, called = copy.deepcopy(model), copy.deepcopy(model)
    why = "it has relations: relgraph computes it already"
    if name.startswith("T5"):
        reasons = [one.why for one in ours.patch(patched).unpatched]
        assert len(reasons) == 2
        assert why in reasons
    else:
        with pytest.raises(ValueError, match=why):
            ours.patch(patched)
    callback = ours.RelgraphCallback()
    callback.on_init_end(None, None, None, model=called)
    assert callback.report == ours.report(patched)
    for one in (patched, called):
        judge.assert_same(judge.everything(one, inputs), wanted, judge.SINGLE)
        if layers is None:
            with pytest.raises(ValueError, match="relation_labels must be given"):
                one(**inputs | {"relation_labels": None})


def test_a_decoder_of_bert_steps_with_a_cache_as_without():
    config = transformers.BertConfig(**NO_DROPOUT, is_decoder=True, eos_token_id=None)
    model = judge.randomized(transformers.BertLMHeadModel(config)).eval()
    ours.add_relations(model, LABELER)
    randomize(model)
    ids = torch.randint(3, 30, (2, N), generator=torch.Generator().manual_seed(3))
    labels = dense()
    wanted = model(ids, relation_labels=labels).logits
    first = model(ids[:, :-4], relation_labels=labels, use_cache=True)
    rest = model(ids[:, -4:], relation_labels=labels, cache=first["cache"]).logits
    torch.testing.assert_close(torch.cat([first.logits, rest], 1), wanted, atol=1e-5, rtol=1e-5)
