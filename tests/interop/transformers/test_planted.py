"""A planted relation, the word at my parent in a random tree, is learned through Trainer, and lost without labels."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import relgraph as rg  # noqa: E402
from relgraph.interop import transformers as ours  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402
from tests.interop.transformers.test_relations import LABELER, made, randomize, relations_of  # noqa: E402

WORDS, PAD = 8, 0
LABELS = rg.EdgeType(["child of"], attend="all")
SIZES = {
    "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2, "num_labels": WORDS,
    "vocab_size": WORDS + 1, "pad_token_id": PAD,
}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "Bert": NO_DROPOUT,
    "Roberta": NO_DROPOUT,
    "Esm": NO_DROPOUT | {"position_embedding_type": "rotary", "mask_token_id": 2, "token_dropout": False},
    "ModernBert": {"local_attention": 8},
    "Llama": {"eos_token_id": None, "attention_dropout": 0.0},
    "Qwen3": {"eos_token_id": None, "head_dim": 16, "num_key_value_heads": 1},
    "T5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0},
}


def examples(count, seed):
    """Random words in random trees, each parent before its children; the target of a token is the word at its parent.

    The root is its own parent. A causal model sees all parents.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(14, 21, (1,), generator=generator))
        words = torch.randint(WORDS, (length,), generator=generator)
        parents = torch.tensor([-1] + [int(torch.randint(n, (1,), generator=generator)) for n in range(1, length)])
        targets = words[torch.where(parents < 0, torch.arange(length), parents)]
        graph = rg.Graph.from_parents(parents, edge_type=torch.zeros(length, dtype=torch.long))
        found.append({"input_ids": (words + 1).tolist(), "labels": targets.tolist(), "relation_labels": graph})
    return found


def padded(features):
    """A collator of transformers needs a tokenizer; this pads as one does."""
    length = max(len(one["input_ids"]) for one in features)
    fill = {"input_ids": PAD, "labels": -100}
    batch = {
        name: torch.tensor([one[name] + [value] * (length - len(one[name])) for one in features])
        for name, value in fill.items()
    }
    return batch | {"attention_mask": (batch["input_ids"] != PAD).long()}


def trainer_of(model, folder, collator, steps=300):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=32, learning_rate=3e-3,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no", seed=1, use_cpu=True,
        lr_scheduler_type="constant",
    )  # fmt: skip
    right = lambda found: {"accuracy": _accuracy(found)}  # noqa: E731
    return transformers.Trainer(
        model, arguments, data_collator=collator, train_dataset=examples(2000, 0), eval_dataset=examples(200, 1),
        compute_metrics=right,
    )  # fmt: skip


def _accuracy(found):
    targets = torch.as_tensor(found.label_ids)
    guessed = torch.as_tensor(found.predictions).argmax(-1)
    return float((guessed == targets)[targets >= 0].float().mean())


def tiny(name="Bert"):
    torch.manual_seed(0)
    sizes = {"num_labels": WORDS, "vocab_size": WORDS + 1, "pad_token_id": PAD} if name == "T5" else SIZES
    config = getattr(transformers, f"{name}Config")(**sizes | MODELS[name])
    return getattr(transformers, f"{name}ForTokenClassification")(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_word_at_my_parent(name, tmp_path):
    model = tiny(name)
    ours.add_relations(model, LABELS)
    collator = ours.RelationCollator(padded, LABELS)
    trainer = trainer_of(model, tmp_path, collator)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] >= 0.98
    model.save_pretrained(tmp_path)
    back = trainer_of(ours.from_pretrained(tmp_path), tmp_path, collator)
    assert back.evaluate()["eval_accuracy"] >= 0.98
    without = [one | {"relation_labels": _edgeless(len(one["input_ids"]))} for one in examples(200, 1)]
    assert back.evaluate(without)["eval_accuracy"] <= 0.4  # that of a guess: the root has the most children


def _edgeless(length):
    nothing = torch.zeros(2, 0, dtype=torch.long)
    return rg.Graph(nothing, length, edge_type=nothing[0])


def test_labels_pass_trainer_or_it_says_why_not(tmp_path):
    model = tiny()
    ours.add_relations(model, LABELS)
    collator = ours.RelationCollator(padded, LABELS)
    trainer = trainer_of(model, tmp_path, collator, steps=1)
    assert "relation_labels" not in trainer.label_names  # it is no target of training
    trainer.train()
    assert all(rows.abs().max() > 0 for relation in relations_of(model) for rows in relation.parameters())
    plain = trainer_of(tiny(), tmp_path, collator, steps=1)  # its model takes no labels, so Trainer drops the column
    with pytest.raises(ValueError, match="features must have the column 'relation_labels', got input_ids, labels: Tr"):
        plain.train()
    no_collator = trainer_of(model, tmp_path, padded, steps=1)
    with pytest.raises(ValueError, match="relation_labels must be given, as EdgeType.* Trainer passes them on if rg"):
        no_collator.train()


@pytest.mark.filterwarnings("ignore")  # those of peft about the base model
def test_adapters_save_relations(tmp_path):
    peft = pytest.importorskip("peft")
    model = tiny().eval()
    ours.add_relations(model, LABELS)
    collator = ours.RelationCollator(padded, LABELS)
    config = peft.LoraConfig(target_modules=["query", "value"], modules_to_save=["relation"], r=2)
    adapted = peft.get_peft_model(model, config)
    trained = {name for name, x in adapted.named_parameters() if x.requires_grad}
    assert len([name for name in trained if ".relation." in name]) == 4
    trainer_of(adapted, tmp_path, collator, steps=2).train()
    batch = collator(examples(3, 2))
    wanted = adapted.eval()(**batch).logits
    adapted.save_pretrained(tmp_path)
    fresh = tiny().eval()
    ours.add_relations(fresh, LABELS)
    assert (fresh(**batch).logits - wanted).abs().max() > 1e-4
    back = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()
    torch.testing.assert_close(back(**batch).logits, wanted)
    with pytest.raises(TypeError, match="got PeftModel: add relations before the adapters, to the model within"):
        ours.add_relations(back, LABELS)


def on_side(side):
    """A collator that pads on this side."""
    return lambda given: {name: x.flip(1) if side == "left" else x for name, x in padded(given).items()}


def test_collator_refuses_graphs_of_words():
    given = [{"input_ids": [1] * n, "labels": [0] * n, "relation_labels": _edgeless(2)} for n in (2, 3)]
    bare = lambda features: {"input_ids": padded(features)["input_ids"]}  # noqa: E731
    for collator in (padded, bare):
        with pytest.raises(
            ValueError, match="a node for each of 3 tokens of text 1, got 2: if nodes are words, pass rg"
        ):
            ours.RelationCollator(collator, LABELS)(given)
    with pytest.raises(ValueError, match="they are padded on the left, but the text is not: label all 3 tokens"):
        ours.RelationCollator(padded, LABELS, "left")(given)


def test_collator_pads_on_both_sides():
    graphs = [rg.Graph(torch.tensor([[0], [1]]), n, edge_type=torch.tensor([0])) for n in (2, 3)]
    features = [{"input_ids": [1] * graph.num_nodes, "labels": [0] * graph.num_nodes} for graph in graphs]
    for kind in (
        LABELS,
        lambda graph: LABELS(graph).dense(),
        lambda graph: LABELS(graph) + rg.ClippedDistance(1)(graph.num_nodes),
    ):
        given = [one | {"relation_labels": graph} for one, graph in zip(features, graphs, strict=True)]
        for side, first in (("right", 0), ("left", 1)):
            labels = ours.RelationCollator(on_side(side), kind, side)(given)["relation_labels"]
            labels = labels.parts[0] if isinstance(labels, rg.SumLabels) else labels
            ids, attend = labels.to_dense()
            assert attend.all()
            assert (ids >= 0).nonzero().tolist() == [[0, first + 1, first], [1, 1, 0]]
            assert labels.names == LABELS.names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of torch where a graph breaks between modules
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_compiled(name):
    model = made(name)
    ours.add_relations(model, LABELER)
    randomize(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for length in (9, 14):
        graph = rg.Graph(torch.tensor([[0, 3], [4, 7]]), length, edge_type=torch.tensor([0, 1]))
        inputs = {"input_ids": torch.randint(3, 30, (2, length)), "attention_mask": judge.padded(2, length, 2, 1)}
        inputs["relation_labels"] = LABELER(graph)
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
    torch.compiler.reset()
