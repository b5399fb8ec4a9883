"""Good calls of ``relgraph.interop.transformers``."""

from __future__ import annotations

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


def converted():
    """An attention of it as a layer."""
    made = model()
    return Good(ours.convert, {"module": made.encoder.block[0].layer[0].SelfAttention, "model": made})


GOOD_CALLS = {
    "transformers.patch": lambda: Good(ours.patch, {"model": model(), "families": ("t5",), "impl": "dense"}),
    "transformers.unpatch": lambda: Good(ours.unpatch, {"model": patched()}),
    "transformers.convert": converted,
    "transformers.register": lambda: Good(ours.register, {}),
    "transformers.Relation": lambda: Good(
        ours.Relation,
        {"labeler": rg.ClippedDistance(2), "dim": 4, "heads": 2, "kinds": ("key", "bias"), "per_head": True},
    ),
}
