"""Other libraries' own code, where installed: Hugging Face's BERT and OpenNMT-py, with given query, key and value."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn

from docs.benchmarks import restated


class Given(nn.Module):
    """Replaces a projection: returns ``[B, N, H·D]`` that is already projected, for any input."""

    def __init__(self, projected: Tensor) -> None:
        super().__init__()
        self.projected = [projected]  # in a list, so that it is not a parameter of this module

    def forward(self, _: Tensor) -> Tensor:
        # a copy, like the output of a projection, because OpenNMT-py scales it in place
        return self.projected[0].transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(2)


Call = Callable[[], Tensor]


def bert(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor) -> tuple[Call, str]:
    """BERT's ``relative_key`` self-attention and a note: transformers' own if available, else restated."""
    made = _transformers_bert(query, key, value, key_table)
    if isinstance(made, str):
        return lambda: restated.bert_relative_key(query, key, value, key_table), f"restated ({made})"
    return made, f"transformers {import_module('transformers').__version__}"


def _transformers_bert(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor) -> Call | str:
    """The call, or the reason why there is none."""
    try:
        config_of = import_module("transformers").BertConfig
        attention = import_module("transformers.models.bert.modeling_bert").BertSelfAttention
    except ImportError as error:
        return f"transformers 4.56 is not installed: {error}"
    if "position_embedding_type" not in inspect.signature(attention).parameters:
        return "this transformers has no relative_key any more; 4.56 has"
    batch, heads, length, size = query.shape
    config = config_of(
        hidden_size=heads * size, num_attention_heads=heads, max_position_embeddings=(key_table.shape[0] + 1) // 2,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = attention(config, position_embedding_type="relative_key")
    module.query, module.key, module.value = Given(query), Given(key), Given(value)
    hand_over(module.distance_embedding, "weight", key_table)
    hidden = query.new_empty(batch, length, heads * size)
    return lambda: module(hidden)[0].unflatten(2, (heads, size)).transpose(1, 2)


def opennmt(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> tuple[Call, str]:
    """OpenNMT-py's relative attention and a note: its own module if available, else restated."""
    made = _onmt_attention(query, key, value, table)
    if isinstance(made, str):
        return lambda: restated.opennmt(query, key, value, table), f"restated ({made})"
    return made, f"OpenNMT-py {import_module('onmt').__version__}"


def _onmt_attention(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Call | str:
    """The call, or the reason why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attention = import_module("onmt.modules.multi_headed_attn").MultiHeadedAttention
    except ImportError as error:
        return f"OpenNMT-py is not installed: {error}"
    batch, heads, length, size = query.shape
    module = attention(
        heads, heads * size, dropout=0.0, is_decoder=False, max_relative_positions=table.shape[0] // 2, attn_type="self"
    )
    module.linear_query, module.linear_keys, module.linear_values = Given(query), Given(key), Given(value)
    module.final_linear = nn.Identity()
    hand_over(module.relative_positions_embeddings, "weight", table)
    hidden = query.new_empty(batch, length, heads * size)
    return lambda: module(hidden, hidden, hidden)[0].unflatten(2, (heads, size)).transpose(1, 2)


def hand_over(module: nn.Module, name: str, table: Tensor) -> None:
    """Make a module use a trainable table that is not its own parameter."""
    delattr(module, name)
    setattr(module, name, table)
