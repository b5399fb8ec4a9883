"""Measures a translator: perplexity of given translations, and BLEU and chrF of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from examples.translation.batches import Pairs
from examples.translation.corpus import Pair
from examples.translation.model import Translator
from examples.translation.search import Search, translate
from examples.translation.vocabulary import Vocabulary

BATCH_TOKENS = 4096
NO_LIMIT = sys.maxsize - 1  # translate adds 1 for the end


@torch.no_grad()
def negative_log_likelihood(model: Translator, pairs: Pairs, parts: Iterable[Tensor]) -> tuple[float, int]:
    """The sum over all target tokens including ends, and their number, with the model in evaluation mode.

    Args:
        model: on its device and in the caller's precision.
        pairs: pairs with their given translations.
        parts: the batches from ``pairs.batches``.
    """
    device, total, tokens = model.embedding.weight.device, 0.0, 0
    for index in parts:
        batch = pairs.batch(index).to(device)
        total += float(model(batch.source, batch.given, batch.wanted)[1])
        tokens += batch.tokens
    return total, tokens


def evaluate(
    model: Translator, vocabulary: Vocabulary, pairs: Sequence[Pair], how: Search
) -> tuple[dict[str, Any], list[str]]:
    """The measures of a test set, and the model's translations.

    ``length_ratio`` is the length of the translations divided by that of the given ones, in words as BLEU splits them.

    Perplexity is per subword, so only models with the same vocabulary compare.

    Raises:
        ValueError: there are no pairs, or a pair has more tokens than the model has positions; the message names
            it.
    """
    if not pairs:
        raise ValueError("a test set must have at least one pair, got none")
    model.eval()
    encoded = Pairs.encode(pairs, vocabulary)
    _check_lengths(encoded, model.longest)
    total, tokens = negative_log_likelihood(model, encoded, encoded.batches(BATCH_TOKENS, NO_LIMIT, None))
    sources = [source for source, _ in pairs]
    found = translate(model, vocabulary, sources, how, longest=NO_LIMIT)
    bleu, chrf, references = BLEU(), CHRF(), [[target for _, target in pairs]]
    measured = bleu.corpus_score(found, references)
    result = {
        "sentences": len(pairs),
        "tokens": tokens,
        "nll": total / tokens,
        "perplexity": math.exp(min(total / tokens, 700.0)),
        "bleu": measured.score,
        "chrf": chrf.corpus_score(found, references).score,
        "length_ratio": measured.sys_len / measured.ref_len,
        "signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    return result, found


def _check_lengths(pairs: Pairs, longest: int | None) -> None:
    """Refuse pairs that are too long for learned positions."""
    lengths = torch.maximum(pairs.source.lengths, pairs.target.lengths - 1)
    if longest is not None and len(pairs) and int(lengths.max()) > longest:
        number = int(lengths.argmax())
        raise ValueError(
            f"pair {number + 1}: must have at most max_len = {longest} tokens on each side, got {int(lengths[number])}"
        )
