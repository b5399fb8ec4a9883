"""Good calls of the front door: attention, attention over edges, merging, and the choice of an implementation."""

from __future__ import annotations

import torch

import relgraph as rg
from tests.judge import Good

# What a message may speak of in place of an argument that no longer fits the others.
INPUTS = ("query", "key", "value", "labels", "key_table", "value_table", "query_table", "bias_table", "attn_mask")
ALSO = {
    "query": INPUTS,
    "key": INPUTS,
    "value": INPUTS,
    "labels": ("key_table", "value_table", "query_table", "bias_table", "q_offset"),
    "q_offset": ("labels",),
}


def _tables(*shape: int) -> dict:
    return {
        "key_table": torch.randn(3, 4),
        "value_table": torch.randn(3, 5),
        "query_table": torch.randn(2, 3, 4),
        "bias_table": torch.randn(2, 3),
    }


def _inputs(*, batch: int = 2, q_len: int = 3, k_len: int = 3) -> dict:
    return {
        "query": torch.randn(batch, 2, q_len, 4),
        "key": torch.randn(batch, 2, k_len, 4),
        "value": torch.randn(batch, 2, k_len, 5),
    }


def _options() -> dict:
    return {
        "attn_mask": torch.zeros(3, 3),
        "is_causal": False,
        "q_offset": 0,
        "dropout_p": 0.1,
        "scale": 0.5,
        "enable_gqa": False,
        "impl": "dense",
    }


def _attention(call, **options) -> Good:
    arguments = {**_inputs(), "labels": rg.ClippedDistance(1)(3), **_tables(), **_options(), **options}
    return Good(call, arguments, ALSO)


def _packed(call) -> Good:
    arguments = {
        "query": torch.randn(3, 2, 4),
        "key": torch.randn(3, 2, 4),
        "value": torch.randn(3, 2, 5),
        "labels": rg.ClippedDistance(1)(3, ptr=torch.tensor([0, 2, 3])),
        **_tables(),
    }
    return Good(call, {**arguments, "attn_mask": torch.ones(3, 3, dtype=torch.bool)}, ALSO)


def _summed(call) -> Good:
    labels = rg.SumLabels(rg.ClippedDistance(1)(3), rg.DenseLabels(torch.eye(3, dtype=torch.int64), 2))
    tables = {"key_table": (torch.randn(3, 4), None), "value_table": (torch.randn(3, 5), torch.randn(2, 5))}
    return Good(call, {**_inputs(), "labels": labels, **tables}, ALSO)


def _raw(call) -> Good:
    return Good(
        call,
        {**_inputs(), "labels": torch.tensor([[0, 1, 2], [2, 1, -1], [0, 0, 0]]), "key_table": torch.randn(3, 4)},
        {**ALSO, "key_table": ("labels",)},
        accepts={"labels": ("none",)},
    )


def _of_edges() -> rg.EdgeLabels:
    return rg.EdgeLabels(torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([0, 1, 2]), 3, q_len=3)


def _edges() -> Good:
    return Good(
        rg.edge_attention,
        {
            "query": torch.randn(3, 2, 4),
            "key": torch.randn(3, 2, 4),
            "value": torch.randn(3, 2, 5),
            "labels": _of_edges(),
            **_tables(),
            "edge_attr": torch.randn(3, 6),
            "edge_key": torch.randn(4, 6),
            "edge_value": torch.randn(2, 5, 6),
            "dropout_p": 0.1,
            "scale": 0.5,
            "enable_gqa": False,
            "impl": "edges",
            "need_weights": True,
        },
        {**ALSO, "edge_attr": ("edge_key", "edge_value"), "edge_key": ("edge_attr",)},
    )


def _merge() -> Good:
    return Good(
        rg.functional.merge,
        {"outputs": [torch.randn(2, 3, 4), torch.randn(2, 3, 4)], "lses": [torch.randn(2, 3), torch.randn(2, 3)]},
        also={"outputs": ("lses",), "lses": ("outputs",)},
    )


FULL = {"need_weights": True, "need_label_mass": True}

GOOD_CALLS = {
    "relation_attention": lambda: _attention(rg.relation_attention),
    "relation_attention (packed)": lambda: _packed(rg.relation_attention),
    "relation_attention (a sum)": lambda: _summed(rg.relation_attention),
    "relation_attention (raw ids)": lambda: _raw(rg.relation_attention),
    "relation_attention (additive score, maps)": lambda: Good(
        rg.relation_attention,
        {
            **_inputs(),
            "labels": rg.ClippedDistance(1)(3),
            "value_map": (torch.randn(3, 2), torch.randn(2, 5, 5)),
            "score": rg.score.Additive(torch.randn(2, 4)),
        },
        {**ALSO, "value_map": ("coefficients", "bases"), "score": ("score.weight",)},
    ),
    "relation_attention (biases of the query)": lambda: Good(
        rg.relation_attention,
        {
            **_inputs(),
            "labels": rg.ClippedDistance(1)(3),
            "key_table": torch.randn(3, 4),
            "content_bias": torch.randn(2, 4),
            "position_bias": torch.randn(2, 4),
        },
        {**ALSO, "query": (*INPUTS, "content_bias"), "key_table": ("position_bias",)},
    ),
    "relation_attention (sink)": lambda: Good(
        rg.relation_attention_with_aux, {**_inputs(), "labels": None, "sink": torch.randn(2), "need_lse": True}, ALSO
    ),
    "relation_attention (gates)": lambda: Good(
        rg.relation_attention,
        {
            **_inputs(),
            "labels": rg.ClippedDistance(1)(3),
            "key_gate": torch.randn(3, 4),
            "value_gate": torch.randn(2, 3, 5),
        },
        {**ALSO, "labels": (*ALSO["labels"], "key_gate", "value_gate")},
    ),
    "relation_attention (row scores)": lambda: Good(
        rg.relation_attention,
        {**_inputs(), "labels": rg.ClippedDistance(1)(3), "row_scores": torch.randn(2, 2, 3, 3)},
        {**ALSO, "labels": (*ALSO["labels"], "row_scores")},
    ),
    "relation_attention (edge vectors)": lambda: Good(
        rg.relation_attention,
        {
            **_inputs(),
            "labels": rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 3, q_len=3, default=2),
            "edge_attr": torch.randn(2, 6),
            "edge_key": torch.randn(4, 6),
            "edge_value": torch.randn(2, 5, 6),
        },
        {
            **ALSO,
            "labels": (*ALSO["labels"], "edge_attr"),
            "edge_attr": ("edge_key", "edge_value"),
            "edge_key": ("edge_attr",),
        },
    ),
    "Softcap": lambda: Good(rg.score.Softcap, {"cap": 3.0}),
    "Softcap.__call__": lambda: Good(rg.score.Softcap(3.0), {"scores": torch.randn(2, 3)}),
    "LeakyReLU.__call__": lambda: Good(rg.score.LeakyReLU(0.2), {"scores": torch.randn(2, 3)}),
    "LeakyReLU": lambda: Good(rg.score.LeakyReLU, {"negative_slope": 0.1}),
    "Additive": lambda: Good(rg.score.Additive, {"weight": torch.randn(2, 4), "activation": "tanh"}),
    "Additive.learned": lambda: Good(
        rg.score.Additive.learned, {"num_heads": 3, "head_dim": 4, "activation": "tanh", "device": "cpu", "dtype": None}
    ),
    "Bilinear": lambda: Good(rg.score.Bilinear, {"weight": torch.randn(3, 4, 4)}),
    "Bilinear.learned": lambda: Good(
        rg.score.Bilinear.learned, {"num_labels": 3, "num_heads": 2, "head_dim": 4, "device": "cpu", "dtype": None}
    ),
    "relation_attention_with_aux": lambda: _attention(rg.relation_attention_with_aux, need_lse=True, **FULL),
    "edge_attention": _edges,
    "merge": _merge,
    "which_impl": lambda: _attention(rg.which_impl, **FULL),
}
