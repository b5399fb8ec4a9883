"""Searches for translations, greedily or with a beam, in batches, with the decoder's cache."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from examples.translation.batches import Pairs
from examples.translation.model import Translator
from examples.translation.vocabulary import END, PAD, START, Vocabulary

BATCH_TOKENS = 4096
"""The most source tokens of a batch of lines, padding included."""


@dataclass(frozen=True)
class Search:
    """Settings of the search.

    A translation of n tokens, including its end, scores its log-likelihood divided by ((5 + n) / 6)^length_penalty.
    Source: Wu et al. 2016, section 7, without coverage. The search ends a translation that is ``extra`` tokens longer
    than its source, including the source's end.

    Attributes:
        beam: how many unfinished translations the search follows; 1 is greedy search.
        length_penalty: 0 for the most likely translation; higher values favour longer ones.
        extra: how many tokens longer than its source a translation may be.
    """

    beam: int = 4
    length_penalty: float = 0.6
    extra: int = 50

    def __post_init__(self) -> None:
        if self.beam < 1 or self.extra < 0 or not 0 <= self.length_penalty < math.inf:
            raise ValueError(f"beam must be at least 1, and extra and length_penalty at least 0, got {self}")

    def normalized(self, log_likelihood: float, length: int) -> float:
        """The score of a translation of ``length`` tokens."""
        return log_likelihood / ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: its ids without start and end, and its score."""

    ids: tuple[int, ...]
    score: float


@dataclass
class _Sentence:
    """The search for one sentence: its place in the batch, its length limit, and its finished translations."""

    index: int
    limit: int
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max((hypothesis.score for hypothesis in self.finished), default=float("-inf"))


@torch.inference_mode()
def search(model: Translator, source: Tensor, how: Search) -> list[Hypothesis]:
    """The best translation found for each row.

    Args:
        model: in evaluation mode.
        source: ``[B, M]``, ids with their end, padded on the right.
        how: beam and lengths.

    Raises:
        ValueError: the model's scores are NaN.
    """
    if not len(source):
        return []
    # learned positions limit the number of tokens; the start takes one
    most = sys.maxsize if model.longest is None else model.longest - 1
    limits = [min(length + how.extra, most) for length in (source != PAD).sum(-1).tolist()]
    return search_memory(model, model.encode(source), limits, how)


@torch.inference_mode()
def search_memory(model: Any, given: tuple[Tensor, ...], limits: Sequence[int], how: Search) -> list[Hypothesis]:
    """The best sequence found for each row of a memory.

    Each step takes the most likely continuations of a row's unfinished sequences. Those that end among the first
    ``beam`` are finished; the first ``beam`` that do not end continue.

    Args:
        model: in evaluation mode; its ``decode`` gives the scores of the next ids from ids, ``given`` and ``cache=``,
            a cache of its ``transformer.new_cache()``.
        given: the arguments of ``model.decode`` after the ids, such as memory and padding; each ``[B, ...]``, B at
            least 1.
        limits: the most ids in each row's sequence, without start and end.
        how: settings of the search; ``extra`` has no effect here.

    Raises:
        ValueError: the model's scores are NaN.
    """
    alive = [_Sentence(index, limit) for index, limit in enumerate(limits)]
    best: dict[int, Hypothesis] = {}
    device = given[0].device
    decoding = _Decoding(model, given)
    # unfinished translations with their start, [B, K, n], and log-likelihoods, [B, K]: at first one per sentence
    tokens = torch.full((len(alive), 1, 1), START, device=device)
    scores = torch.zeros(len(alive), 1, device=device, dtype=torch.float64)
    while alive:
        log_probs = _allowed(
            decoding.next(tokens.flatten(0, 1)).unflatten(0, scores.shape), alive, tokens.shape[-1] - 1
        )
        ids = log_probs.shape[-1]
        candidates = (scores[..., None] + log_probs).flatten(1)
        top, at = candidates.topk(min(2 * how.beam, candidates.shape[1]))
        parent, token = at.div(ids, rounding_mode="floor"), at % ids
        _finish(alive, tokens, top, parent, token, how)
        scores, chosen = top.masked_fill(token == END, float("-inf")).topk(min(how.beam, top.shape[1]))
        parent, token = parent.gather(1, chosen), token.gather(1, chosen)
        going = []
        for row, (sentence, likeliest) in enumerate(zip(alive, scores[:, 0].tolist(), strict=True)):
            if _done(sentence, likeliest, how):
                best[sentence.index] = max(sentence.finished, key=lambda hypothesis: hypothesis.score)
            else:
                going.append(row)
        kept = torch.tensor(going, device=device, dtype=torch.long)
        decoding.go_on(kept, parent[kept])
        tokens = torch.cat([tokens[kept[:, None], parent[kept]], token[kept][..., None]], -1)
        scores, alive = scores[kept], [alive[row] for row in going]
    return [best[index] for index in range(len(limits))]


def _allowed(log_probs: Tensor, alive: list[_Sentence], length: int) -> Tensor:
    """Forbid padding and a second start, and at a sentence's limit everything except the end."""
    log_probs[..., [PAD, START]] = float("-inf")
    for row, sentence in enumerate(alive):
        if sentence.limit <= length:
            log_probs[row, :, :END] = float("-inf")
            log_probs[row, :, END + 1 :] = float("-inf")
    return log_probs


def _finish(alive: list[_Sentence], tokens: Tensor, top: Tensor, parent: Tensor, token: Tensor, how: Search) -> None:
    """Store the translations that end among the first ``how.beam`` of ``top``."""
    ends = ((token == END) & (top > float("-inf")))[:, : how.beam]
    for row, rank in ends.nonzero().tolist():
        ids = tuple(tokens[row, parent[row, rank], 1:].tolist())
        alive[row].finished.append(Hypothesis(ids, how.normalized(float(top[row, rank]), len(ids) + 1)))


def _done(sentence: _Sentence, likeliest: float, how: Search) -> bool:
    """Whether ``how.beam`` translations have ended, or no unfinished one can beat the best of them."""
    if math.isnan(likeliest):  # the search would never end
        raise ValueError("the model's scores must be numbers, got NaN: its training has diverged")
    if len(sentence.finished) >= how.beam or likeliest == float("-inf"):
        return True
    return how.normalized(likeliest, sentence.limit + 1) <= sentence.best


class _Decoding:
    """The model's part of a search: memory and cache have one row per unfinished translation."""

    def __init__(self, model: Any, given: tuple[Tensor, ...]) -> None:
        self.model = model
        self.given = given
        self.cache = model.transformer.new_cache()
        self.shape = (len(given[0]), 1)

    def next(self, tokens: Tensor) -> Tensor:
        """Log-probabilities ``[B·K, V]`` of the token after ``tokens``, ``[B·K, n]``; at least in float32."""
        logits = self.model.decode(tokens[:, len(self.cache) :], *self.given, cache=self.cache)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    def go_on(self, kept: Tensor, parent: Tensor) -> None:
        """Continue the sentences ``kept``, ``[B']``, each with its translations ``parent``, ``[B', K']``."""
        rows = (kept[:, None] * self.shape[1] + parent).flatten()
        # all rows of a sentence share its memory, so it moves only when the number of rows changes
        same_memory = tuple(parent.shape) == self.shape
        self.shape = (parent.shape[0], parent.shape[1])
        if not same_memory:
            self.given = tuple(tensor[rows] for tensor in self.given)
        for layer in self.cache:
            layer.self_attn.reorder(rows)
            if not same_memory:
                layer.multihead_attn.reorder(rows)


def translate(model: Translator, vocabulary: Vocabulary, lines: Sequence[str], how: Search) -> list[str]:
    """Translate each line; an empty line stays empty.

    Args:
        model: in evaluation mode.
        vocabulary: the model's vocabulary.
        lines: in any order; lines of similar length are searched together.
        how: beam and lengths.
    """
    full = [index for index, line in enumerate(lines) if line.strip()]
    pairs = Pairs.encode([(lines[index].strip(), "") for index in full], vocabulary)
    found: dict[int, Sequence[int]] = {}
    for some in reversed(pairs.batches(BATCH_TOKENS)):
        hypotheses = search(model, pairs.batch(some).source.to(model.embedding.weight.device), how)
        found |= {full[index]: hypothesis.ids for index, hypothesis in zip(some.tolist(), hypotheses, strict=True)}
    return vocabulary.decode(found.get(index, ()) for index in range(len(lines)))
