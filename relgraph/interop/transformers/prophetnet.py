"""ProphetNet's decoder: biases by bucket that each query computes itself, in a main stream and one per future token.

    main:         e_ij = q_i·k_j / √d + g_i[bucket(j − i)],          j ≤ i,          g = W h
    stream s ≥ 0: e_ij = q_i·k_j / √d + g_i[bucket(j − i − 1)],      j ≤ i − s,      over the keys of the main stream,
                  and   q_i·κ_i / √d + g_i[bucket(0)]                for its own key κ_i

In each stream key 0 is seen by all queries. transformers gathers g for all pairs and, in the streams, for twice as many
keys, of which each query sees one more. Here the score of that key joins the softmax of the others.

In a patched model the decoder passes a mask of keys in place of masks and buckets of all pairs. A step after the keys
of a cache has no mask.

Source: Qi et al. 2020, section 3.2; the code of transformers for the buckets, which are those of T5's decoders.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.interop.transformers.common import compute, made_once, refuse, score_of_row, split_heads, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.rows import Rows
from relgraph.labelers import BucketedDistance
from relgraph.labels import EdgeLabels, Labels
from relgraph.labels.base import NOT_ATTENDING
from relgraph.labels.memory import Memory

ASKED = "_relgraph_asked"
"""The attribute of a patched attention that says whether its decoder wants weights."""


@dataclass(frozen=True)
class _Keys:
    """What a patched decoder passes for its masks: which keys to see, ``[B, 1, 1, N]``, or all of them."""

    seen: Tensor | None


class ProphetNetDecoderMixin:
    """What ``ProphetNetDecoder`` passes to its layers."""

    _relgraph_mixin = True

    def forward(self: Any, *args: Any, **given: Any) -> Any:
        """The decoder itself, after its attention modules know whether to return weights."""
        for module in self.modules():
            if isinstance(module, ProphetNetMixin):
                module.__dict__[ASKED] = wants_weights(self, given)
        return super().forward(*args, **given)  # type: ignore[misc]  # of the class of transformers

    def prepare_attention_mask(self, hidden_states: Any, attention_mask: Tensor | None) -> _Keys:  # noqa: ARG002
        """A mask of keys, because the labels say that the model is causal."""
        return _Keys(None if attention_mask is None else attention_mask[:, None, None].bool())

    def prepare_predict_attention_mask(self, hidden_states: Any, attention_mask: Any) -> None:
        """Nothing: the mask of the main stream says it."""

    def compute_buffered_relative_buckets(self, position_ids: Any) -> tuple[None, None]:  # noqa: ARG002
        """Nothing, because the labels count the distances."""
        return None, None


def labeler_of(module: Any) -> BucketedDistance:
    """The buckets of a module."""
    return BucketedDistance(module.num_buckets, module.relative_max_distance, bidirectional=False)


class ProphetNetMixin:
    """The forward of ``ProphetNetNgramSelfAttention`` before transformers 5.24, which takes a ``cache``."""

    _relgraph_mixin = True
    _relgraph_words = (
        "layer_head_mask", "cache_position", "extended_predict_attention_mask", "main_relative_position_buckets",
        "predict_relative_position_buckets", "position_ids",
    )  # fmt: skip

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)

    def forward(
        self: Any,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: _Keys | None = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output of all streams ``[B, (1 + streams) · N, E]``, and the weights of the main one and the others."""
        refuse(self, given, "layer_head_mask")
        if attention_mask is not None and not isinstance(attention_mask, _Keys):
            raise TypeError(
                f"attention_mask must come from a patched decoder in a patched {type(self).__name__}, got "
                f"{type(attention_mask).__name__}: patch the whole model"
            )
        streams = 1 + self.ngram
        query, key, value = (
            split_heads(project(hidden_states), self.head_dim).chunk(streams, 2)
            for project in (self.query_proj, self.key_proj, self.value_proj)
        )
        keys, values = key[0], value[0]
        if past_key_values is not None:
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            keys, values = cache.update(keys, values, self.layer_idx)
        options = {
            "mask": None if attention_mask is None else attention_mask.seen, "dropout": self.attention_dropout,
            "scale": self.head_dim**-0.5, "need_weights": self.__dict__.get(ASKED, False),
        }  # fmt: skip
        labeler, step = made_once(self, "labeler", labeler_of), attention_mask is None
        lengths = query[0].shape[2], keys.shape[2]
        outputs, all_weights = [], []
        scores = _scores(self, hidden_states, streams)
        for stream, (q, own_key, own_value, by_bucket) in enumerate(zip(query, key, value, scores, strict=True)):
            if stream == 0:
                labels = labeler(*lengths, q_offset=lengths[1] - lengths[0])
                more = {"is_causal": not step}
            else:
                labels = _ahead(labeler, *lengths, stream, step, q.device)
                more = {
                    "row_sinks": score_of_row(q, own_key, options["scale"]) + by_bucket[..., 0],
                    "sink_values": own_value, "is_causal": False,
                }  # fmt: skip
            output, weights = compute(self, q, keys, values, labels, row_scores=by_bucket, **more, **options)
            outputs.append(output)
            all_weights.append(weights)
        output = functional.dropout(self.out_proj(torch.cat(outputs, 1)), self.dropout, self.training)
        main, *others = all_weights
        if main is None:
            return output, None, None
        rest = [torch.cat((x, torch.diag_embed(1 - x.sum(-1))), -1) for x in others]
        return output, main, torch.stack(rest, 1)


def _scores(module: Any, states: Tensor, streams: int) -> list[Tensor]:
    """What each bucket adds to the scores of each query, ``[B, H, N, R]`` for each stream.

    Outside the main stream transformers reads the numbers of other queries and heads: it takes ``[N, streams, H]`` for
    ``[streams, H, N]``. Checkpoints compute with that, so it is kept.
    """
    found = module.relative_pos_embeddings(states).unflatten(1, (streams, -1)).unflatten(-1, (module.num_buckets, -1))
    others = found[:, 1:].permute(0, 2, 1, 4, 3)
    length, count, heads = others.shape[1:4]
    return [found[:, 0].permute(0, 3, 1, 2), *others.reshape(-1, count, heads, length, module.num_buckets).unbind(1)]


def _ahead(labeler: BucketedDistance, q_len: int, k_len: int, stream: int, step: bool, device: torch.device) -> Labels:
    """Labels of the keys that the main stream gives to another stream, the first of which is 1.

    A query sees keys at least ``stream - 1`` before it, and key 0; in a step after a cache it sees all.
    """
    if step:
        return labeler(q_len, k_len, q_offset=k_len - q_len + 1)
    near, early = _rows(labeler, stream)(q_len, k_len, q_offset=1), min(stream - 1, q_len)
    if early == 0:
        return near

    def made() -> Labels:
        queries = torch.arange(early, device=device)
        ids = [labeler.lookup[max(labeler.reach - 1 - query, 0)] for query in range(early)]
        edges, ids = torch.stack((queries * 0, queries)), torch.tensor(ids, device=device)
        return EdgeLabels(edges, ids, labeler.num_labels, q_len=q_len, k_len=k_len, default=near)

    return _made.once((labeler, q_len, k_len, stream, device), made)


_made = Memory()
"""The labels of streams whose first queries see key 0 only, for all layers and steps of training."""


@functools.lru_cache(maxsize=64)
def _rows(labeler: BucketedDistance, stream: int) -> Rows:
    """The bucket of each distance up to ``-stream``, counted from the key after the query; later keys are not seen."""
    reach = max(labeler.reach, stream)
    ids = tuple(labeler.lookup[max(distance + labeler.reach, 0)] for distance in range(-reach, 1 - stream))
    return Rows((*ids, *(NOT_ATTENDING,) * stream), reach, labeler.num_labels)


_KINDS = {
    "prophetnet.ProphetNetNgramSelfAttention": ProphetNetMixin,
    "prophetnet.ProphetNetDecoder": ProphetNetDecoderMixin,
}
FAMILY = Family(
    "prophetnet",
    "the decoder of ProphetNet",
    _KINDS,
    no_layer=dict.fromkeys(
        _KINDS,
        "each query computes its own biases of the buckets, and the tables of a layer are the same for all queries",
    ),
    whole={"prophetnet.ProphetNetDecoder": "prophetnet.ProphetNetNgramSelfAttention"},
)
