"""How good a translator is: perplexity of given translations, BLEU and chrF of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from examples.translation.batches import Pairs
from examples.translation.corpus import Pair
from examples.translation.model import Translator
from examples.translation.search import Search, translate
from examples.translation.vocabulary import Vocabulary


@torch.no_grad()
def negative_log_likelihood(model: Translator, pairs: Pairs, batch_tokens: int = 4096) -> tuple[float, int]:
    """The sum over all target tokens, ends included, and how many they are; the model in evaluation mode."""
    device, total, tokens = model.embedding.weight.device, 0.0, 0
    longest = int(max(pairs.source.lengths.max(), pairs.target.lengths.max())) if len(pairs) else 0
    for index in pairs.batches(batch_tokens, longest, None):
        batch = pairs.batch(index)
        moved = batch.to(device)
        total += float(model(moved.source, moved.target)[1])
        tokens += batch.tokens
    return total, tokens


def evaluate(
    model: Translator,
    vocabulary: Vocabulary,
    pairs: Sequence[Pair],
    how: Search,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Any], list[str]]:
    """The measures of a test set, and the model's translations.

    Perplexity is that of a subword, so that it compares only between models of one vocabulary.

    Raises:
        ValueError: no pairs.
    """
    if not pairs:
        raise ValueError("a test set must have at least one pair, got none")
    model.eval()
    total, tokens = negative_log_likelihood(model, Pairs.encode(pairs, vocabulary))
    sources = [source for source, _ in pairs]
    found = translate(model, vocabulary, sources, how, longest=sys.maxsize - 1, progress=progress)
    bleu, chrf = BLEU(), CHRF()
    references = [[target for _, target in pairs]]
    result = {
        "sentences": len(pairs),
        "tokens": tokens,
        "nll": total / tokens,
        "perplexity": math.exp(min(total / tokens, 700.0)),
        "bleu": bleu.corpus_score(found, references).score,
        "chrf": chrf.corpus_score(found, references).score,
        "signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    return result, found
