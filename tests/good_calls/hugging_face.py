"""Good calls of ``relgraph.interop.transformers``."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import transformers

import relgraph as rg
from relgraph.interop import transformers as ours
from tests.judge import Good


def model():
    """A tiny T5."""
    sizes = {"vocab_size": 8, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5EncoderModel(transformers.T5Config(**sizes))


def patched():
    """The same, patched."""
    made = model()
    ours.patch(made)
    return made


def llama():
    """A tiny Llama."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9))


WORDS = {"word_ids": [None, 0, 1, 1], "sequence_ids": [None, 0, 0, 0], "offsets": [(0, 0), (0, 3), (4, 6), (6, 8)]}
GRAPH = rg.Graph(torch.tensor([[0], [1]]), 2, edge_type=torch.tensor([0]))
LABELER = rg.EdgeType(1, attend="all")


def collate(features):
    """The tokens of texts of one length."""
    return {"input_ids": torch.tensor([one["input_ids"] for one in features])}


def placed(module):
    """A relation that was attached to a module."""
    relation = ours.Relation(rg.ClippedDistance(2), 4)
    relation.attach(module)
    return relation


GOOD_CALLS = {
    "transformers.add_relations": lambda: Good(
        ours.add_relations,
        {"model": llama(), "labeler": LABELER, "tables": ("key", "bias"), "per_head": True, "layers": [0]},
    ),
    "transformers.align": lambda: Good(
        ours.align,
        {
            "encoding": SimpleNamespace(**WORDS, overflowing=[]),
            "graph": GRAPH,
            "pieces": "first",
            "spans": [(0, 3), (4, 8)],
            "sequence": 0,
        },
    ),
    "transformers.Relation.attach": lambda: Good(placed, {"module": llama().model.layers[0].self_attn}),
    "transformers.RelationCollator": lambda: Good(
        ours.RelationCollator, {"collator": collate, "labeler": LABELER, "padding_side": "left"}
    ),
    "transformers.RelgraphCallback": lambda: Good(ours.RelgraphCallback, {"families": ("t5",), "impl": "dense"}),
    "transformers.report": lambda: Good(ours.report, {"model": patched()}),
    "transformers.patch": lambda: Good(ours.patch, {"model": model(), "families": ("t5",), "impl": "dense"}),
    "transformers.unpatch": lambda: Good(ours.unpatch, {"model": patched()}),
    "transformers.register": lambda: Good(ours.register, {}),
    "transformers.Relation": lambda: Good(
        ours.Relation,
        {"labeler": rg.ClippedDistance(2), "dim": 4, "heads": 2, "kinds": ("key", "bias"), "per_head": True},
    ),
}
