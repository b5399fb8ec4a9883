"""Inkling and Inkling 2: each query mixes a bank of profiles over the distance into the scores of the keys before it.

    e_ij = s · q_i·k_j + τ_i (r_i P)[i − j]    for 0 ≤ i − j < extent

Farther keys have only the product; sliding layers do not see them. τ grows with the position in layers that are not
sliding. The scale s is 1/d, in Inkling 2 1/√d; there each query also has a sink, a score without a value.

transformers gathers these scores for all pairs. In a patched model the attention gets r_i P, ``[B, H, N, extent]``.

Source: the code of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.interop.transformers.common import compute, split_heads, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.rows import rows_before
from relgraph.labels.memory import memory_of


class InklingMixin:
    """The forward of ``InklingAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        conv_mask: Tensor | None = None,
        cache: Any = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights or None."""
        size = self.head_dim
        query = self.q_norm(split_heads(self.q_proj(hidden_states), size))
        key = self.k_norm(split_heads(self.k_sconv(self.k_proj(hidden_states), cache, conv_mask), size))
        value = split_heads(self.v_sconv(self.v_proj(hidden_states), cache, conv_mask), size)
        mixture = split_heads(self.r_proj(hidden_states), self.config.d_rel)
        floor = None if self.is_sliding else self.config.log_scaling_n_floor
        if floor is not None:
            first = 0 if cache is None else cache.get_query_offset(self.layer_idx)
            places = torch.arange(query.shape[2], device=query.device) + first
            query, mixture = (_grown(self, x, places) for x in (query, mixture))
        profiles = self.rel_logits_proj.proj
        output, weights = _attended(self, query, key, value, mixture, profiles, attention_mask, cache, given)
        return self.o_proj(output), weights


class Inkling2Mixin:
    """The forward of ``Inkling2SlidingAttention`` and ``Inkling2FullAttention``, and of the copies in a loop.

    Keys and values may come from other states, and each pass through a loop has layers of its own in the cache.
    """

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        *,
        attention_mask: Tensor | None = None,
        relative_distance: Tensor | None = None,  # noqa: ARG002  # the cache says it
        conv_mask: Tensor | None = None,
        cache: Any = None,
        key_hidden_states: Tensor | None = None,
        value_hidden_states: Tensor | None = None,
        cache_offset: int = 0,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights or None."""
        conv = {"cache": cache, "conv_mask": conv_mask, "cache_offset": cache_offset} | given
        states, places, bias = hidden_states, given["position_ids"], self.relative_position_bias
        key = self.k_proj(states if key_hidden_states is None else key_hidden_states, **conv)
        value = self.v_proj(states if value_hidden_states is None else value_hidden_states, **conv)
        mixture = bias.norm(bias.linear(states).unflatten(-1, (self.num_heads, -1)), places).transpose(1, 2)
        output, weights = _attended(
            self, self.q_proj(states, places), key, value, mixture, bias.proj, attention_mask, cache, given,
            self.sink_proj(states).transpose(1, 2), self.layer_idx + cache_offset,
        )  # fmt: skip
        return self.o_proj(output, states), weights


def _grown(module: Any, x: Tensor, places: Tensor) -> Tensor:
    """``x`` times τ, the factor at these positions ``[..., N]``, in float32 as in transformers."""
    config = module.config
    excess = ((places + 1).float() / config.log_scaling_n_floor).clamp(min=1.0)
    return (x.float() * (1.0 + config.log_scaling_alpha * excess.log())[..., None]).to(x.dtype)


def _attended(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixture: Tensor,
    profiles: Tensor,
    mask: Tensor | None,
    cache: Any,
    given: dict[str, Any],
    sinks: Tensor | None = None,
    layer: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B, N, H · D]`` and the weights; ``mixture`` is τ_i r_i, ``[B, H, N, d_rel]``."""
    q_len, offset, layer = query.shape[2], 0, module.layer_idx if layer is None else layer
    if cache is not None:
        offset = cache.get_query_offset(layer) - cache.get_mask_sizes(q_len, layer)[1]
        key, value = cache.update(key, value, layer)
    k_len = key.shape[2]
    if q_len == k_len < profiles.shape[1] and not torch.compiler.is_compiling():
        profiles = profiles[:, :k_len]  # no pair is farther
    extent = profiles.shape[1]
    labels = rows_before(extent, near_only=module.is_sliding)(q_len, k_len, q_offset=offset)
    return compute(
        module, query, key, value, labels, mask=_of_keys(mask, offset, extent if module.is_sliding else k_len),
        dropout=module.attention_dropout, scale=module.scaling, need_weights=wants_weights(module, given),
        row_sinks=sinks, is_causal=False, row_scores=mixture @ profiles,
    )  # fmt: skip


def _of_keys(mask: Tensor | None, offset: Any, extent: int) -> Tensor | None:
    """The mask of keys, ``[B, 1, 1, N_k]``, if a mask of pairs says nothing else that the labels do not say.

    All layers get the same tensor, which is read once; on a GPU or in a graph it stays as it is.
    """
    if mask is None or mask.shape[-2] == 1 or not mask.is_cpu or torch.compiler.is_compiling():
        return mask

    first, (q_len, k_len) = int(offset), mask.shape[-2:]

    def found() -> tuple[bool, Tensor | None]:
        seen = mask if mask.dtype == torch.bool else mask == 0
        # keys before the queries are seen by the first of them, and each other key by its own query
        own = seen[..., first : first + q_len].diagonal(dim1=-2, dim2=-1)
        keys = functional.pad(torch.cat((seen[..., 0, :first], own), -1), (0, k_len - first - q_len), value=True)
        keys, last = keys[..., None, :], torch.arange(first, first + q_len)[:, None]
        wanted = (torch.arange(k_len) <= last) & (torch.arange(k_len) > last - extent) & keys
        if seen is not mask:
            wanted = torch.zeros_like(mask).masked_fill_(~wanted, torch.finfo(mask.dtype).min)
        return torch.equal(mask, wanted), None if keys.all() else keys

    simple, keys = memory_of([mask]).once(("keys", first, extent), found)
    return keys if simple else mask


_KINDS = {
    "inkling.InklingAttention": InklingMixin,
    "inkling2.Inkling2SlidingAttention": Inkling2Mixin,
    "inkling2.Inkling2FullAttention": Inkling2Mixin,
    "inkling2_loop.Inkling2LoopSlidingAttention": Inkling2Mixin,
    "inkling2_loop.Inkling2LoopFullAttention": Inkling2Mixin,
}
FAMILY = Family(
    "inkling",
    "Inkling, Inkling 2",
    _KINDS,
)
