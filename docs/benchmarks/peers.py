"""What others compute: the paper's products and the split term in plain torch; BERT and OpenNMT-py, where installed."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn

from docs.benchmarks.ways import NotRun


class Given(nn.Module):
    """Replaces a projection: returns ``[B, N, H·D]`` that is already projected, for any input."""

    def __init__(self, projected: Tensor) -> None:
        super().__init__()
        self.projected = [projected]  # in a list, so that it is not a parameter of this module

    def forward(self, _: Tensor) -> Tensor:
        # a copy, like the output of a projection, because OpenNMT-py scales it in place
        return self.projected[0].transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(2)


Call = Callable[[], Tensor]


def paper(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor, ids: Tensor) -> Tensor:
    """Eqs. 3 and 4 as in section 3.3 of Shaw et al. 2018: builds a[l_ij], then N products over batch and heads.

    Query, key and value are ``[B, H, N, D]``, tables ``[R, D]``, and ids ``[N, N]`` the label of each pair.
    """
    scores = query @ key.mT + _row_by_row(query, key_table[ids].mT)
    weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
    return weights @ value + _row_by_row(weights, value_table[ids])


def _row_by_row(x: Tensor, matrices: Tensor) -> Tensor:
    """``x[b, h, i] @ matrices[i]`` for every i as N batched products, ``[B, H, N, columns]``."""
    rows = x.flatten(0, 1).transpose(0, 1)  # [N, B·H, columns of x]
    return (rows @ matrices).transpose(0, 1).unflatten(0, x.shape[:2])


def split(
    query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor, ids: Tensor
) -> Tensor:  # fmt: skip
    """The split term over all pairs: gathers q·a^K by label, sums weights by label, then multiplies by a^V."""
    pairs = ids.expand(*query.shape[:2], -1, -1)
    scores = query @ key.mT + (query @ key_table.mT).gather(-1, pairs)
    scores = scores / math.sqrt(query.shape[-1])
    weights = scores.softmax(-1)
    mass = weights.new_zeros(*query.shape[:3], key_table.shape[0]).scatter_add(-1, pairs, weights)
    return weights @ value + mass @ value_table


def bert(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor) -> Call:
    """The call of BERT's ``relative_key`` self-attention in transformers.

    Raises:
        NotRun: transformers 4.56 is not installed.
    """
    try:
        package = import_module("transformers")
        attention = import_module("transformers.models.bert.modeling_bert").BertSelfAttention
    except ImportError as error:
        raise NotRun(f"not run: transformers 4.56 is not installed: {error}") from None
    if "position_embedding_type" not in inspect.signature(attention).parameters:
        raise NotRun("not run: this transformers has no relative_key any more; 4.56 has")
    batch, heads, length, size = query.shape
    config = package.BertConfig(
        hidden_size=heads * size, num_attention_heads=heads, max_position_embeddings=(key_table.shape[0] + 1) // 2,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = attention(config, position_embedding_type="relative_key")
    module.query, module.key, module.value = Given(query), Given(key), Given(value)
    hand_over(module.distance_embedding, key_table)
    hidden = query.new_empty(batch, length, heads * size)
    return lambda: module(hidden)[0].unflatten(2, (heads, size)).transpose(1, 2)


def opennmt(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Call:
    """The call of OpenNMT-py's relative attention, with one table for keys and values.

    Raises:
        NotRun: OpenNMT-py is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attention = import_module("onmt.modules.multi_headed_attn").MultiHeadedAttention
    except ImportError as error:
        raise NotRun(f"not run: OpenNMT-py is not installed: {error}") from None
    batch, heads, length, size = query.shape
    module = attention(
        heads, heads * size, dropout=0.0, is_decoder=False, max_relative_positions=table.shape[0] // 2, attn_type="self"
    )
    module.linear_query, module.linear_keys, module.linear_values = Given(query), Given(key), Given(value)
    module.final_linear = nn.Identity()
    hand_over(module.relative_positions_embeddings, table)
    hidden = query.new_empty(batch, length, heads * size)
    return lambda: module(hidden, hidden, hidden)[0].unflatten(2, (heads, size)).transpose(1, 2)


def hand_over(module: nn.Module, table: Tensor) -> None:
    """Make a module use a trainable table that is not its own parameter."""
    del module.weight
    module.weight = table
