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

from relgraph.interop.bert import KEY_QUERY, KINDS
from relgraph.interop.transformers.common import rows_of, split_heads, with_cache
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.relation import lent, offset_of
from relgraph.interop.transformers.rows import Rows, cut_to_length, rows_by_query_minus_key
from relgraph.interop.transformers.self_attention import ByArgumentMixin, SelfAttentionMixin
from relgraph.interop.transformers.words import CACHE, cache_of
from relgraph.labels import Labels

ESM = "esm.EsmSelfAttention"


def labeler_of(module: Any) -> Rows:
    """The row of ``distance_embedding`` for each distance."""
    return rows_by_query_minus_key(1 - module.max_position_embeddings, module.max_position_embeddings - 1)


class BertMixin(SelfAttentionMixin):
    """The forward of ``BertSelfAttention`` and of its copies; attention over ``encoder_hidden_states`` if given."""

    _relgraph_words = (
        *SelfAttentionMixin._relgraph_words, "encoder_hidden_states", *CACHE, "cache_position",
    )  # fmt: skip
    _relgraph_asked = ByArgumentMixin._relgraph_asked

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        others, cache, size = given.get("encoder_hidden_states"), cache_of(given), self.attention_head_size
        source = states if others is None else others
        key, value = with_cache(
            cache, getattr(self, "layer_idx", None),  # some know no cache
            lambda: (split_heads(self.key(source), size), split_heads(self.value(source), size)),
            {"cache_position": given.get("cache_position") if others is None else None}, over_others=others is not None,
        )  # fmt: skip
        given |= {"key_length": key.shape[2], "cached": cache is not None}
        return [split_heads(self.query(states), size), key, value]

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        lengths = states.shape[1], given["key_length"]
        labels, table = _labels_and_table(self, *lengths, given["cached"], states.device)
        return {"labels": labels, "key_table": table, "query_table": _if_both(self, table)}


class RelatedBertMixin(BertMixin):
    """The forward of the same modules with absolute positions, and a Relation that ``add_relations`` gave them."""

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        heads = super()._relgraph_heads(states, given)
        given["query"] = heads[0]
        return heads

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        mask, length, keys = given.get("attention_mask"), states.shape[1], given["key_length"]
        labels, offset = lent(self.relation), None
        if labels is None:
            offset = offset_of(length, keys, given.get("cache_position"), mask, self.is_decoder)
        labels, tables = self.relation(given["query"], keys, labels, offset)
        causal = mask is None and length > 1 and self.is_decoder  # a mask for fused attention may be left out
        return {"labels": labels, "is_causal": causal} | tables


class AlbertMixin(ByArgumentMixin):
    """The forward of ``AlbertAttention``, which ends with the projection and the layer norm."""

    def forward(self: Any, hidden_states: Tensor, *more: Any, **given: Any) -> tuple[Tensor, ...]:
        """Self-attention; the output, and the weights if they are wanted."""
        output, *weights = super().forward(hidden_states, *more, **given)
        return self.LayerNorm(hidden_states + self.output_dropout(self.dense(output))), *weights

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        length = states.shape[1]
        labels, table = _labels_and_table(self, length, length, False, states.device)
        table = table * self.attention_head_size**0.5  # ALBERT adds its terms after the division
        return {"labels": labels, "key_table": table, "query_table": _if_both(self, table)}


class EsmMixin(BertMixin):
    """The forward of ``EsmSelfAttention``, whose queries are divided by √d before all terms: k_j·a is not divided."""

    _relgraph_words = (
        *SelfAttentionMixin._relgraph_words, "encoder_hidden_states", "encoder_attention_mask", "position_embeddings",
    )  # fmt: skip
    _relgraph_asked = SelfAttentionMixin._relgraph_asked

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        for name in CACHE:  # it has no cache
            given.pop(name, None)
        return super()._relgraph_heads(states, given)

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        terms = super()._relgraph_terms(states, given)
        if terms["query_table"] is not None:
            terms["query_table"] = terms["query_table"] * self.attention_head_size**0.5
        if given.get("encoder_hidden_states") is not None:
            terms["mask"] = given.get("encoder_attention_mask")
        return terms


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


def _why_not(module: nn.Module) -> str | None:
    """Only two kinds of positions have tables; pruned heads are fine, because heads share them."""
    kind = getattr(module, "position_embedding_type", None)
    if kind in KINDS and hasattr(module, "distance_embedding"):
        return None
    if kind in (None, *KINDS):
        return "it has no tables: transformers 5 dropped position_embedding_type"
    return f"it has no tables: position_embedding_type is {kind!r}"


COPIES = (
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
"""The classes that go through no attention interface before transformers 5."""

_ALBERT = ("albert.AlbertAttention", "albert.AlbertSdpaAttention")
FAMILY = Family(
    "bert",
    "BERT, RoBERTa, ELECTRA, ALBERT, CamemBERT, XLM-RoBERTa (also XL), Data2Vec text, ERNIE, Megatron-BERT, RoCBert, "
    "X-MOD, BertGeneration, BridgeTower, AltCLIP and ESM with relative_key or relative_key_query, up to transformers 4",
    {**dict.fromkeys(COPIES, BertMixin), **dict.fromkeys(_ALBERT, AlbertMixin), ESM: EsmMixin},
    _why_not,
)
