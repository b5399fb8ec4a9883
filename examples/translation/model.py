"""The translator: a :class:`relgraph.RelationTransformer` whose sides and output share one embedding matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import relgraph as rg
from examples.translation.settings import ModelSettings
from examples.translation.vocabulary import PAD


class Translator(nn.Module):
    """A Transformer from ids of one language to ids of another.

    Initial embeddings have a standard deviation of width^-0.5, and the model multiplies them by width^0.5. The same
    matrix gives the output scores. Source: Vaswani et al. 2017, section 3.4.

    Args:
        settings: sizes and positions.
        vocabulary: number of ids.
    """

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Embedding(vocabulary, settings.width, padding_idx=PAD)
        self.transformer = _transformer(settings)
        nn.init.normal_(self.embedding.weight, std=settings.width**-0.5)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()

    @property
    def longest(self) -> int | None:
        """The most tokens on either side, including the start or the end; None for no limit."""
        return self.settings.max_len if self.settings.positions == "learned" else None

    def forward(self, source: Tensor, given: Tensor, wanted: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The loss of predicting each target from its beginning and its source.

        Args:
            source: ``[B, M]``, ids, padded on the right.
            given: ``[B, N]``, ids of the target with its start, padded on the right.
            wanted: ``[B, N]``, the id after each of ``given``; padding does not count.
            smoothing: weight of the uniform distribution in the loss.

        Returns:
            The smoothed loss in nats, summed over target tokens, and the negative log-likelihood, without gradient.
        """
        memory, padding = self.encode(source)
        logits = self.decode(given, memory, padding)
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        nll = -log_probs.gather(-1, wanted[..., None]).squeeze(-1)
        real = wanted != PAD
        loss = nll if smoothing == 0 else (1 - smoothing) * nll - smoothing * log_probs.mean(-1)
        return (loss * real).sum(), (nll.detach() * real).sum()

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory, ``[B, M, width]``, and its padding, ``[B, M]``."""
        padding = source == PAD
        return self.transformer.encode(self._embed(source), src_key_padding_mask=padding), padding

    def decode(self, target: Tensor, memory: Tensor, padding: Tensor, cache: rg.nn.StackCache | None = None) -> Tensor:
        """Scores of every id as the next one after each of ``target``'s ``[B, N]``: ``[B, N, V]``.

        With a ``cache`` from ``transformer.new_cache()``, ``target`` continues after the tokens in the cache.
        """
        x = self.transformer.decode(self._embed(target), memory, memory_key_padding_mask=padding, cache=cache)
        return functional.linear(x, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) * self.settings.width**0.5


def _transformer(settings: ModelSettings) -> rg.RelationTransformer:
    """The encoder and decoder; relative positions without any table are no positions."""
    width, heads, layers = settings.width, settings.heads, settings.layers
    kinds = [name for name, on in (("key", settings.key_table), ("value", settings.value_table)) if on]
    options: dict[str, Any] = {} if settings.positions == "rotary" else {"tables": ()}
    if kinds and settings.positions in ("relative", "both"):
        labeler = rg.ClippedDistance(settings.max_distance)
        tables = rg.RelationTables(
            labeler, width // heads, heads, kinds=kinds, per_head=settings.per_head, shared=False
        )
        options = {"labeler": labeler, "tables": tables}
    elif settings.positions == "alibi":
        labeler = rg.ClippedDistance(settings.max_len)
        options = {"labeler": labeler, "tables": rg.nn.alibi_tables(labeler, width // heads, heads)}
    absolute: Any = "sinusoidal" if settings.positions in ("sinusoidal", "both") else None
    if settings.positions == "learned":
        absolute = tuple(rg.nn.LearnedPositions(width, settings.max_len) for _ in range(2))
    elif settings.positions == "shifted":
        shift = rg.nn.ShiftedPositions(settings.max_len)
        absolute = tuple(rg.SinusoidalPositions(width, sampler=shift) for _ in range(2))
    sizes = (width, heads, settings.hidden, settings.dropout)
    encoder = rg.RelationEncoderLayer(*sizes, **options, attention=_rotary(settings))
    decoder = rg.RelationDecoderLayer(*sizes, **options, self_attention=_rotary(settings))
    made = rg.RelationTransformer(
        width, heads, dropout=settings.dropout, positions=absolute,
        custom_encoder=rg.RelationEncoder(encoder, layers, nn.LayerNorm(width)),
        custom_decoder=rg.RelationDecoder(decoder, layers, nn.LayerNorm(width)),
    )  # fmt: skip
    made.reset_parameters()  # Xavier-uniform matrices, as in torch.nn.Transformer
    return made


def _rotary(settings: ModelSettings) -> rg.RelationAttention | None:
    """The self-attention with rotary positions; None for other positions, whose attention the layer makes."""
    if settings.positions != "rotary":
        return None
    rotary = rg.RotaryPositions(settings.width // settings.heads)
    return rg.RelationAttention(settings.width, settings.heads, settings.dropout, rotary=rotary)
