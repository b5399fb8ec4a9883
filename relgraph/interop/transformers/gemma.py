"""The audio encoders of Gemma 3n and Gemma 4: key tables of sines, capped scores, blocks of queries with a few keys.

    e_ij = cap · tanh(s_i / cap),  s_i = q_i·(k_j + R[i − j]),  R = W·sines

A query sees the keys of a window. The code of transformers computes a block of queries at a time, with the keys that
one of them sees; here the blocks are the batch of one call. A query that sees no key, in padding, gets the mean of the
values of its block, as it does there.

Source: the code of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.interop.transformers.common import compute, made_once, split_heads, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.rows import Rows
from relgraph.labels import UNLABELED
from relgraph.labels.memory import memory_of
from relgraph.score import Softcap


class _BlocksMixin:
    _relgraph_mixin = True

    def _relgraph_prepare(self) -> None:
        """Make everything that a recorded graph may not wait for."""
        made_once(self, "labeler", labeler_of)


class Gemma3nMixin(_BlocksMixin):
    """The forward of ``Gemma3nAudioAttention``."""

    def forward(self: Any, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """The output ``[B, N, H, D]``; ``mask`` is True at frames that are padding, ``[B, N]``."""
        heads = _projected(self, hidden_states, hidden_states.dtype)
        positions = self.relative_position_embedding
        past, future = self.max_past_horizon, self.max_future_horizon
        distances = torch.arange(past, -future - 1, -1, device=heads[0].device)
        rows = positions.pos_proj(positions._get_timing_signal_1d_pos(distances[None], heads[0].dtype))

        def seen() -> Tensor:
            return self._extract_block_context(~mask)[:, :, None] & self.local_causal_valid_mask.to(mask.device)

        output, _ = _in_blocks(self, heads, rows, _pairs(mask, (self.chunk_size, past, future), seen))
        return output.unflatten(-1, (-1, self.head_dim))


class Gemma4Mixin(_BlocksMixin):
    """The forward of ``Gemma4AudioAttention``."""

    def forward(
        self: Any, hidden_states: Tensor, position_embeddings: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights; ``attention_mask`` is ``[B, 1, blocks, queries, keys]``, 0 for pairs to see."""
        query, key, value = _projected(self, hidden_states, torch.promote_types(hidden_states.dtype, torch.float32))
        rows = self.relative_k_proj(position_embeddings).to(query.dtype)
        mask, batch = attention_mask, len(query)
        pairs = None if mask is None else _pairs(mask, batch, lambda: (mask == 0)[:, 0].expand(batch, -1, -1, -1))
        heads = query, key * self.k_scale, value
        output, weights = _in_blocks(self, heads, rows, pairs, need_weights=wants_weights(self, {}))
        return self.post(output.to(hidden_states.dtype)), weights


def _projected(module: Any, states: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values ``[B, N, H, D]``; queries are scaled, each dimension by a factor of its own, too."""
    query, key, value = (
        project(states).to(dtype).unflatten(-1, (-1, module.head_dim))
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    return query * module.q_scale * functional.softplus(module.per_dim_scale), key, value


def _pairs(mask: Tensor, key: Any, make: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """The pairs that are seen, ``[B · blocks, 1, queries, keys]``, and the queries that see none, or None for none.

    ``make`` makes the first, ``[B, blocks, queries, keys]``, once for all layers, which get the same mask.
    """

    def made() -> tuple[Tensor, Tensor | None]:
        seen = make().flatten(0, 1)
        blind = ~seen.any(-1)
        known = blind.is_cpu and not torch.compiler.is_compiling()  # a GPU would have to wait
        return seen[:, None], None if known and not blind.any() else blind

    return made() if torch.compiler.is_compiling() else memory_of([mask]).once(("blocks", key), made)


def _in_blocks(
    module: Any,
    heads: tuple[Tensor, ...],
    rows: Tensor,
    pairs: tuple[Tensor, Tensor | None] | None,
    *,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B, N, H · D]`` for heads ``[B, N, H, D]`` and rows ``[1, R, H · D]``, and the weights or None."""
    batch, length = heads[0].shape[:2]
    blocks = module._convert_to_block(heads[0]), *map(module._extract_block_context, heads[1:])
    query, key, value = (x.flatten(0, 1).transpose(1, 2) for x in blocks)
    labels = made_once(module, "labeler", labeler_of)(query.shape[2], key.shape[2], q_offset=module.max_past_horizon)
    seen, blind = (None, None) if pairs is None else pairs
    output, weights = compute(
        module, query, key, value, labels, mask=seen, dropout=0.0, scale=1.0, need_weights=need_weights,
        key_table=split_heads(rows, module.head_dim)[0], score=Softcap(module.attention_logits_soft_cap),
    )  # fmt: skip
    if blind is not None:
        output = output + blind[..., None] * value.mean(2).flatten(1)[:, None]
        weights = None if weights is None else weights + blind[:, None, :, None].to(weights.dtype) / key.shape[2]
    weights = None if weights is None else weights.unflatten(0, (batch, -1)).transpose(1, 2)
    return output.reshape(batch, -1, output.shape[-1])[:, :length], weights


def labeler_of(module: Any) -> Rows:
    """Row ``j − i + past`` of a table; other pairs, which a mask may let see, have no row."""
    past, count = module.max_past_horizon, module.context_size // 2 + 1  # Gemma 4 counts the keys of a block
    if hasattr(module, "relative_position_embedding"):
        count = past + module.max_future_horizon + 1
    beyond = (UNLABELED,) * max(1, past + 1 - count)  # the distance 0 must be among them
    return Rows((UNLABELED, *range(count), *beyond), past + 1, count)


def _why_not(module: Any) -> str | None:
    """Whether pairs that are hidden have weights, or rows of a table, half as many as keys, reach the next query."""
    keys, queries, hidden = module.context_size, module.chunk_size, module.config.attention_invalid_logits_value
    if hidden > -1e6:
        return f"attention_invalid_logits_value is {hidden}, so it attends to pairs that are masked"
    if keys // 2 < keys - queries + 2:
        return None
    return f"in blocks of {queries} queries and {keys} keys its rows of distances move into the next query's"


FAMILIES = tuple(
    Family(f"gemma{number}_audio", f"the audio encoder of Gemma {number}", {kind: mixin}, why_not)
    for number, kind, mixin, why_not in (
        ("3n", "gemma3n.Gemma3nAudioAttention", Gemma3nMixin, lambda _: None),
        ("4", "gemma4.Gemma4AudioAttention", Gemma4Mixin, _why_not),
    )
)  # fmt: skip
