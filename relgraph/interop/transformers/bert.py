"""BERT and similar models with the position type ``"relative_key"`` or ``"relative_key_query"``, up to transformers 4.

    e_ij = (q_i·k_j + q_i·a[i − j] + k_j·a[i − j]) / √d

Only ``relative_key_query`` has the last term. The rows of a count i − j from 1 − max_position_embeddings on, and all
heads share them. ALBERT does not divide the terms of a, ESM does not divide the last term. transformers 5 has neither
type.

With a cache, transformers counts the distances of *all* queries from the last key, whether one token is added or many.
So does this file, so that results agree. Only tokens that are added one by one have the distances of training.

Source: Shaw et al. 2018, equation 4; Huang et al. 2020, method 4; the code of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.bert import KEY_QUERY, KINDS, tables_of
from relgraph.interop.transformers.common import attend, refuse, rows_of, split_heads, wants_weights
from relgraph.interop.transformers.families import Family, kind_of
from relgraph.interop.transformers.layers import layer_of, plain_rows
from relgraph.interop.transformers.rows import Rows, cut_to_length, rows_by_query_minus_key
from relgraph.interop.transformers.self_attention import ByArgumentMixin
from relgraph.labelers import ClippedDistance
from relgraph.labels import Labels
from relgraph.nn import RelationAttention

ESM = "esm.EsmSelfAttention"


def labeler_of(module: Any) -> Rows:
    """The row of ``distance_embedding`` for each distance."""
    return rows_by_query_minus_key(1 - module.max_position_embeddings, module.max_position_embeddings - 1)


class BertMixin:
    """The forward of ``BertSelfAttention`` and of its copies."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: Any = None,
        output_attentions: bool | None = False,
        cache_position: Tensor | None = None,
        past_key_value: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention; or attention over ``encoder_hidden_states`` if they are given.

        Returns:
            The output, and the weights or None.
        """
        refuse(self, {"head_mask": head_mask}, "head_mask")
        cache = past_key_value if past_key_values is None else past_key_values  # the old name goes with 4.58
        size = self.attention_head_size
        query = split_heads(self.query(hidden_states), size)
        key, value = _keys_and_values(self, hidden_states, encoder_hidden_states, cache, cache_position)
        labels, table = _labels_and_table(self, query.shape[2], key.shape[2], cache is not None, query.device)
        return attend(
            self, query, key, value, labels, mask=attention_mask, dropout=self.dropout.p, scale=size**-0.5,
            need_weights=bool(output_attentions), key_table=table, query_table=_if_both(self, table),
        )  # fmt: skip


class AlbertMixin(ByArgumentMixin):
    """The forward of ``AlbertAttention``, which ends with the projection and the layer norm."""

    _relgraph_arguments = ("attention_mask", "head_mask", "output_attentions")

    def forward(self: Any, hidden_states: Tensor, *more: Any, **given: Any) -> tuple[Tensor, ...]:
        """Self-attention; the output, and the weights if they are wanted."""
        output, *weights = super().forward(hidden_states, *more, **given)
        return self.LayerNorm(hidden_states + self.output_dropout(self.dense(output))), *weights

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        length = states.shape[1]
        labels, table = _labels_and_table(self, length, length, False, states.device)
        table = table * self.attention_head_size**0.5  # ALBERT adds its terms after the division
        return {
            "labels": labels, "mask": given.get("attention_mask"), "key_table": table,
            "query_table": _if_both(self, table),
        }  # fmt: skip


class EsmMixin:
    """The forward of ``EsmSelfAttention``, whose queries are divided by √d before all terms: k_j·a is not divided."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention; or attention over ``encoder_hidden_states`` if they are given.

        Returns:
            The output, and the weights or None.
        """
        refuse(self, {"head_mask": head_mask}, "head_mask")
        size = self.attention_head_size
        if encoder_hidden_states is not None:
            attention_mask = encoder_attention_mask
        query = split_heads(self.query(hidden_states), size)
        key, value = _keys_and_values(self, hidden_states, encoder_hidden_states, None, None)
        labels, table = _labels_and_table(self, query.shape[2], key.shape[2], False, query.device)
        return attend(
            self, query, key, value, labels, mask=attention_mask, dropout=self.dropout, scale=size**-0.5,
            need_weights=wants_weights(self, given), key_table=table, query_table=_if_both(self, table * size**0.5),
        )  # fmt: skip


def _labels_and_table(module: Any, q_len: int, k_len: int, cached: bool, device: torch.device) -> tuple[Labels, Tensor]:
    """The labels of all pairs and the table whose rows they name."""
    most = module.max_position_embeddings
    if max(q_len, k_len) > most:
        raise ValueError(
            f"hidden_states must have at most {most} positions, the max_position_embeddings of {type(module).__name__}"
            f", got {q_len} queries and {k_len} keys: distance_embedding has no rows for farther ones"
        )
    labeler, table = labeler_of(module), rows_of(module.distance_embedding)
    if not cached:
        rows, labeler = cut_to_length(labeler, q_len, k_len)
        return labeler(q_len, k_len, q_offset=0), table[rows]
    if q_len == 1:
        return labeler(1, k_len, q_offset=k_len - 1), table
    keys = torch.arange(k_len, device=device)
    return labeler.at(keys[-1:].expand(q_len), keys), table


def _if_both(module: Any, table: Tensor) -> Tensor | None:
    """The table for keys' products too."""
    return table if module.position_embedding_type == KEY_QUERY else None


def _keys_and_values(
    module: Any, states: Tensor, others: Tensor | None, cache: Any, position: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Keys and values ``[B, H, N, D]`` with those of the cache."""
    layer, size = getattr(module, "layer_idx", None), module.attention_head_size  # some know no cache
    two = hasattr(cache, "cross_attention_cache")
    own = cache
    if two:
        own = cache.self_attention_cache if others is None else cache.cross_attention_cache
        if others is not None and cache.is_updated.get(layer):
            return own.layers[layer].keys, own.layers[layer].values
    source = states if others is None else others
    key, value = split_heads(module.key(source), size), split_heads(module.value(source), size)
    if cache is None:
        return key, value
    key, value = own.update(key, value, layer, {"cache_position": position if others is None else None})
    if two and others is not None:
        cache.is_updated[layer] = True
    return key, value


def convert(module: Any) -> tuple[RelationAttention, ClippedDistance]:
    """A layer with the weights of a module; see :func:`relgraph.interop.transformers.convert`."""
    tables, labeler = tables_of(plain_rows(module, "distance_embedding"), module.position_embedding_type)
    if kind_of(module) == ESM and "query" in tables:
        tables["query"] = tables["query"] * module.attention_head_size**0.5
    return layer_of(module, tables, labeler), labeler


def _why_not(module: nn.Module) -> str | None:
    """Only two kinds of positions have tables; pruned heads are fine, because heads share them."""
    kind = getattr(module, "position_embedding_type", None)
    if kind in KINDS and hasattr(module, "distance_embedding"):
        return None
    if kind in (None, *KINDS):
        return "it has no tables: transformers 5 dropped position_embedding_type"
    return f"it has no tables: position_embedding_type is {kind!r}"


_COPIES = (
    "altclip.AltRobertaSelfAttention",
    "bert.BertSelfAttention",
    "bert.BertSdpaSelfAttention",
    "bert_generation.BertGenerationSelfAttention",
    "bridgetower.BridgeTowerSelfAttention",
    "camembert.CamembertSelfAttention",
    "camembert.CamembertSdpaSelfAttention",
    "data2vec.Data2VecTextSelfAttention",
    "electra.ElectraSelfAttention",
    "ernie.ErnieSelfAttention",
    "megatron_bert.MegatronBertSelfAttention",
    "roberta.RobertaSelfAttention",
    "roberta.RobertaSdpaSelfAttention",
    "roberta_prelayernorm.RobertaPreLayerNormSelfAttention",
    "roc_bert.RoCBertSelfAttention",
    "xlm_roberta.XLMRobertaSelfAttention",
    "xlm_roberta.XLMRobertaSdpaSelfAttention",
    "xlm_roberta_xl.XLMRobertaXLSelfAttention",
    "xlm_roberta_xl.XLMRobertaXLSdpaSelfAttention",
    "xmod.XmodSelfAttention",
)
_ALBERT = ("albert.AlbertAttention", "albert.AlbertSdpaAttention")
FAMILY = Family(
    "bert",
    "BERT, RoBERTa, ELECTRA, ALBERT, CamemBERT, XLM-RoBERTa (also XL), Data2Vec text, ERNIE, Megatron-BERT, RoCBert, "
    "X-MOD, BertGeneration, BridgeTower, AltCLIP and ESM with relative_key or relative_key_query, up to transformers 4",
    {**dict.fromkeys(_COPIES, BertMixin), **dict.fromkeys(_ALBERT, AlbertMixin), ESM: EsmMixin},
    _why_not,
    convert,
    no_layer=dict.fromkeys(_ALBERT, "it ends with a residual connection and a layer norm, which the layer has not"),
)
