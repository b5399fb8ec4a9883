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
        past_key_values: Any = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights or None."""
        size, conv = self.head_dim, {"past_key_values": past_key_values, "conv_mask": conv_mask}
        query = self.q_norm(split_heads(self.q_proj(hidden_states), size))
        key = self.k_norm(split_heads(self.k_sconv(self.k_proj(hidden_states), **conv), size))
        value = split_heads(self.v_sconv(self.v_proj(hidden_states), **conv), size)
        mixture = split_heads(self.r_proj(hidden_states), self.config.d_rel)
        floor = None if self.is_sliding else self.config.log_scaling_n_floor
        if floor is not None:
            first = 0 if past_key_values is None else past_key_values.get_query_offset(self.layer_idx)
            places = torch.arange(query.shape[2], device=query.device) + first
            query, mixture = (_grown(self, x, places) for x in (query, mixture))
        output, weights = _attended(self, query, key, value, mixture, attention_mask, past_key_values, given)
        return self.o_proj(output), weights


class Inkling2Mixin:
    """The forward of ``Inkling2SlidingAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights or None."""
        conv = {"past_key_values": past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(hidden_states), **conv)
        value = self.v_sconv(self.v_proj(hidden_states), **conv)
        return self._relgraph_attended(hidden_states, key, value, attention_mask, past_key_values, given)

    def _relgraph_attended(
        self: Any, states: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cache: Any, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the weights for keys and values ``[B, N, H_kv · D]``."""
        query = self.q_l2_clip(self.q_proj(states).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        key = self.k_l2_clip(split_heads(key, self.head_dim))
        value = split_heads(value, self.head_dim)
        value = self.v_norm(value.float()).to(value.dtype)
        mixture = self.rel_l2_clip(self.r_proj(states).unflatten(-1, (self.num_heads, -1))).transpose(1, 2)
        if not self.is_sliding:
            places = given["position_ids"][:, None]
            query, mixture = (_grown(self, x, places) for x in (query, mixture))
        sinks = self.sink_proj(states).transpose(1, 2)
        output, weights = _attended(self, query, key, value, mixture, mask, cache, given, sinks)
        gate = self.gate_proj(states).float().sigmoid()
        return self.o_proj((output.float() * gate).to(output.dtype)), weights


class Inkling2FullMixin(Inkling2Mixin):
    """The forward of ``Inkling2FullAttention``, whose keys and values come from other states."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # other names
        self: Any,
        hidden_states: Tensor,
        key_hidden_states: Tensor,
        value_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights or None."""
        conv = {"past_key_values": past_key_values, "conv_mask": conv_mask}
        key = self.k_sconv(self.k_proj(key_hidden_states), key_hidden_states, **conv)
        value = self.v_sconv(self.v_proj(value_hidden_states), value_hidden_states, **conv)
        return self._relgraph_attended(hidden_states, key, value, attention_mask, past_key_values, given)


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
    mask: Tensor | None,
    cache: Any,
    given: dict[str, Any],
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B, N, H · D]`` and the weights; ``mixture`` is τ_i r_i, ``[B, H, N, d_rel]``."""
    q_len, offset = query.shape[2], 0
    if cache is not None:
        offset = cache.get_query_offset(module.layer_idx) - cache.get_mask_sizes(q_len, module.layer_idx)[1]
        key, value = cache.update(key, value, module.layer_idx)
    k_len, profiles = key.shape[2], module.rel_logits_proj.proj
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

    simple, keys = found() if mask.is_inference() else memory_of([mask]).once(("keys", first, extent), found)
    return keys if simple else mask


FAMILY = Family(
    "inkling",
    "Inkling, Inkling 2",
    {
        "inkling.InklingAttention": InklingMixin,
        "inkling2.Inkling2SlidingAttention": Inkling2Mixin,
        "inkling2.Inkling2FullAttention": Inkling2FullMixin,
    },
    no_layer=dict.fromkeys(
        ("inkling.InklingAttention", "inkling2.Inkling2SlidingAttention", "inkling2.Inkling2FullAttention"),
        "each query mixes its own scores of the distances, and the tables of a layer are the same for all queries",
    ),
)
