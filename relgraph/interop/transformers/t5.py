"""T5 and similar models: a bias per head and bucket of the distance, products that are not scaled.

    e_ij = q_i·k_j + b[bucket(j − i)]
    UDOP's encoder:  e_ij = q_i·k_j + b[bucket(j − i)] + b_x[bucket(x_j − x_i)] + b_y[bucket(y_j − y_i)]

T5 learns b in the first layer of a stack and passes the bias of all pairs to the other layers. In a patched model the
first layer passes its table ``[H, R]`` instead, in the same place. UMT5 learns a table in each layer.

Source: Raffel et al. 2020, section 2.1; the code of transformers for the bucket rule, which
:class:`~relgraph.BucketedDistance` follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relgraph.interop.transformers.common import (
    Biases,
    compute,
    made_once,
    rows_of,
    shared_table,
    split_heads,
    wants_weights,
    with_cache,
)
from relgraph.interop.transformers.families import Family
from relgraph.labelers import BucketedDistance, Labeler, Window
from relgraph.labels import DenseLabels


def labeler_of(module: Any) -> BucketedDistance:
    """The buckets of a module."""
    return BucketedDistance(
        module.relative_attention_num_buckets,
        module.relative_attention_max_distance,
        bidirectional=not getattr(module, "is_decoder", True),  # Pix2Struct has decoders only
    )


class T5Mixin:
    """The forward of ``T5Attention`` and of its copies."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Any = None,
        **given: Any,
    ) -> tuple[Any, ...]:
        """The output; the table ``[H, R]`` in place of a position bias, None over ``key_value_states``; the weights."""
        return _attended(self, hidden_states, key_value_states, cache, mask, given, position_bias)


class UMT5Mixin(T5Mixin):
    """The forward of ``UMT5Attention``, which has its own table."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # other names
        self: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **given: Any,
    ) -> tuple[Any, ...]:
        """The output, over ``encoder_hidden_states`` if they are given, and the weights or None."""
        output, _, weights = _attended(self, hidden_states, encoder_hidden_states, cache, attention_mask, given)
        return output, weights


class LongT5LocalMixin:
    """The forward of ``LongT5LocalAttention``: keys at most ``local_radius`` away."""

    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", local_labeler_of)

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Any]:
        """The output and the table ``[H, R]``; ``mask`` is that of blocks, ``[B, 1, blocks, block, 3 · block]``."""
        kind = type(self).__name__
        if output_attentions:
            raise NotImplementedError(
                f"output_attentions must be False in a patched {kind}, got True: weights of blocks are never stored; "
                "unpatch(model) first"
            )
        if mask is None:
            raise ValueError(f"mask must be that of the encoder around a patched {kind}, got None")
        table, length = _table(self, position_bias), hidden_states.shape[1]
        query, key, value = (
            split_heads(project(hidden_states), self.key_value_proj_dim) for project in (self.q, self.k, self.v)
        )
        # each query's own key, which it sees unless it is padding; the labels say which others are near
        keys = mask[:, 0].diagonal(self.block_len, -2, -1).flatten(1)[:, None, None, :length]
        output, _ = compute(
            self, query, key, value, made_once(self, "labeler", local_labeler_of)(length), mask=keys > 0,
            dropout=self.dropout, scale=1.0, bias_table=table,
        )  # fmt: skip
        return self.o(output), table


def local_labeler_of(module: Any) -> Labeler:
    """The buckets of a module of the encoder of LongT5, within its radius."""
    return labeler_of(module) & Window(module.local_radius)


class UdopBiasMixin:
    """The forward of ``RelativePositionBiasAggregated``: a label and a table for each kind of distance.

    Distances on the page are rounded pair by pair, so that their labels are written out, for all heads.
    """

    _relgraph_mixin = True

    def forward(self: Any, attention_mask: Tensor | None = None, bbox: Any = None) -> Biases:
        """The labels and tables in place of the bias of all pairs."""
        if any(one.prefix_bucket for one in self.biases):
            raise NotImplementedError(
                "prefix_bucket must be False in the biases of a patched UDOP, got True: transformers ties their "
                "weights to a table that has no rows for a prefix"
            )
        tables = tuple(rows_of(one.relative_attention_bias).t() for one in self.biases)
        ids = [one.get_bucket(attention_mask, bbox) for one in self.biases]
        return Biases(tuple(DenseLabels(x, t.shape[1]) for x, t in zip(ids, tables, strict=True)), tables)


def _attended(
    module: Any,
    states: Tensor,
    others: Tensor | None,
    cache: Any,
    mask: Tensor | None,
    given: dict[str, Any],
    position_bias: Tensor | Biases | None = None,
) -> tuple[Tensor, Tensor | Biases | None, Tensor | None]:
    """The output, the table or tables if there are some, and the weights if they are wanted."""
    parts = module._modules
    names = ("q", "k", "v", "o") if "q" in parts else ("query", "key", "value", "output")  # the others: Pix2Struct
    *inputs, to_output = map(parts.__getitem__, names)
    query, key, value, offset = _projected(module, inputs, states, others, cache)
    table = _table(module, position_bias) if others is None else None
    if isinstance(table, Biases):
        terms = table.terms()
    else:
        lengths = query.shape[2], key.shape[2]
        labels = None if table is None else made_once(module, "labeler", labeler_of)(*lengths, q_offset=offset)
        terms = {"labels": labels, "bias_table": table}
    terms = {
        "mask": mask,
        "dropout": module.dropout,
        "scale": 1.0,
        "need_weights": wants_weights(module, given),
    } | terms
    output, weights = compute(module, query, key, value, **terms)
    return to_output(output), table, weights


def _table(module: Any, given: Tensor | Biases | None) -> Tensor | Biases | None:
    """The table ``[H, R]``: that of the first layer, if this is not the first; or the tables of UDOP's encoder."""
    if isinstance(given, Biases):
        return given
    if given is not None:
        return shared_table(given, "[H, R]")
    return rows_of(module._modules["relative_attention_bias"]).t() if module.has_relative_attention_bias else None


def _projected(
    module: Any, projections: Sequence[Any], states: Tensor, others: Tensor | None, cache: Any
) -> tuple[Tensor, Tensor, Tensor, int | Tensor]:
    """Queries, keys and values ``[B, H, N, D]`` with those of the cache, and the position of the first query."""
    size, layer = module.key_value_proj_dim, module.layer_idx
    to_query, to_key, to_value = projections
    query, source = split_heads(to_query(states), size), states if others is None else others
    if cache is None:
        return query, split_heads(to_key(source), size), split_heads(to_value(source), size), 0
    offset = 0
    if others is None:
        offset = cache.get_seq_length(layer)
        offset = offset.clone() if isinstance(offset, Tensor) else offset  # a static cache counts on in place
    key, value = with_cache(
        cache, layer, lambda: (split_heads(to_key(source), size), split_heads(to_value(source), size)),
        over_others=others is not None,
    )  # fmt: skip
    return query, key, value, offset


_STACKS = {
    "t5.T5Stack": "t5.T5Attention",
    "mt5.MT5Stack": "mt5.MT5Attention",
    "switch_transformers.SwitchTransformersStack": "switch_transformers.SwitchTransformersAttention",
    "pop2piano.Pop2PianoStack": "pop2piano.Pop2PianoAttention",
    "longt5.LongT5Stack": "longt5.LongT5Attention",
    "pix2struct.Pix2StructTextModel": "pix2struct.Pix2StructTextAttention",
}
"""The attention modules of these stacks share the bias of the first."""


T5 = Family(
    "t5",
    "T5, mT5, UMT5, Switch Transformers, Pop2Piano, the decoders of LongT5 and Pix2Struct",
    {**dict.fromkeys(_STACKS.values(), T5Mixin), "umt5.UMT5Attention": UMT5Mixin},
    whole=_STACKS,
)

UDOP = Family(
    "udop",
    "UDOP",
    {"udop.UdopAttention": T5Mixin, "udop.RelativePositionBiasAggregated": UdopBiasMixin},
    whole={"udop.UdopStack": "udop.UdopAttention"},
)
LONGT5 = Family(
    "longt5_local",
    "the encoder of LongT5 with local attention",
    {"longt5.LongT5LocalAttention": LongT5LocalMixin},
    whole={"longt5.LongT5Stack": "longt5.LongT5LocalAttention"},
)
FAMILIES = (T5, LONGT5, UDOP)
